"""The store and the model side by side, with a clock that runs, stands and is stepped back."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tenure.model import CloseReason, Limits, Open, Outcome, SessionFilter
from tests.model.sessions import SessionModel
from tests.support.databases import Database
from tests.support.wishes import NOON, SECOND, open_one, some_id, wish

LIMITS = Limits(timedelta(seconds=100))
lengths = st.none() | st.sampled_from([5 * SECOND, 20 * SECOND, 100 * SECOND, 150 * SECOND])
users = st.integers(0, 2)
tenants = st.sampled_from([0, 0, 0, 1])
steps = st.sampled_from([0, 1, 4 * SECOND, 5 * SECOND, 20 * SECOND, 100 * SECOND])


class SessionMachine(RuleBasedStateMachine):
    """Bound to a database by the test. Every run has a capacity of its own, so that runs need not clean up."""

    database: Database
    run: Callable[..., object]

    sessions = Bundle("sessions")

    @initialize()
    def begin(self) -> None:
        self.now: datetime = NOON
        self.capacity = some_id()
        self.users = [some_id() for _ in range(3)]
        self.tenants = [some_id() for _ in range(2)]
        self.model = SessionModel(LIMITS)
        self._set_clock()

    @rule(target=sessions, user=users, tenant=tenants, kind=st.integers(1, 3), lease=lengths, idle=lengths)
    def open(self, user: int, tenant: int, kind: int, lease: int | None, idle: int | None) -> str | None:
        one = self._wish(user, tenant, kind, lease, idle)
        expected = self.model.open(one, self.now)
        answer = self.run(open_one(self.database.store, one, LIMITS))
        assert answer == expected
        return one.session_id if expected.outcome in (Outcome.CREATED, Outcome.UPGRADED) else None

    @rule(session=consumes(sessions), reason=st.sampled_from([CloseReason.TERMINATED, CloseReason.STOPPED]))
    def end(self, session: str | None, reason: CloseReason) -> None:
        if session is None:
            return
        expected = self.model.end(session, reason, self.now)
        ended = self.run(self.database.store.end_session(session, reason))
        assert ended.session == expected  # type: ignore[attr-defined]

    @rule(microseconds=steps)
    def wait(self, microseconds: int) -> None:
        self.now += timedelta(microseconds=microseconds)
        self._set_clock()

    @rule(microseconds=steps)
    def step_back(self, microseconds: int) -> None:
        self.now = max(NOON, self.now - timedelta(microseconds=microseconds))
        self._set_clock()

    @invariant()
    def reads_as_the_model_says(self) -> None:
        criteria = SessionFilter(capacity=self.capacity)
        found = self.run(self.database.store.list_sessions(criteria, None, 1000))
        assert {session.session_id: session for session in found} == self.model.read(self.now)  # type: ignore[attr-defined]

    @invariant()
    def sessions_of_a_key_never_overlap(self) -> None:
        for user in self.users:
            spans = sorted(
                (session.started_at, session.closed_at or session.term_ends_at)
                for session in self.model.recorded.values()
                if session.user_object_id == user
            )
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))

    def _wish(self, user: int, tenant: int, kind: int, lease: int | None, idle: int | None) -> Open:
        return wish(
            user_object_id=self.users[user],
            tenant_object_id=self.tenants[tenant],
            capacity_id=self.capacity,
            kind=kind,
            lease_microseconds=lease,
            heartbeat_microseconds=lease and max(lease // 12, SECOND),
            idle_microseconds=idle,
        )

    def _set_clock(self) -> None:
        self.run(self.database.clock.set(self.now))


@pytest.fixture(params=["sqlite", "postgresql"])
def bound(request: pytest.FixtureRequest) -> Iterator[type[SessionMachine]]:
    """A state machine runs synchronously, so its database lives on a loop of its own."""
    with asyncio.Runner() as runner:
        database = runner.run(request.getfixturevalue(f"make_{request.param}")())

        class Bound(SessionMachine):
            pass

        Bound.database = database
        Bound.run = staticmethod(runner.run)
        yield Bound
        runner.run(database.close())


def test_the_store_does_what_the_model_does(bound: type[SessionMachine]) -> None:
    run_state_machine_as_test(
        bound,
        settings=settings(
            max_examples=30,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
