"""Sends the results of a stream's handler to its client, and counts messages. The counts are not saved per message."""

import asyncio
from collections import Counter
from typing import Any

import msgspec

from tenure.domain.sessions import StreamCounters
from tenure.streams.handlers import Message
from tenure.streams.sockets import Socket
from tenure.telemetry.events import StreamReceived, StreamSent, Telemetry

BYTES_PER_MS = 32
"""Bytes per millisecond of audio at 16 kHz with 16 bits. Every binary message counts as audio."""


class Tally:
    """The counts of a stream since its last save."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._counted: Counter[str] = Counter()
        self._audio_bytes = 0

    def received(self, message: Message) -> None:
        if isinstance(message, str):
            byte_count, audio_ms = len(message.encode()), 0
        else:
            byte_count, audio_ms = len(message), self._audio_ms(len(message))
        self._counted["bytes_received"] += byte_count
        self._counted["chunks"] += 1
        self._counted["audio_duration_ms"] += audio_ms
        self._telemetry.report(StreamReceived(byte_count, audio_ms))

    def sent(self, kind: str | None = None) -> None:
        """Counts a message. `kind` is the additional counter of a partial, a final or an error."""
        self._counted["messages_sent"] += 1
        if kind is not None:
            self._counted[kind] += 1
        self._telemetry.report(StreamSent(kind))

    def take(self) -> StreamCounters:
        """Returns the counts to save, and resets them to zero."""
        counted, self._counted = self._counted, Counter()
        return StreamCounters(*(counted[name] for name in StreamCounters.__struct_fields__))

    def _audio_ms(self, byte_count: int) -> int:
        """The whole milliseconds that these bytes add to all audio so far, so that rounding loses no audio."""
        before = self._audio_bytes // BYTES_PER_MS
        self._audio_bytes += byte_count
        return self._audio_bytes // BYTES_PER_MS - before


class SocketOutput:
    def __init__(self, socket: Socket, tally: Tally) -> None:
        self._socket = socket
        self._tally = tally

    async def message(self, content: Message) -> None:
        await self._send(content)

    async def partial(self, text: str) -> None:
        await self._send(as_json({"type": "partial", "text": text}), "partials_sent")

    async def final(self, text: str) -> None:
        await self._send(as_json({"type": "final", "text": text}), "finals_sent")

    async def error(self, code: str, message: str) -> None:
        await self._send(as_json({"type": "error", "code": code, "message": message}), "errors_sent")

    async def _send(self, message: Message, kind: str | None = None) -> None:
        if not self._socket.gone.done():
            self._tally.sent(kind)
            await self._socket.send(message)
        # A handler that only sends must let other tasks run, even after its client is gone.
        await asyncio.sleep(0)


def as_json(content: dict[str, Any]) -> str:
    return msgspec.json.encode(content).decode()
