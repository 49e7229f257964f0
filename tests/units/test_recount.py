"""Many windows counted at once come to what each would have come to by itself."""

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
from tenure.model.usage import CHUNK_MAX, Era, Life, Piece, Window
from tenure.usage import recount as module
from tenure.usage.formats import render
from tenure.usage.recount import Recount, recount, runs_of
from tests.support.usage import CONTRACT, FACTORS, lived, lives_of, minute, some_window
from tests.support.wishes import NOON

ERA = Era(minute(-3), FACTORS)
CHUNK = 3
"""Sessions, instead of a thousand."""
SECONDS = st.integers(-400, 700)


class Lives:
    """What lived, page by page; it counts how often it was asked."""

    def __init__(self, made: Sequence[Any]) -> None:
        self._made = made
        self.asked = 0

    async def list_lives(self, window: Window, after: str | None, limit: int) -> Sequence[Life]:
        self.asked += 1
        return [life for life in lives_of(self._made, window) if life.session_id > (after or "")][:limit]


def touching(*ends: datetime, **given: Any) -> list[Window]:
    """Newest first, as windows are listed."""
    found = [
        replace(some_window(*span, ERA), window_id=number, **given) for number, span in enumerate(pairwise(ends), 1)
    ]
    return found[::-1]


def alone(made: Sequence[Any], window: Window) -> Recount:
    pieces, digests = [], []
    lives = lives_of(made, window)
    for some in (lives[first : first + CHUNK] for first in range(0, len(lives), CHUNK)):
        rendered = render("tenure", window, some)
        pieces.append(Piece(some[0].session_id, some[-1].session_id, len(some), rendered.usage_millionths))
        digests.append(None if window.contract is None else sha256(rendered.body).digest())
    return Recount(pieces, digests)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_MAX", CHUNK)
    monkeypatch.setattr(module, "PAGE", 5)


@given(
    spans=st.lists(st.tuples(SECONDS, st.integers(1, 900), st.booleans(), st.sampled_from([1, 2, 3])), max_size=20),
    cuts=st.lists(st.integers(0, 600), min_size=2, max_size=8, unique=True),
    is_sent=st.booleans(),
)
async def test_comes_to_the_same_as_each_window_alone(
    spans: list[tuple[int, int, bool, int]], cuts: list[int], *, is_sent: bool
) -> None:
    made = [
        lived(minute(0, starts), minute(0, starts + length), closed=closed, kind=kind)
        for starts, length, closed, kind in spans
    ]
    run = touching(*(minute(0, second) for second in sorted(cuts)), contract=CONTRACT if is_sent else None)
    store: Any = Lives(made)
    assert await recount(store, run) == [alone(made, window) for window in run]


async def test_begins_and_ends_at_borders_to_the_microsecond() -> None:
    ends = [minute(number) for number in range(4)]
    edges = [border + MICROSECOND * off for border in ends[1:3] for off in (-1, 0, 1)]
    made = [lived(one, other) for one in edges for other in edges if one < other]
    store: Any = Lives(made)
    run = touching(*ends, contract=CONTRACT)
    assert await recount(store, run) == [alone(made, window) for window in run]


async def test_windows_of_a_run_keep_their_own_installation_and_contract() -> None:
    made = [lived(NOON, minute(100))]
    store: Any = Lives(made)
    newest, middle, oldest = touching(NOON, minute(1), minute(2), minute(3), contract=CONTRACT)
    run = [newest, replace(middle, contract=None), replace(oldest, contract=replace(CONTRACT, format="cloudevents"))]
    found = await recount(store, run)
    bodies = [render("tenure", run[0], lives_of(made, run[0])), render("cloudevents", run[2], lives_of(made, run[2]))]
    digests = [sha256(rendered.body).digest() for rendered in bodies]
    assert [counted.digests for counted in found] == [[digests[0]], [None], [digests[1]]]


async def test_reads_each_session_once_and_not_for_each_window() -> None:
    made = [lived(NOON, minute(100)) for _ in range(4)]
    store: Any = Lives(made)
    counted = await recount(store, touching(*(minute(number) for number in range(61))))
    assert (len(counted), store.asked) == (60, 2)


@pytest.mark.parametrize("name", ["cloudevents", "of-tomorrow"])
async def test_knows_what_was_sent_in_any_format_that_is_known(name: str) -> None:
    made = [lived(NOON, minute(100))]
    store: Any = Lives(made)
    (window,) = touching(NOON, minute(1), contract=replace(CONTRACT, format=name))
    (counted,) = await recount(store, [window])
    known = name != "of-tomorrow"
    body = render(name, window, lives_of(made, window)).body if known else b""
    assert counted == Recount(alone(made, window).pieces, [sha256(body).digest() if known else None])


# Which are counted at once


def divided(*numbers: int, sessions: int = 1) -> list[Window]:
    return [replace(window, sessions=sessions) for window in touching(*map(minute, numbers))]


def test_those_that_touch() -> None:
    newer, older = divided(5, 6, 7), divided(0, 1, 2, 4)
    assert list(runs_of([*newer, *older])) == [newer, older]


def test_those_of_an_era() -> None:
    *newer, oldest = divided(0, 1, 2, 3)
    other = replace(oldest, era=Era(NOON, (7, 8, 9)))
    assert list(runs_of([*newer, other])) == [newer, [other]]


def test_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 5)
    windows = divided(0, 1, 2, 3, 4, 5, sessions=2)
    assert list(map(len, runs_of(windows))) == [2, 2, 1]
    large = divided(0, 1, 2, sessions=CHUNK_MAX)
    assert list(map(len, runs_of(large))) == [1, 1]


def test_none_of_none() -> None:
    assert list(runs_of([])) == []


def test_a_day_of_a_small_installation() -> None:
    day = [replace(window, sessions=100) for window in touching(*(NOON + timedelta(minutes=n) for n in range(1441)))]
    assert list(map(len, runs_of(day))) == [1440]
