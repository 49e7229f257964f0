"""When a stream retries a failed save."""

from datetime import timedelta
from typing import Any

import pytest

from tenure.domain.sessions import Found
from tenure.domain.streams import AttachResult, StreamUpdate
from tenure.errors import DatabaseUnavailable
from tenure.streams import stream as module
from tenure.streams.output import Tally
from tenure.streams.stream import Stream
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
