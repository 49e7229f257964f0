"""Compares windows of the store with those of the model, while sessions open and end and the clock jumps forward and
back.

The model stores the contents of each window at the cut that ends the window. The store must return the same contents
then and at every later step, even after sessions of the window were renewed, upgraded, ended or swept, and even if the
clock was stepped back.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from msgspec.structs import replace

from tenure.clock import EPOCH
from tenure.domain.capacities import Seats
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Heartbeat, Limits, OpenOutcome, OpenRequest
from tenure.domain.usage import Factors, GroupBy, UsageSumQuery, Window
from tests.model.machines import MORE_EXAMPLES, StoreMachine, bound_to_database, run_examples
from tests.model.sessions import SessionModel
from tests.model.usage import UsageModel
from tests.support.audit_log import ACTOR
from tests.support.leases import sweep_some
from tests.support.open_requests import NOON, SECOND, end_one, open_one, request, some_id
from tests.support.session_calls import EVICTING, heartbeat_one
from tests.support.usage import ALL, emitter_fence, install, limit_chunks, rules, single_chunk
from tests.support.usage_marks import mark_usage, sum_without_marks

LIMITS = Limits(timedelta(days=3))
TABLES = ("sessions", "capacities", "usage_eras", "usage_windows", "usage_chunks", "usage_marks", "usage_mark_sums")
TABLES += ("leases", "lease_history")
MICROSECOND = timedelta(microseconds=1)
BEGIN = NOON.replace(microsecond=0)
"""A whole second, and an instant of the grid of cuts. The time between the start of a session and a cut can therefore
be an odd multiple of HALF. In this case, before rounding, the usage up to the cut ends in exactly half a millionth."""
CHUNK = 3
"""Sessions per chunk. The number is small, so that a window has several chunks."""
INTERVAL = 10 * SECOND
HALF = 1_296_000
"""Microseconds in which a session of factor 1 uses half a millionth."""

lengths = st.none() | st.sampled_from([5 * SECOND, 20 * SECOND, 100 * SECOND, 7_200 * SECOND])
steps = st.sampled_from([1, HALF, 3 * HALF, SECOND, 5 * SECOND, 10 * SECOND, 10 * SECOND, 100 * SECOND, 3_600 * SECOND])
jumps = steps | st.sampled_from([30_000 * SECOND, 100_000 * SECOND])
factors = st.sampled_from(
    [(1_000_000, 2_000_000, 3_000_000), (999_999_999_999, 0, 1), (333_333, 1_000_000_000_000, 500_000)]
)


class UsageMachine(StoreMachine):
    sessions = Bundle("sessions")

    @initialize(target=sessions, lease=lengths, idle=lengths, first=factors)
    def begin(self, lease: int | None, idle: int | None, first: Factors) -> Any:
        """Opens three sessions, because most rules of this state machine need an open session."""
        self.now = BEGIN
        self.users = [some_id() for _ in range(5)]
        self.tenant, self.capacities = some_id(), [some_id() for _ in range(2)]
        self.known = SessionModel(LIMITS)
        self.model = UsageModel(BEGIN)
        self.factors = first
        self.rendered: dict[int, Any] = {}
        for table in TABLES:
            self.run(self.database.execute(f"DELETE FROM {table}"))
        self.run(self.database.execute("UPDATE installation SET last_window_id = 0"))
        self.run(install(self.database, BEGIN))
        self._set_clock()
        opened = [self.open(user, 0, 1 + user, lease, idle) for user in range(3)]
        return multiple(*(session for session in opened if isinstance(session, str)))

    # Sessions

    @rule(
        target=sessions,
        user=st.integers(0, 4),
        capacity=st.sampled_from([0, 0, 0, 1]),
        kind=st.integers(1, 3),
        lease=lengths,
        idle=lengths,
    )
    def open(self, user: int, capacity: int, kind: int, lease: int | None, idle: int | None) -> Any:
        """The key may already have a live session, of the same or another kind."""
        one = self._open_request(user, capacity, kind, lease, idle)
        if self._reads_as_live_again(one):
            return multiple()
        answer = self.run(open_one(self.store, one, LIMITS))
        expected = self.known.open(one, self._write_now(), answer.closed_sessions)
        assert (answer.outcome, answer.session) == (expected.outcome, expected.session)
        return one.session_id if expected.outcome in (OpenOutcome.CREATED, OpenOutcome.UPGRADED) else multiple()

    @rule(session=sessions, active=st.booleans())
    def heartbeat(self, session: str, active: bool) -> None:
        expected = self.known.heartbeat(Heartbeat(session, active, EVERYTHING), self._write_now())
        assert self.run(heartbeat_one(self.store, session, active=active)) == expected

    @rule(session=sessions, reason=st.sampled_from([CloseReason.TERMINATED, CloseReason.STOPPED]))
    def end(self, session: str, reason: CloseReason) -> None:
        expected = self.known.end(session, reason, self._write_now())
        assert self.run(end_one(self.store, session, reason)).session == expected

    @precondition(lambda self: self.now >= self.model.last_cut_at)
    @rule()
    def expire(self) -> None:
        """Runs only if the clock is not behind the last cut. While the clock is behind, the sweeps of the two engines
        record different ends.
        """
        self.known.sweep(self.now)
        self.run(sweep_some(self.store, ALL))

    @rule(limit=st.none() | st.integers(1, 2))
    def put_capacity(self, limit: int | None) -> None:
        """Sets or removes the seat limit of the second capacity. If this capacity is full, an open evicts a session."""
        self.known.put_capacity(self.capacities[1], Seats(limit, EVICTING), self.now)
        self.run(self.store.put_capacity(self.capacities[1], Seats(limit, EVICTING), EVERYTHING, ACTOR))

    # Windows

    @rule(on_time=st.booleans())
    def cut(self, on_time: bool) -> None:
        """With `on_time`, first moves the clock to the next instant of the grid."""
        if on_time:
            interval = timedelta(microseconds=INTERVAL)
            self.now += (EPOCH - self.now) % interval
            self._set_clock()
        result = self.run(self._cut())
        recorded = self.known.recorded.values()
        assert result == self.model.cut(recorded, self.now, timedelta(microseconds=INTERVAL), self.factors)

    @rule(count=st.integers(1, 3), microseconds=st.sampled_from([0, 1, HALF, 5 * SECOND]))
    def cut_some(self, count: int, microseconds: int) -> None:
        """Cuts several times, as the job `emit-usage` does, with pauses of an interval or a little more."""
        for _ in range(count):
            self.now = self._write_now() + timedelta(microseconds=INTERVAL + microseconds)
            self._set_clock()
            self.cut(on_time=False)

    async def _cut(self) -> Any:
        return await self.store.cut_usage(await emitter_fence(self.store), rules(INTERVAL, self.factors), ALL)

    @rule(changed=factors)
    def change_factors(self, changed: Factors) -> None:
        self.factors = changed

    @rule(limit=st.integers(1, 2), pages=st.integers(1, 3))
    def divide(self, limit: int, pages: int) -> None:
        """Saves up to `pages` pages of at most `limit` chunks. Each page belongs to the window that is the oldest
        undivided one at that time.
        """
        for _ in range(pages):
            for left in self.run(self.store.list_undivided_windows(1)):
                bounds = self.run(self.store.divide_window(left.window, left.last_session_id, limit))
                complete = len(bounds) < limit
                fence = self.run(emitter_fence(self.store))
                save = self.store.save_chunks(fence, left.window.window_id, left.chunks + 1, bounds, complete=complete)
                self.run(save)

    @rule()
    def mark(self) -> None:
        """Writes all marks that are due, and deletes old ones. In this test, a mark is due every 20 seconds."""
        self.run(mark_usage(self.store))

    @rule(
        begins=st.integers(0, 99),
        ends=st.integers(0, 99),
        microseconds=st.sampled_from([-1, 0, 0, 0, 1, HALF]),
        group_by=st.sampled_from([None, GroupBy.TENANT, GroupBy.CAPACITY, GroupBy.KIND]),
        quick=st.booleans(),
    )
    def sum_equals_sum_without_marks(
        self, begins: int, ends: int, microseconds: int, group_by: GroupBy | None, quick: bool
    ) -> None:
        """The span begins at a mark, one microsecond before a mark, or up to HALF microseconds after a mark. It ends at
        a mark or now.
        """
        marks = [mark.at for mark in self.run(self.store.list_marks()).marks] or [BEGIN]
        from_at = marks[begins % len(marks)] + timedelta(microseconds=microseconds)
        to_at = [*marks, None][ends % (len(marks) + 1)]
        sum_query = UsageSumQuery(from_at=from_at, to_at=to_at, group_by=group_by, factors=self.factors, quick=quick)
        found = self.run(self.store.sum_usage(sum_query, None, ALL))
        same_span = replace(sum_query, from_at=found.from_at, to_at=found.to_at)
        assert found == self.run(sum_without_marks(self.store, same_span, None, ALL))

    # The clock

    @rule(microseconds=jumps)
    def wait(self, microseconds: int) -> None:
        self.now += timedelta(microseconds=microseconds)
        self._set_clock()

    @rule(microseconds=steps)
    def step_back(self, microseconds: int) -> None:
        self.now -= timedelta(microseconds=microseconds)
        self._set_clock()

    @rule(microseconds=st.sampled_from([1, SECOND, 15 * SECOND]))
    def step_behind_the_last_cut(self, microseconds: int) -> None:
        self.now = self.model.last_cut_at - timedelta(microseconds=microseconds)
        self._set_clock()

    # Invariants

    @invariant()
    def windows_match_model(self) -> None:
        found = self._windows()
        assert [window.window_id for window in found] == list(range(1, len(found) + 1))
        assert [(window.started_at, window.ended_at, window.era) for window in found] == [
            (window.started_at, window.ended_at, window.era) for window in self.model.windows
        ]

    @invariant()
    def contents_of_newest_windows_match_model(self) -> None:
        """`teardown` checks all windows."""
        for window in self._windows()[-2:]:
            self._check(window)

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        self.now = self._write_now() + timedelta(microseconds=INTERVAL)
        self._set_clock()
        self.cut(on_time=False)
        while self.run(self.store.list_undivided_windows(1)):
            self.divide(2, 3)
        for window in self._windows():
            self._check(window)
        self._check_sums()
        self.mark()
        for number, group_by in enumerate((None, GroupBy.CAPACITY, GroupBy.KIND)):
            self.sum_equals_sum_without_marks(number, 99 - number, number - 1, group_by, number == 1)
        assert self.model.billed() == self.model.whole(self.known.recorded.values())

    def _check(self, window: Window) -> None:
        expected = self.model.windows[window.window_id - 1]
        intervals = self.run(self.store.read_intervals(window, single_chunk(window)))
        assert {interval.session_id: interval for interval in intervals} == expected.intervals
        assert [interval.session_id for interval in intervals] == sorted(expected.intervals)
        assert self.rendered.setdefault(window.window_id, intervals) == intervals
        if window.chunked_at is not None:
            assert (window.sessions, window.usage_millionths) == (len(intervals), expected.usage_millionths)
            self._check_chunks(window)

    def _check_chunks(self, window: Window) -> None:
        _window, chunks = self.run(self.store.get_window(window.window_id))
        in_chunks = [self.run(self.store.read_intervals(window, chunk)) for chunk in chunks]
        assert [len(intervals) for intervals in in_chunks] == [chunk.sessions for chunk in chunks]
        assert all(0 < chunk.sessions <= CHUNK for chunk in chunks)
        assert [interval for intervals in in_chunks for interval in intervals] == self.rendered[window.window_id]

    def _check_sums(self) -> None:
        """Checks the sums up to the last cut, grouped by session."""
        sum_query = UsageSumQuery(
            from_at=BEGIN, to_at=self.model.last_cut_at, group_by=GroupBy.SESSION, factors=self.factors
        )
        sums = self.run(self.store.sum_usage(sum_query, None, ALL))
        by_session: dict[str, int] = {}
        for (session_id, _era), amount in self.model.billed().items():
            by_session[session_id] = by_session.get(session_id, 0) + amount
        assert {group.key: group.usage_millionths for group in sums.groups} == by_session
        assert all(group.sessions == 1 for group in sums.groups)

    def _windows(self) -> list[Window]:
        return list(reversed(self.run(self.store.list_windows(None, ALL))))

    def _write_now(self) -> Any:
        return self.model.write_now(self.now)

    def _reads_as_live_again(self, one: OpenRequest) -> bool:
        """Returns whether a session of the key had lapsed at the last cut, but the clock is before the deadline of the
        session. This test sends no open request in this case.
        """
        return any(
            session.closed_at is None and self.now < session.deadline_at <= self.model.last_cut_at
            for session in self.known.recorded.values()
            if (session.capacity_id, session.user_object_id) == one.key
        )

    def _open_request(self, user: int, capacity: int, kind: int, lease: int | None, idle: int | None) -> OpenRequest:
        return request(
            user_object_id=self.users[user],
            tenant_object_id=self.tenant,
            capacity_id=self.capacities[capacity],
            kind=kind,
            lease_microseconds=lease,
            heartbeat_microseconds=lease and max(lease // 12, SECOND),
            idle_microseconds=idle,
        )


@pytest.fixture(params=["sqlite", "postgresql"])
def bound(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[UsageMachine]]:
    limit_chunks(monkeypatch, CHUNK)
    monkeypatch.setattr("tenure.domain.usage._HOUR", timedelta(seconds=20))
    monkeypatch.setattr("tenure.domain.usage.HOURLY_MARKS_KEPT", timedelta(seconds=200))
    monkeypatch.setattr("tenure.store.reads.usage_sums.EDGE_SESSIONS_MAX", 1)
    yield from bound_to_database(UsageMachine, request)


def test_windows_match_model(bound: type[UsageMachine]) -> None:
    run_examples(bound, examples=6)


@pytest.mark.slow
def test_windows_match_model_with_more_examples(bound: type[UsageMachine]) -> None:
    run_examples(bound, examples=MORE_EXAMPLES)
