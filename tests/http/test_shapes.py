"""Instants and durations in responses, at values that rarely occur in tests with a running clock."""

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from tenure.http.fields import instant, seconds_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, 0, UTC), "2026-01-02T03:04:05.000000Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 1, UTC), "2026-01-02T03:04:05.000001Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 100_000, UTC), "2026-01-02T03:04:05.100000Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 999_999, UTC), "2026-01-02T03:04:05.999999Z"),
        (datetime(999, 12, 31, 23, 59, 59, 0, UTC), "0999-12-31T23:59:59.000000Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 1, timezone(timedelta(0))), "2026-01-02T03:04:05.000001Z"),
    ],
)
def test_instant_has_six_decimals_and_z(value: datetime, text: str) -> None:
    assert msgspec.json.encode(instant(value)) == f'"{text}"'.encode()


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(None, "null"), (5_000_000, "5"), (1_500_000, "1.5"), (1, "1e-6"), (7_200_000_000, "7200")],
)
def test_seconds_are_integers_when_whole(microseconds: int | None, text: str) -> None:
    assert msgspec.json.encode(seconds_number(microseconds)).decode() == text
