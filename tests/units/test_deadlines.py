"""The arithmetic of deadlines."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.deadlines import as_recorded, earliest, heartbeat_microseconds, opened
from tenure.domain.sessions import CloseReason, Limits, State
from tests.support.open_requests import NOON, SECOND, request

TERM = timedelta(days=30)
lengths = st.none() | st.integers(1, 60 * 86_400 * SECOND)


@given(lease=lengths, idle=lengths, heartbeat=st.integers(0, 10**13), activity=st.integers(0, 10**13))
def test_deadline_is_earliest_of_all_limits(lease: int | None, idle: int | None, heartbeat: int, activity: int) -> None:
    last_heartbeat_at = NOON + timedelta(microseconds=heartbeat)
    last_activity_at = NOON + timedelta(microseconds=activity)
    candidates = {CloseReason.EXPIRED: NOON + TERM}
    if lease is not None:
        candidates[CloseReason.LEASE_EXPIRED] = last_heartbeat_at + timedelta(microseconds=lease)
    if idle is not None:
        candidates[CloseReason.IDLE_TIMEOUT] = last_activity_at + timedelta(microseconds=idle)
    deadline_at, reason = earliest(NOON + TERM, last_heartbeat_at, lease, last_activity_at, idle)
    assert deadline_at == min(candidates.values()) == candidates[reason]


def test_session_is_closed_from_instant_of_its_deadline() -> None:
    session = opened(request(lease_microseconds=5 * SECOND), Limits(TERM), NOON)
    deadline = NOON + timedelta(seconds=5)
    assert as_recorded(session, deadline - timedelta(microseconds=1)) is session
    closed = as_recorded(session, deadline)
    assert (closed.state, closed.closed_at, closed.close_reason, closed.modified_at, closed.is_active) == (
        State.CLOSED,
        deadline,
        CloseReason.LEASE_EXPIRED,
        deadline,
        False,
    )
    assert as_recorded(closed, deadline + TERM) is closed


@pytest.mark.parametrize(
    ("lease", "configured", "interval"),
    [(None, 0, None), (None, 7, None), (60, 0, 5), (5, 0, 1), (12, 0, 1), (30, 0, 2), (86_400, 0, 7200), (60, 7, 7)],
)
def test_heartbeat_interval_is_configured_or_one_twelfth_of_lease_in_whole_seconds(
    lease: int | None, configured: int, interval: int | None
) -> None:
    expected = None if interval is None else interval * SECOND
    assert heartbeat_microseconds(None if lease is None else lease * SECOND, configured * SECOND) == expected
