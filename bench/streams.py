"""The CPU time that an instance uses for 1000 echo streams with one message of 1 KB per second each."""

import argparse
import asyncio
import json
import time
import uuid

import psutil
from websockets.asyncio.client import ClientConnection, connect

from bench import check_bar, postgres, service

STREAMS = 1000
SECONDS = 20
MESSAGE = b"x" * 1024


async def stream(address: str, begin: asyncio.Event, number: int, seconds: int) -> int:
    """Runs one stream. Returns the number of messages that the instance counted."""
    async with connect(f"{address}/sessions/stream", compression=None, ping_interval=None) as socket:
        await _open(socket)
        await begin.wait()
        # The streams start at different times of the second, like independent clients.
        await asyncio.sleep(number / STREAMS)
        next_at = time.monotonic()
        for _ in range(seconds):
            await socket.send(MESSAGE)
            if await socket.recv() != MESSAGE:
                raise RuntimeError("the echo differs from the message")
            next_at += 1
            await asyncio.sleep(max(next_at - time.monotonic(), 0))
        await socket.send('{"type":"stop"}')
        ended = json.loads(await socket.recv())
    return int(ended["metrics"]["chunks"])


async def _open(socket: ClientConnection) -> None:
    request = {name: str(uuid.uuid4()) for name in ("userObjectId", "tenantObjectId", "capacityId")}
    await socket.send(json.dumps({"type": "open", "sessionKind": 1, **request}))
    if json.loads(await socket.recv())["type"] != "session_start":
        raise RuntimeError("the stream was not opened")


async def load(address: str, process: psutil.Process, seconds: int) -> float:
    """Runs all streams. Returns how many cores the process used on average."""
    begin = asyncio.Event()
    running = [asyncio.ensure_future(stream(address, begin, number, seconds)) for number in range(STREAMS)]
    await asyncio.sleep(5)
    begin.set()
    await asyncio.sleep(2)
    before, began = process.cpu_times(), time.monotonic()
    await asyncio.sleep(seconds - 4)
    after, ended = process.cpu_times(), time.monotonic()
    if sum(await asyncio.gather(*running)) != STREAMS * seconds:
        raise RuntimeError("messages were lost")
    return (after.user + after.system - before.user - before.system) / (ended - began)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=int, default=SECONDS)
    seconds = arguments.parse_args().seconds
    with postgres() as server, service(server.create_database("streams"), workers=1) as running:
        process = psutil.Process(running.process.pid)
        used = asyncio.run(load(running.address.replace("http", "ws"), process, seconds))
    check_bar("1000 echo streams, 1 KB per second each", used, 0.5, "cores", at_most=True)


if __name__ == "__main__":
    main()
