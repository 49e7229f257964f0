"""The pure arithmetic of deadlines."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.deadlines import as_recorded, earliest, heartbeat_microseconds, opened
from tenure.model.sessions import CloseReason, Limits, State
from tests.support.wishes import NOON, SECOND, wish

TERM = timedelta(days=30)
lengths = st.none() | st.integers(1, 60 * 86_400 * SECOND)


@given(lease=lengths, idle=lengths, heartbeat=st.integers(0, 10**13), activity=st.integers(0, 10**13))
def test_the_deadline_is_the_earliest_limit(lease: int | None, idle: int | None, heartbeat: int, activity: int) -> None:
    last_heartbeat_at = NOON + timedelta(microseconds=heartbeat)
    last_activity_at = NOON + timedelta(microseconds=activity)
    candidates = {CloseReason.EXPIRED: NOON + TERM}
    if lease is not None:
        candidates[CloseReason.LEASE_EXPIRED] = last_heartbeat_at + timedelta(microseconds=lease)
    if idle is not None:
        candidates[CloseReason.IDLE_TIMEOUT] = last_activity_at + timedelta(microseconds=idle)
    deadline_at, reason = earliest(NOON + TERM, last_heartbeat_at, lease, last_activity_at, idle)
    assert deadline_at == min(candidates.values()) == candidates[reason]


def test_a_session_is_over_from_the_instant_of_its_deadline() -> None:
    session = opened(wish(lease_microseconds=5 * SECOND), Limits(TERM), NOON)
    deadline = NOON + timedelta(seconds=5)
    assert as_recorded(session, deadline - timedelta(microseconds=1)) is session
    over = as_recorded(session, deadline)
    assert (over.state, over.closed_at, over.close_reason, over.modified_at, over.is_active) == (
        State.CLOSED,
        deadline,
        CloseReason.LEASE_EXPIRED,
        deadline,
        False,
    )
    assert as_recorded(over, deadline + TERM) is over


@pytest.mark.parametrize(
    ("lease", "configured", "interval"),
    [(None, 0, None), (None, 7, None), (60, 0, 5), (5, 0, 1), (12, 0, 1), (30, 0, 2), (86_400, 0, 7200), (60, 7, 7)],
)
def test_the_heartbeat_interval_is_a_twelfth_of_the_lease_in_whole_seconds(
    lease: int | None, configured: int, interval: int | None
) -> None:
    expected = None if interval is None else interval * SECOND
    assert heartbeat_microseconds(None if lease is None else lease * SECOND, configured * SECOND) == expected
