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
from tenure.telemetry.events import Telemetry
from tests.support.open_requests import NOON
from tests.support.usage import session_between

BEGAN = 1000.0


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
