"""When a stream renews its session, how it retries failed saves, and with which reason and counts it ends."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tenure.domain.sessions import Found, StreamCounters
from tenure.domain.streams import AttachResult, StreamUpdate, StreamUpdateResult
from tenure.errors import DatabaseUnavailable
from tenure.streams import stream as module
from tenure.streams.output import Tally
from tenure.streams.stream import SHUTDOWN, STOPPED, Stream
from tenure.telemetry.events import StreamNotSaved, Telemetry
from tests.support.open_requests import NOON
from tests.support.telemetry import RecordedTelemetry
from tests.support.usage import session_between

BEGAN = 1000.0


async def test_save_that_keeps_failing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    session = session_between(NOON, NOON + timedelta(seconds=100), closed=False)
    store: Any = UnavailableStore()
    unused: Any = None
    telemetry = RecordedTelemetry()
    stream = Stream(unused, AttachResult(Found.LIVE, session, 1, NOON), unused, store, telemetry, Tally(telemetry))
    assert await stream._save_with_retries(end="STOPPED") is None
    (reported,) = telemetry.of(StreamNotSaved)
    assert (reported.session_id, reported.end) == (session.session_id, "STOPPED")


class UnavailableStore:
    async def update(self, update: StreamUpdate) -> None:
        raise DatabaseUnavailable(update.session_id)


@pytest.mark.parametrize(
    ("left", "pause"),
    [(60, 1), (4, 1), (2, 0.5), (0.8, 0.2), (0.2, 0.1), (0.01, 0.1), (0, 1), (-5, 1)],
)
async def test_stream_retries_failed_save_sooner_as_deadline_approaches(
    monkeypatch: pytest.MonkeyPatch, left: float, pause: float
) -> None:
    session = session_between(NOON, NOON + timedelta(seconds=100), closed=False)
    monkeypatch.setattr(module, "monotonic", lambda: BEGAN)
    store: Any = UnavailableStore()
    unused: Any = None
    stream = Stream(unused, AttachResult(Found.LIVE, session, 1, NOON), unused, store, Telemetry(), Tally(Telemetry()))
    now = BEGAN + 100 - left
    monkeypatch.setattr(module, "monotonic", lambda: now)
    stream.keep_alive()
    assert stream._keeping is not None
    await stream._keeping
    assert stream.due_at - now == pytest.approx(pause)


async def test_deadline_is_computed_from_time_at_which_renewal_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The response takes 98 s here. A deadline computed from the time of the response would be 98 s too late."""
    session = session_between(NOON, NOON + timedelta(seconds=100), closed=False)
    now = BEGAN
    monkeypatch.setattr(module, "monotonic", lambda: now)

    class SlowStore:
        async def update(self, _update: StreamUpdate) -> StreamUpdateResult:
            nonlocal now
            now += 98
            return StreamUpdateResult(Found.LIVE, session, NOON, counted=True)

    store: Any = SlowStore()
    unused: Any = None
    stream = Stream(unused, AttachResult(Found.LIVE, session, 1, NOON), unused, store, Telemetry(), Tally(Telemetry()))
    stream.keep_alive()
    assert stream._keeping is not None
    await stream._keeping
    assert stream._ends_at == BEGAN + 100


async def test_first_ending_determines_reason() -> None:
    session = session_between(NOON, NOON + timedelta(seconds=100), closed=False)
    unused: Any = None
    stream = Stream(unused, AttachResult(Found.LIVE, session, 1, NOON), unused, unused, Telemetry(), Tally(Telemetry()))
    stream.end(STOPPED)
    stream.end(SHUTDOWN)
    stream.session_ended("TERMINATED")
    assert stream._ending.result() is STOPPED


@pytest.mark.parametrize("saves", [0, 1, 2])
async def test_last_message_contains_all_counts_even_if_saves_fail(monkeypatch: pytest.MonkeyPatch, saves: int) -> None:
    """The stream records the end, and then saves the last counters. Only the first `saves` of these calls succeed."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    session = replace(session_between(NOON, NOON + timedelta(seconds=100), closed=False), stream=NO_COUNTERS)
    sent = list[dict[str, Any]]()

    class FailingStore:
        answers = saves

        async def update(self, update: StreamUpdate) -> StreamUpdateResult:
            nonlocal session
            if not self.answers:
                raise DatabaseUnavailable("gone")
            self.answers -= 1
            if update.counted.chunks:
                session = replace(session, stream=update.counted, close_reason="STOPPED")
            return StreamUpdateResult(Found.LIVE, session, NOON, counted=True)

    class Socket:
        async def send(self, message: str) -> None:
            sent.append(msgspec.json.decode(message))

        async def close(self, _code: int) -> None:
            pass

    socket: Any = Socket()
    store: Any = FailingStore()
    unused: Any = None
    tally = Tally(Telemetry())
    stream = Stream(socket, AttachResult(Found.LIVE, session, 1, NOON), unused, store, Telemetry(), tally)
    for _ in range(3):
        tally.received("hello")
    await stream._conclude(STOPPED)
    assert (sent[-1]["type"], sent[-1]["metrics"]["chunks"]) == ("session_end", 3)


NO_COUNTERS = StreamCounters(0, 0, 0, 0, 0, 0, 0)
