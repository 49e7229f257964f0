"""A sender that comes again until it has an answer, against a receiver that fails in all its ways."""

import asyncio
import random
from collections.abc import Iterator

from tenure.receiver.faults import EVERY_WAY, Delay, Faults, SlowBody, Way
from tests.receiver.conftest import Receive
from tests.receiver.sending import connect, keys, request, totals

KEYS = 300
SENDERS = 16
ANSWER_MAX_BYTES = 10_000
ANSWER_SECONDS = 5
ATTEMPTS_MAX = 50
BODY = b'[{"usage": 0.000123}]'


async def test_a_sender_that_comes_again_has_everything_counted_once(receive: Receive) -> None:
    seed = random.SystemRandom().getrandbits(32)
    address = await receive(faults=Faults(share=0.5, seed=seed, ways=tuple(map(quick, EVERY_WAY))))
    names = [f"k{number}" for number in range(KEYS)]
    waiting = iter(names)
    await asyncio.gather(*(send_all(address, waiting) for _ in range(SENDERS)))
    counted = await totals(address)
    assert sorted(entry["key"] for entry in await keys(address, "?limit=1000")) == sorted(names), f"seed {seed}"
    assert (counted["keys"], counted["conflicts"], counted["usage"]) == (KEYS, 0, "0.036900"), f"seed {seed}"
    assert counted["failed"] > KEYS / 4, f"seed {seed}"


def quick(way: Way) -> Way:
    match way:
        case Delay():
            return Delay(seconds=0.02)
        case SlowBody():
            return SlowBody(seconds=0.002)
    return way


async def send_all(address: str, waiting: Iterator[str]) -> None:
    for key in waiting:
        for _ in range(ATTEMPTS_MAX):
            if await is_accepted(address, key):
                break
        else:
            raise AssertionError(f"{key} was never accepted")


async def is_accepted(address: str, key: str) -> bool:
    """200 or 409 with all of its body; what does not end is no answer."""
    reader, writer = await connect(address)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            writer.write(request("/usages", BODY, headers={"idempotency-key": key, "connection": "close"}))
            answer = await read_at_most(reader, ANSWER_MAX_BYTES)
    except ConnectionResetError:
        return False
    finally:
        writer.close()
    return answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 409 ")) and len(answer) < ANSWER_MAX_BYTES


async def read_at_most(reader: asyncio.StreamReader, size: int) -> bytes:
    answer = b""
    while len(answer) < size and (part := await reader.read(size)):
        answer += part
    return answer
