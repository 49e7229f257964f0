"""Senders that retry until each delivery is accepted, against a receiver that fails in every way."""

import asyncio
import random
from collections.abc import Iterator

from tenure.receiver.faults import EVERY_WAY, Delay, Faults, SlowBody, Way
from tests.receiver.conftest import Receive
from tests.receiver.sending import connect, keys, request, totals

KEYS = 300
SENDERS = 16
RESPONSE_MAX_BYTES = 10_000
RESPONSE_SECONDS = 5
ATTEMPTS_MAX = 50
BODY = b'[{"usage": 0.000123}]'


async def test_retried_deliveries_are_all_counted_once_under_faults(receive: Receive) -> None:
    seed = random.SystemRandom().getrandbits(32)
    address = await receive(faults=Faults(share=0.5, seed=seed, ways=tuple(map(quick, EVERY_WAY))))
    names = [f"k{number}" for number in range(KEYS)]
    unsent = iter(names)
    await asyncio.gather(*(send_all(address, unsent) for _ in range(SENDERS)))
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


async def send_all(address: str, unsent: Iterator[str]) -> None:
    for key in unsent:
        for _ in range(ATTEMPTS_MAX):
            if await is_accepted(address, key):
                break
        else:
            raise AssertionError(f"{key} was never accepted")


async def is_accepted(address: str, key: str) -> bool:
    """Sends the delivery, and returns whether the response has status 200 or 409 and is not endless."""
    reader, writer = await connect(address)
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            writer.write(request("/usages", BODY, headers={"idempotency-key": key, "connection": "close"}))
            response = await read_at_most(reader, RESPONSE_MAX_BYTES)
    except ConnectionResetError:
        return False
    finally:
        writer.close()
    return response.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 409 ")) and len(response) < RESPONSE_MAX_BYTES


async def read_at_most(reader: asyncio.StreamReader, size: int) -> bytes:
    response = b""
    while len(response) < size and (part := await reader.read(size)):
        response += part
    return response
