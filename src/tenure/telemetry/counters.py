"""The counters behind `GET /sessions/metrics`. They subscribe to telemetry events.

Each worker counts since its own start. `Counters.of_group` adds up the counters of all workers of the process group.
"""

from collections import Counter

import msgspec

from tenure.domain.sessions import OpenOutcome
from tenure.telemetry.events import SessionClosed, SessionOpened, StreamReceived, StreamSent, Telemetry
from tenure.telemetry.siblings import Siblings

FIGURE = "counters"


class Totals(msgspec.Struct, frozen=True):
    """The counters of one worker, or the sums of those of several."""

    opened: dict[tuple[str, int], int]
    """By outcome and kind; `existing` is counted too."""
    closed: dict[str, int]
    """By reason; only sessions whose end this process group recorded."""
    streamed: dict[str, int]
    """By the names of `StreamCounters`."""


class GroupTotals(msgspec.Struct, frozen=True):
    totals: Totals
    workers: int
    """The number of workers in the process group."""
    answered: int
    """The number of workers whose counters are in the totals."""


class Counters:
    def __init__(self, telemetry: Telemetry, siblings: Siblings) -> None:
        self._opened: Counter[tuple[str, int]] = Counter()
        self._closed: Counter[str] = Counter()
        self._streamed: Counter[str] = Counter()
        self._siblings = siblings
        siblings.register(FIGURE, self._encoded)
        telemetry.subscribe(SessionOpened, self._count_opened)
        telemetry.subscribe(SessionClosed, self._count_closed)
        telemetry.subscribe(StreamReceived, self._count_received)
        telemetry.subscribe(StreamSent, self._count_sent)

    async def of_group(self) -> GroupTotals:
        """Return the sums over all workers that answer within a second, this one included."""
        parts = [_decode(figure) for figure in await self._siblings.ask(FIGURE)]
        opened: Counter[tuple[str, int]] = Counter()
        closed: Counter[str] = Counter()
        streamed: Counter[str] = Counter()
        for part in parts:
            opened.update(part.opened)
            closed.update(part.closed)
            streamed.update(part.streamed)
        return GroupTotals(Totals(opened, closed, streamed), self._siblings.workers, len(parts))

    def _encoded(self) -> bytes:
        return _encode(Totals(self._opened, self._closed, self._streamed))

    def _count_opened(self, event: SessionOpened) -> None:
        self._opened[event.outcome, event.session.kind] += 1
        if event.outcome is OpenOutcome.UPGRADED:
            self._closed["UPGRADED"] += 1

    def _count_closed(self, event: SessionClosed) -> None:
        self._closed[event.reason] += 1

    def _count_received(self, event: StreamReceived) -> None:
        self._streamed["bytes_received"] += event.byte_count
        self._streamed["chunks"] += 1
        self._streamed["audio_duration_ms"] += event.audio_duration_ms

    def _count_sent(self, event: StreamSent) -> None:
        self._streamed["messages_sent"] += 1
        if event.kind is not None:
            self._streamed[event.kind] += 1


# MessagePack, because the keys of `opened` are tuples.
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Totals).decode
