"""Sends the results of a stream's handler to the client of the stream, and counts messages.

Keep-alives and the last save store the counts in the database.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.clock import monotonic
from tenure.domain.sessions import StreamCounters
from tenure.streams.handlers import Message
from tenure.streams.sockets import Socket
from tenure.telemetry.events import StreamReceived, StreamSent, Telemetry

BYTES_PER_MS = 32
"""Bytes per millisecond of audio at 16 kHz with 16 bits. Every binary message counts as audio."""


SLICE_SECONDS = 0.1
SLICES_MAX = 32
"""When a stream has this many slices, pairs of slices are merged, and new slices last twice as long."""


class Slice:
    """The counts of the messages in a short span of time. Instants are those of the monotonic clock."""

    __slots__ = ("began_at", "counted", "last_at")

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.last_at = began_at
        self.counted: Counter[str] = Counter()


def total(slices: Sequence[Slice], until: float = float("inf")) -> StreamCounters:
    """Adds up the slices whose last message was counted before `until`."""
    counted: Counter[str] = Counter()
    for each in slices:
        if each.last_at < until:
            counted.update(each.counted)
    return StreamCounters(*(counted[name] for name in StreamCounters.__struct_fields__))


class Tally:
    """The counts of a stream since its previous save.

    The counts are kept in slices of time. So if a keep-alive finds that the session has ended, the stream can leave out
    the messages that arrived after the end.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._slices: list[Slice] = []
        self._slice_seconds = SLICE_SECONDS
        self._audio_bytes = 0

    def received(self, message: Message) -> None:
        if isinstance(message, str):
            byte_count, audio_ms = len(message.encode()), 0
        else:
            byte_count, audio_ms = len(message), self._audio_ms(len(message))
        counted = self._counted_now()
        counted["bytes_received"] += byte_count
        counted["chunks"] += 1
        counted["audio_duration_ms"] += audio_ms
        self._telemetry.report(StreamReceived(byte_count, audio_ms))

    def sent(self, kind: str | None = None, byte_count: int = 0) -> None:
        """Counts a message. `kind` is the additional counter of a partial, a final or an error."""
        counted = self._counted_now()
        counted["messages_sent"] += 1
        if kind is not None:
            counted[kind] += 1
        self._telemetry.report(StreamSent(kind, byte_count))

    def take(self) -> Sequence[Slice]:
        """Returns the counts to save, and resets them to zero."""
        slices, self._slices = self._slices, []
        self._slice_seconds = SLICE_SECONDS
        return slices

    def put_back(self, slices: Sequence[Slice]) -> None:
        """Restores counts that were not saved."""
        self._slices = [*slices, *self._slices]

    def _counted_now(self) -> Counter[str]:
        now = monotonic()
        if not self._slices or now - self._slices[-1].began_at >= self._slice_seconds:
            if len(self._slices) >= SLICES_MAX:
                self._merge_pairs()
            self._slices.append(Slice(now))
        self._slices[-1].last_at = now
        return self._slices[-1].counted

    def _merge_pairs(self) -> None:
        for first, second in zip(self._slices[::2], self._slices[1::2], strict=False):
            first.counted.update(second.counted)
            first.last_at = second.last_at
        self._slices = self._slices[::2]
        self._slice_seconds *= 2

    def _audio_ms(self, byte_count: int) -> int:
        """Return the whole milliseconds that these bytes add. Only the total is rounded, so that no audio is lost."""
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
            self._tally.sent(kind, len(message.encode() if isinstance(message, str) else message))
            await self._socket.send(message)
        # Let other tasks run: if `send` does not wait, a handler that only sends would block the event loop.
        await asyncio.sleep(0)


def as_json(content: dict[str, Any]) -> str:
    return msgspec.json.encode(content).decode()
