"""When a stream saves again what could not be saved."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import DatabaseUnavailable
from tenure.model.sessions import Attached, Found, StreamUpdate
from tenure.streams import stream as module
from tenure.streams.stream import Stream
from tenure.streams.tally import Tally
from tests.support.usage import lived
from tests.support.wishes import NOON

BEGAN = 1000.0


class Away:
    async def update(self, update: StreamUpdate) -> None:
        raise DatabaseUnavailable(update.session_id)


@pytest.mark.parametrize(
    ("left", "pause"),
    [(60, 1), (4, 1), (2, 0.5), (0.8, 0.2), (0.2, 0.1), (0.01, 0.1), (0, 1), (-5, 1)],
)
async def test_the_less_time_is_left_the_sooner(monkeypatch: pytest.MonkeyPatch, left: float, pause: float) -> None:
    session = lived(NOON, NOON + timedelta(seconds=100), closed=False)
    monkeypatch.setattr(module, "monotonic", lambda: BEGAN)
    store: Any = Away()
    nobody: Any = None
    stream = Stream(nobody, Attached(Found.LIVE, session, 1, NOON), nobody, store, Tally(Counter()))
    now = BEGAN + 100 - left
    monkeypatch.setattr(module, "monotonic", lambda: now)
    stream.keep_alive()
    assert stream._keeping is not None
    await stream._keeping
    assert stream.due_at - now == pytest.approx(pause)
