"""Streams a WAV file to Tenure and prints the text as it arrives. A later line replaces a line that begins with dots.

    python examples/transcribe.py recording.wav

The file must be mono, 16 kHz and 16 bit PCM. The instance must run with `TENURE_STREAMS__HANDLER=transcription`.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from uuid import uuid4

from websockets.asyncio.client import ClientConnection, connect

from tenure.errors import Invalid
from tenure.transcription.wav import BYTES_PER_SECOND, read_pcm

CHUNK_SECONDS = 0.1
CHUNK_BYTES = int(BYTES_PER_SECOND * CHUNK_SECONDS)


def main() -> int:
    arguments = _arguments()
    try:
        pcm = read_pcm(arguments.wav.read_bytes())
    except (OSError, Invalid) as error:
        print(f"{arguments.wav}: {error}", file=sys.stderr)
        return 2
    return asyncio.run(_stream(arguments, pcm))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Streams a WAV file to Tenure and prints the text as it arrives.")
    parser.add_argument("wav", type=Path)
    parser.add_argument("--url", default="ws://127.0.0.1:8080/sessions/stream")
    parser.add_argument("--user", default=str(uuid4()), help="the default of user, tenant and capacity is a new id")
    parser.add_argument("--tenant", default=str(uuid4()))
    parser.add_argument("--capacity", default=str(uuid4()))
    parser.add_argument("--kind", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--realtime", action="store_true", help="limit the sending to the speed of speech")
    return parser.parse_args()


async def _stream(arguments: argparse.Namespace, pcm: bytes) -> int:
    async with connect(arguments.url) as socket:
        await socket.send(json.dumps(_open(arguments)))
        sender = asyncio.create_task(_send(socket, pcm, CHUNK_SECONDS if arguments.realtime else 0))
        try:
            return await _print_texts(socket)
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)


def _open(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "type": "open",
        "userObjectId": arguments.user,
        "tenantObjectId": arguments.tenant,
        "capacityId": arguments.capacity,
        "sessionKind": arguments.kind,
    }


async def _send(socket: ClientConnection, pcm: bytes, pause_seconds: float) -> None:
    for start in range(0, len(pcm), CHUNK_BYTES):
        await socket.send(pcm[start : start + CHUNK_BYTES])
        await asyncio.sleep(pause_seconds)
    await socket.send(json.dumps({"type": "stop"}))


async def _print_texts(socket: ClientConnection) -> int:
    """Returns the exit code: 0 if the session ended with the reason STOPPED, which follows the message `stop`."""
    async for message in socket:
        event = json.loads(message)
        if event["type"] == "partial":
            print("...", event["text"], flush=True)
        elif event["type"] == "final":
            print(event["text"], flush=True)
        elif event["type"] == "error":
            print(f"{event['code']}: {event['message']}", file=sys.stderr)
        elif event["type"] == "session_end":
            return 0 if event["reason"] == "STOPPED" else _fail(f"the session ended: {event['reason']}")
    return _fail(f"the connection was closed: {socket.close_code} {socket.close_reason}")


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
