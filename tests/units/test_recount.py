"""Recounting a run of adjacent windows together gives the same result as recounting each window alone."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tenure.clock import MICROSECOND
from tenure.domain.usage import CHUNK_MAX, BillableInterval, ChunkBounds, Era, Window
from tenure.usage import recount as module
from tenure.usage.formats import render
from tenure.usage.recount import Recount, group_runs, recount
from tests.support.open_requests import NOON
from tests.support.usage import CONTRACT, FACTORS, billable_intervals, minute, session_between, uncut_window

ERA = Era(minute(-3), FACTORS)
CHUNK = 3
"""Sessions per chunk, instead of 1000."""
SECONDS = st.integers(-400, 700)


class IntervalStore:
    """Returns the billable intervals of sessions page by page, and counts the calls."""

    def __init__(self, sessions: Sequence[Any]) -> None:
        self._sessions = sessions
        self.calls = 0

    async def list_intervals(self, window: Window, after: str | None, limit: int) -> Sequence[BillableInterval]:
        self.calls += 1
        return [each for each in billable_intervals(self._sessions, window) if each.session_id > (after or "")][:limit]


def touching(*ends: datetime, **given: Any) -> list[Window]:
    """Adjacent windows between these instants, newest first, in the order in which the store lists them."""
    found = [
        replace(uncut_window(*span, ERA), window_id=number, **given) for number, span in enumerate(pairwise(ends), 1)
    ]
    return found[::-1]


def recounted_alone(sessions: Sequence[Any], window: Window) -> Recount:
    """Returns the expected recount of one window, computed without the code under test."""
    bounds, digests = [], []
    intervals = billable_intervals(sessions, window)
    for some in (intervals[first : first + CHUNK] for first in range(0, len(intervals), CHUNK)):
        rendered = render("tenure", window, some)
        bounds.append(ChunkBounds(some[0].session_id, some[-1].session_id, len(some), rendered.usage_millionths))
        digests.append(None if window.contract is None else sha256(rendered.body).digest())
    return Recount(bounds, digests)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_MAX", CHUNK)
    monkeypatch.setattr(module, "PAGE", 5)


@given(
    spans=st.lists(st.tuples(SECONDS, st.integers(1, 900), st.booleans(), st.sampled_from([1, 2, 3])), max_size=20),
    cuts=st.lists(st.integers(0, 600), min_size=2, max_size=8, unique=True),
    is_sent=st.booleans(),
)
async def test_recount_of_run_equals_recount_of_each_window(
    spans: list[tuple[int, int, bool, int]], cuts: list[int], *, is_sent: bool
) -> None:
    sessions = [
        session_between(minute(0, starts), minute(0, starts + length), closed=closed, kind=kind)
        for starts, length, closed, kind in spans
    ]
    run = touching(*(minute(0, second) for second in sorted(cuts)), contract=CONTRACT if is_sent else None)
    store: Any = IntervalStore(sessions)
    assert await recount(store, run) == [recounted_alone(sessions, window) for window in run]


async def test_recount_is_exact_at_window_boundaries() -> None:
    ends = [minute(number) for number in range(4)]
    edges = [border + MICROSECOND * off for border in ends[1:3] for off in (-1, 0, 1)]
    sessions = [session_between(one, other) for one in edges for other in edges if one < other]
    store: Any = IntervalStore(sessions)
    run = touching(*ends, contract=CONTRACT)
    assert await recount(store, run) == [recounted_alone(sessions, window) for window in run]


async def test_recount_uses_contract_of_each_window() -> None:
    sessions = [session_between(NOON, minute(100))]
    store: Any = IntervalStore(sessions)
    newest, middle, oldest = touching(NOON, minute(1), minute(2), minute(3), contract=CONTRACT)
    run = [newest, replace(middle, contract=None), replace(oldest, contract=replace(CONTRACT, format="cloudevents"))]
    found = await recount(store, run)
    bodies = [
        render("tenure", run[0], billable_intervals(sessions, run[0])),
        render("cloudevents", run[2], billable_intervals(sessions, run[2])),
    ]
    digests = [sha256(rendered.body).digest() for rendered in bodies]
    assert [counted.digests for counted in found] == [[digests[0]], [None], [digests[1]]]


async def test_recount_reads_each_session_once_per_run() -> None:
    sessions = [session_between(NOON, minute(100)) for _ in range(4)]
    store: Any = IntervalStore(sessions)
    counted = await recount(store, touching(*(minute(number) for number in range(61))))
    assert (len(counted), store.calls) == (60, 2)


@pytest.mark.parametrize("name", ["cloudevents", "unknown"])
async def test_recount_computes_digest_for_known_formats_only(name: str) -> None:
    sessions = [session_between(NOON, minute(100))]
    store: Any = IntervalStore(sessions)
    (window,) = touching(NOON, minute(1), contract=replace(CONTRACT, format=name))
    (counted,) = await recount(store, [window])
    known = name != "unknown"
    body = render(name, window, billable_intervals(sessions, window)).body if known else b""
    assert counted == Recount(recounted_alone(sessions, window).bounds, [sha256(body).digest() if known else None])


# Grouping windows into runs


def divided_windows(*numbers: int, sessions: int = 1) -> list[Window]:
    return [replace(window, sessions=sessions) for window in touching(*map(minute, numbers))]


def test_runs_contain_only_adjacent_windows() -> None:
    newer, older = divided_windows(5, 6, 7), divided_windows(0, 1, 2, 4)
    assert list(group_runs([*newer, *older])) == [newer, older]


def test_runs_contain_only_windows_of_one_era() -> None:
    *newer, oldest = divided_windows(0, 1, 2, 3)
    other = replace(oldest, era=Era(NOON, (7, 8, 9)))
    assert list(group_runs([*newer, other])) == [newer, [other]]


def test_runs_are_limited_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUFFERED_MAX", 5)
    windows = divided_windows(0, 1, 2, 3, 4, 5, sessions=2)
    assert list(map(len, group_runs(windows))) == [2, 2, 1]
    large = divided_windows(0, 1, 2, sessions=CHUNK_MAX)
    assert list(map(len, group_runs(large))) == [1, 1]


def test_no_windows_give_no_runs() -> None:
    assert list(group_runs([])) == []


def test_day_of_small_installation_is_one_run() -> None:
    day = [replace(window, sessions=100) for window in touching(*(NOON + timedelta(minutes=n) for n in range(1441)))]
    assert list(map(len, group_runs(day))) == [1440]
