"""The pure arithmetic of usage: rounded once per era, however it is cut."""

from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.meter import PERIOD_MICROSECONDS, decimal_text, usage_between, usage_of

ONE = 1_000_000
"""A factor of 1, or a usage of 1, in millionths."""
FACTOR_MAX = 1_000_000 * ONE
HALF = 1_296_000
"""Microseconds that a session of factor 1 lives for half a millionth."""
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
def test_a_half_is_rounded_to_what_is_even(microseconds: int, rounded: int) -> None:
    assert usage_of(microseconds, ONE) == rounded


factors = st.integers(0, FACTOR_MAX) | st.sampled_from([0, 1, ONE, 3 * ONE, FACTOR_MAX - 1, FACTOR_MAX])
instants = st.integers(0, SPAN) | st.integers(0, 200).map(lambda count: count * HALF)
"""Microseconds from the beginning; often such that amounts come to a half."""


@given(microseconds=instants | st.integers(0, 10**18), factor=factors)
def test_usage_is_factor_times_time_by_thirty_days(microseconds: int, factor: int) -> None:
    """Python rounds fractions half even, too."""
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
def test_an_amount_is_written_without_exponent_and_without_zeros_at_the_end(millionths: int, text: str) -> None:
    assert decimal_text(millionths) == text


@given(millionths=st.integers(-(10**20), 10**20))
def test_what_is_written_is_the_amount(millionths: int) -> None:
    text = decimal_text(millionths)
    assert Fraction(text) == Fraction(millionths, ONE)
    assert len(text.partition(".")[2]) <= 6


# Whatever is cut, and whenever: nothing is lost, and nothing is billed twice.


class Lived(NamedTuple):
    started: int
    ended: int
    kind: int


class Era(NamedTuple):
    cuts: list[int]
    """From its first window's beginning to its last one's end."""
    factors: tuple[int, ...]


@st.composite
def keys(draw: st.DrawFn) -> list[Lived]:
    """The sessions of a key, one after the other: upgraded at once, or ended or lapsed some time before the next."""
    edges = sorted(draw(st.lists(instants, min_size=2, max_size=8, unique=True)))
    spans = list(pairwise(edges))
    lived = draw(st.lists(st.booleans(), min_size=len(spans), max_size=len(spans)))
    kinds = draw(st.lists(st.integers(1, 3), min_size=len(spans), max_size=len(spans)))
    return [Lived(*span, kind) for span, kind, is_lived in zip(spans, kinds, lived, strict=True) if is_lived]


@st.composite
def all_eras(draw: st.DrawFn) -> list[Era]:
    """From the beginning to the end of everything."""
    cuts = sorted({0, SPAN, *draw(st.lists(instants, max_size=20))})
    inner = cuts[1:-1]
    changes = sorted(draw(st.sets(st.sampled_from(inner), max_size=3))) if inner else []
    return [
        Era([cut for cut in cuts if start <= cut <= end], tuple(draw(factors) for _ in range(3)))
        for start, end in pairwise([0, *changes, SPAN])
    ]


@given(sessions=st.lists(keys(), max_size=4), eras=all_eras())
def test_windows_add_up_to_what_was_lived_rounded_once_per_era(sessions: list[list[Lived]], eras: list[Era]) -> None:
    for session in (session for key in sessions for session in key):
        amounts = [amount for era in eras for amount in _billed(session, era)]
        assert sum(amounts) == sum(_whole(session, era) for era in eras)
        assert all(amount >= 0 for amount in amounts), amounts


def _billed(session: Lived, era: Era) -> list[int]:
    """As windows are: each from what was lived by its beginning and by its end."""
    lived = [_lived_by(cut, session, era) for cut in era.cuts]
    return [usage_between(before, total, era.factors[session.kind - 1]) for before, total in pairwise(lived)]


def _lived_by(cut: int, session: Lived, era: Era) -> int:
    return max(0, min(session.ended, cut) - max(session.started, era.cuts[0]))


def _whole(session: Lived, era: Era) -> int:
    lived = _lived_by(era.cuts[-1], session, era)
    return round(Fraction(era.factors[session.kind - 1] * lived, PERIOD_MICROSECONDS))
