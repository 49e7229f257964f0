"""A transcription client that sends audio first, and reads snake_case messages.

    python examples/coming_from/transcription_sessions/client.py recording.pcm --url ws://127.0.0.1:8080/v1

The file has 16 kHz, 16 bit, mono PCM. The instance needs the profile `transcription` and `json_case = "snake"`; see
docs/coming-from/transcription-sessions.md.
"""

import argparse
import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError

CHUNK_BYTES = 3200
TIMEOUT_SECONDS = 10
NORMAL = 1000


async def main(audio: bytes, url: str) -> int:
    async with connect(f"{url}/transcribe/stream") as socket:
        with suppress(ConnectionClosed):  # a refusal closes the connection, and is read below
            await send(socket, audio)  # before the first message of the server is read
        session_id = await print_texts(socket)
    if session_id is None or socket.close_code != NORMAL:
        print("closed with code", socket.close_code)
        return 1
    http = url.replace("ws", "http", 1)
    ended = await asyncio.to_thread(call, "DELETE", f"{http}/sessions/{session_id}")
    print(ended["status"], ended["close_reason"], ended["stream"]["bytes_received"], "bytes")
    sums = await asyncio.to_thread(call, "GET", f"{http}/sessions/metrics")
    print(sums["total_bytes_received"], "bytes", sums["total_finals_sent"], "transcripts on this instance")
    return 0


async def send(socket: ClientConnection, audio: bytes) -> None:
    for start in range(0, len(audio), CHUNK_BYTES):
        await socket.send(audio[start : start + CHUNK_BYTES])
    await socket.send(json.dumps({"type": "stop"}))


async def print_texts(socket: ClientConnection) -> str | None:
    """Prints the texts, and returns the id of the session; None if the server opened no session."""
    session_id = None
    with suppress(ConnectionClosedError):  # closed with an error code: a refusal, a failure, or an instance that stops
        async for text in socket:
            message = json.loads(text)
            if message["type"] == "session_start":
                session_id = message["session_id"]
            elif message["type"] in ("partial", "final"):
                print(message["type"], message["text"])
            elif message["type"] == "error":
                print(message["code"], message["message"])
            elif message["type"] == "session_end":
                print("end", message["reason"])
    return session_id


def call(method: str, url: str) -> dict[str, Any]:
    request = Request(url, method=method)  # noqa: S310 - the user's URL
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        return dict(json.load(response))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Streams PCM audio and prints its text.")
    parser.add_argument("audio", type=Path)
    parser.add_argument("--url", default="ws://127.0.0.1:8080/v1")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(main(arguments.audio.read_bytes(), arguments.url)))
