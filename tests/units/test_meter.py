"""The arithmetic of usage: the usage of a session is rounded once per era, wherever the windows are cut."""

from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.meter import PERIOD_MICROSECONDS, decimal_text, usage_between, usage_of

ONE = 1_000_000
"""A factor of 1, or a usage of 1, in millionths."""
FACTOR_MAX = 1_000_000 * ONE
HALF = 1_296_000
"""The microseconds in which a session of factor 1 uses half a millionth."""
SPAN = 3 * PERIOD_MICROSECONDS


@pytest.mark.parametrize(
    ("microseconds", "rounded"),
    [
        (0, 0),
        (HALF - 1, 0),
        (HALF, 0),
        (HALF + 1, 1),
        (3 * HALF - 1, 1),
        (3 * HALF, 2),
        (3 * HALF + 1, 2),
        (5 * HALF, 2),
        (5 * HALF + 1, 3),
        (PERIOD_MICROSECONDS, ONE),
        (PERIOD_MICROSECONDS + HALF, ONE),
        (PERIOD_MICROSECONDS + 3 * HALF, ONE + 2),
    ],
)
def test_usage_rounds_half_to_even(microseconds: int, rounded: int) -> None:
    assert usage_of(microseconds, ONE) == rounded


factors = st.integers(0, FACTOR_MAX) | st.sampled_from([0, 1, ONE, 3 * ONE, FACTOR_MAX - 1, FACTOR_MAX])
instants = st.integers(0, SPAN) | st.integers(0, 200).map(lambda count: count * HALF)
"""Microseconds since the beginning of the first era. With factor 1, many of them give a usage that ends in exactly half
a millionth."""


@given(microseconds=instants | st.integers(0, 10**18), factor=factors)
def test_usage_is_factor_times_time_divided_by_thirty_days(microseconds: int, factor: int) -> None:
    """Python also rounds fractions half to even."""
    assert usage_of(microseconds, factor) == round(Fraction(factor * microseconds, PERIOD_MICROSECONDS))


@pytest.mark.parametrize(
    ("millionths", "text"),
    [
        (0, "0"),
        (1, "0.000001"),
        (10, "0.00001"),
        (500_000, "0.5"),
        (ONE, "1"),
        (ONE + 1, "1.000001"),
        (10 * ONE, "10"),
        (100 * ONE + 20_300, "100.0203"),
        (10**18, "1000000000000"),
        (10**18 + 1, "1000000000000.000001"),
        (-1, "-0.000001"),
        (-1_500_000, "-1.5"),
    ],
)
def test_decimal_text_has_no_exponent_and_no_trailing_zeros(millionths: int, text: str) -> None:
    assert decimal_text(millionths) == text


@given(millionths=st.integers(-(10**20), 10**20))
def test_decimal_text_equals_amount(millionths: int) -> None:
    text = decimal_text(millionths)
    assert Fraction(text) == Fraction(millionths, ONE)
    assert len(text.partition(".")[2]) <= 6


# Sums over windows.


class Interval(NamedTuple):
    started: int
    ended: int
    kind: int


class Era(NamedTuple):
    cuts: list[int]
    """From the beginning of the first window to the end of the last one."""
    factors: tuple[int, ...]


@st.composite
def keys(draw: st.DrawFn) -> list[Interval]:
    """The sessions of a key in sequence: each begins when the previous one ends, or later."""
    edges = sorted(draw(st.lists(instants, min_size=2, max_size=8, unique=True)))
    spans = list(pairwise(edges))
    is_live = draw(st.lists(st.booleans(), min_size=len(spans), max_size=len(spans)))
    kinds = draw(st.lists(st.integers(1, 3), min_size=len(spans), max_size=len(spans)))
    return [Interval(*span, kind) for span, kind, live in zip(spans, kinds, is_live, strict=True) if live]


@st.composite
def all_eras(draw: st.DrawFn) -> list[Era]:
    """Adjacent eras from 0 to SPAN."""
    cuts = sorted({0, SPAN, *draw(st.lists(instants, max_size=20))})
    inner = cuts[1:-1]
    changes = sorted(draw(st.sets(st.sampled_from(inner), max_size=3))) if inner else []
    return [
        Era([cut for cut in cuts if start <= cut <= end], tuple(draw(factors) for _ in range(3)))
        for start, end in pairwise([0, *changes, SPAN])
    ]


@given(sessions=st.lists(keys(), max_size=4), eras=all_eras())
def test_window_usage_sums_to_session_usage_rounded_once_per_era(
    sessions: list[list[Interval]], eras: list[Era]
) -> None:
    for session in (session for key in sessions for session in key):
        amounts = [amount for era in eras for amount in _billed(session, era)]
        assert sum(amounts) == sum(_whole(session, era) for era in eras)
        assert all(amount >= 0 for amount in amounts), amounts


def _billed(session: Interval, era: Era) -> list[int]:
    """Returns the usage of each window: the rounded running total at its end minus the one at its beginning."""
    totals = [_live_until(cut, session, era) for cut in era.cuts]
    return [usage_between(before, total, era.factors[session.kind - 1]) for before, total in pairwise(totals)]


def _live_until(cut: int, session: Interval, era: Era) -> int:
    return max(0, min(session.ended, cut) - max(session.started, era.cuts[0]))


def _whole(session: Interval, era: Era) -> int:
    """Returns the usage of the session in the era, rounded once."""
    microseconds = _live_until(era.cuts[-1], session, era)
    return round(Fraction(era.factors[session.kind - 1] * microseconds, PERIOD_MICROSECONDS))
