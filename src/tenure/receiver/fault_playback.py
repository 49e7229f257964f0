"""Executes a fault on the connection of a delivery."""

import asyncio
from email.utils import formatdate

from tenure.clock import wall_microseconds
from tenure.receiver.faults import Delay, Drop, EndlessBody, Garbage, Redirect, RejectDuplicates, SlowBody, Status, Way
from tenure.receiver.ledger import DeliveryOutcome
from tenure.receiver.messages import Request, Response, render, render_head, send, text_response

GARBAGE = bytes(range(128, 256)) + b"\r\n\r\n"
CHUNK = b"4000\r\n" + b"." * 0x4000 + b"\r\n"
CHUNK_PAUSE_SECONDS = 0.005
"""Limits an endless body to 3 MB/s, so that it does not occupy a whole core."""


def applies(way: Way, outcome: DeliveryOutcome) -> bool:
    """Return whether the fault applies to a delivery with this outcome. `RejectDuplicates` requires DUPLICATE."""
    return not isinstance(way, RejectDuplicates) or outcome is DeliveryOutcome.DUPLICATE


async def play_fault(way: Way, response: Response, request: Request, writer: asyncio.StreamWriter) -> bool:
    """Respond with the fault. `response` is the correct response. Return whether the connection stays open."""
    match way:
        case Status() | Redirect() | RejectDuplicates():
            send(writer, render(_fault_response(way), keep_alive=request.keep_alive))
            return request.keep_alive
        case Delay(seconds=seconds):
            await asyncio.sleep(seconds)
            send(writer, render(response, keep_alive=request.keep_alive))
            return request.keep_alive
        case SlowBody():
            await _send_slow_body(way, response.status, request, writer)
            return request.keep_alive
        case EndlessBody():
            await _send_endless_body(response.status, writer)
        case Drop():
            writer.transport.abort()
        case Garbage():
            send(writer, GARBAGE)
    return False


def _fault_response(way: Status | Redirect | RejectDuplicates) -> Response:
    match way:
        case RejectDuplicates(status=status):
            return text_response(status, DeliveryOutcome.DUPLICATE.value)
        case Redirect(status=status, location=location):
            return text_response(status, "configured redirect", ("location", location))
        case Status(status=status, retry_after_seconds=None):
            return text_response(status, "configured fault")
        case Status(status=status):
            return text_response(status, "configured fault", ("retry-after", _retry_after(way)))


def _retry_after(way: Status) -> str:
    seconds = way.retry_after_seconds or 0
    if way.retry_after_as == "seconds":
        return str(seconds)
    return formatdate(wall_microseconds() // 1_000_000 + seconds, usegmt=True)


async def _send_slow_body(way: SlowBody, status: int, request: Request, writer: asyncio.StreamWriter) -> None:
    send(writer, render_head(status, (("content-length", str(way.bytes)),), keep_alive=request.keep_alive))
    for _ in range(way.bytes):
        await asyncio.sleep(way.seconds)
        send(writer, b".")
        await writer.drain()


async def _send_endless_body(status: int, writer: asyncio.StreamWriter) -> None:
    """Send chunks until the sender of the request closes the connection: then `send` raises `ConnectionResetError`."""
    send(writer, render_head(status, (("transfer-encoding", "chunked"),), keep_alive=False))
    while True:
        send(writer, CHUNK)
        await writer.drain()
        await asyncio.sleep(CHUNK_PAUSE_SECONDS)
