"""Faults, played on a connection."""

import asyncio
from email.utils import formatdate

from tenure.clock import wall_microseconds
from tenure.receiver.faults import Delay, Drop, EndlessBody, Garbage, Redirect, RejectDuplicates, SlowBody, Status, Way
from tenure.receiver.ledger import Outcome
from tenure.receiver.messages import Answer, Request, head_of, rendered, send, text

GARBAGE = bytes(range(128, 256)) + b"\r\n\r\n"
CHUNK = b"4000\r\n" + b"." * 0x4000 + b"\r\n"
CHUNK_PAUSE_SECONDS = 0.005
"""An endless body of 3 MB a second, which leaves the core to others."""


async def play(way: Way, usual: Answer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """Answers in that way, or not at all. False if the connection is of no more use."""
    match way:
        case Status() | Redirect() | RejectDuplicates():
            send(writer, rendered(instead(way), keeps_alive=request.keeps_alive))
            return request.keeps_alive
        case Delay(seconds=seconds):
            await asyncio.sleep(seconds)
            send(writer, rendered(usual, keeps_alive=request.keeps_alive))
            return request.keeps_alive
        case SlowBody():
            await _dribble(way, usual.status, request, writer)
            return request.keeps_alive
        case EndlessBody():
            await _pour(usual.status, writer)
        case Drop():
            writer.transport.abort()
        case Garbage():
            send(writer, GARBAGE)
    return False


def is_met(way: Way, outcome: Outcome | None) -> bool:
    """Only duplicates can be rejected as such."""
    return not isinstance(way, RejectDuplicates) or outcome is Outcome.DUPLICATE


def instead(way: Status | Redirect | RejectDuplicates) -> Answer:
    match way:
        case RejectDuplicates(status=status):
            return text(status, Outcome.DUPLICATE.value)
        case Redirect(status=status, location=location):
            return text(status, "told to redirect", ("location", location))
        case Status(status=status, retry_after_seconds=None):
            return text(status, "told to fail")
        case Status(status=status):
            return text(status, "told to fail", ("retry-after", _retry_after(way)))


def _retry_after(way: Status) -> str:
    seconds = way.retry_after_seconds or 0
    if way.retry_after_as == "seconds":
        return str(seconds)
    return formatdate(wall_microseconds() // 1_000_000 + seconds, usegmt=True)


async def _dribble(way: SlowBody, status: int, request: Request, writer: asyncio.StreamWriter) -> None:
    send(writer, head_of(status, (("content-length", str(way.bytes)),), keeps_alive=request.keeps_alive))
    for _ in range(way.bytes):
        await asyncio.sleep(way.seconds)
        send(writer, b".")
        await writer.drain()


async def _pour(status: int, writer: asyncio.StreamWriter) -> None:
    """Until the sender hangs up."""
    send(writer, head_of(status, (("transfer-encoding", "chunked"),), keeps_alive=False))
    while True:
        send(writer, CHUNK)
        await writer.drain()
        await asyncio.sleep(CHUNK_PAUSE_SECONDS)
