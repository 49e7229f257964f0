"""Compares the store with the model of sessions, while the clock advances, stands still and is stepped back."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise, product
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

from tenure.clock import from_microseconds
from tenure.domain.capacities import Seats
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import (
    CloseReason,
    Heartbeat,
    Limits,
    OpenOutcome,
    OpenRequest,
    OpenResult,
    SessionFilter,
    SweepResult,
)
from tests.model.machines import MORE_EXAMPLES, StoreMachine, bound_to_database, run_examples
from tests.model.sessions import SessionModel
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import sweep_some
from tests.support.open_requests import NOON, SECOND, end_one, open_one, request, some_id
from tests.support.session_calls import (
    COUNTERS,
    EVICTING,
    attach_one,
    attach_to,
    heartbeat_one,
    stream_update,
    update_one,
)

LIMITS = Limits(timedelta(seconds=100))
ALL = 10_000
lengths = st.none() | st.sampled_from([5 * SECOND, 20 * SECOND, 100 * SECOND, 150 * SECOND])
users = st.integers(0, 3)
tenants = st.sampled_from([0, 0, 0, 1])
capacities = st.sampled_from([0, 0, 0, 0, 1])
steps = st.sampled_from([1, SECOND, 4 * SECOND, 4 * SECOND, 5 * SECOND, 5 * SECOND, 20 * SECOND, 80 * SECOND])
seats = st.tuples(
    st.none() | st.integers(0, 3) | st.integers(1, 3),
    st.sampled_from(["reject", EVICTING]),
    st.none() | st.none() | tenants,
)
counters = st.sampled_from([COUNTERS, replace(COUNTERS, chunks=0, errors_sent=1)])


class SessionMachine(StoreMachine):
    sessions = Bundle("sessions")

    @initialize(target=sessions, lease=lengths, idle=lengths, rules=st.none() | seats)
    def begin(self, lease: int | None, idle: int | None, rules: tuple[int | None, str, int | None] | None) -> Any:
        """Opens three sessions, because most steps of this state machine need an open session. `rules` are the rules of
        the first capacity (see `put_capacity`); None: the capacity has no rules.
        """
        self.now = NOON
        self.capacities = [some_id() for _ in range(2)]
        self.users = [some_id() for _ in range(4)]
        self.tenants = [some_id() for _ in range(2)]
        self.model = SessionModel(LIMITS)
        for table in ("sessions", "capacities"):
            self.run(self.database.execute(f"DELETE FROM {table}"))
        self._set_clock()
        opened = [self.open(user, 0, 0, 1 + user, lease, idle) for user in range(3)]
        if rules is not None:
            self.put_capacity(0, rules)
        return multiple(*opened)

    @rule(
        target=sessions,
        user=users,
        tenant=tenants,
        capacity=capacities,
        kind=st.integers(1, 3),
        lease=lengths,
        idle=lengths,
    )
    def open(self, user: int, tenant: int, capacity: int, kind: int, lease: int | None, idle: int | None) -> Any:
        one = self._open_request(user, tenant, capacity, kind, lease, idle)
        result = self.run(open_one(self.store, one, LIMITS))
        expected = self.model.open(one, self.now, result.closed_sessions)
        assert _comparable(result) == _comparable(expected)
        return one.session_id if expected.outcome in (OpenOutcome.CREATED, OpenOutcome.UPGRADED) else multiple()

    @rule(session=sessions, active=st.booleans())
    def heartbeat(self, session: str, active: bool) -> None:
        expected = self.model.heartbeat(Heartbeat(session, active, EVERYTHING), self.now)
        assert self.run(heartbeat_one(self.store, session, active=active)) == expected

    @rule(session=sessions, reason=st.sampled_from([CloseReason.TERMINATED, CloseReason.STOPPED]))
    def end(self, session: str, reason: CloseReason) -> None:
        expected = self.model.end(session, reason, self.now)
        assert self.run(end_one(self.store, session, reason)).session == expected

    @precondition(lambda self: any(at is not None and at <= self.now for at in self.model.check_at.values()))
    @rule()
    def sweep(self) -> None:
        expected = self.model.sweep(self.now)
        assert _counted(self.run(sweep_some(self.store, ALL))) == _counted(expected)

    @rule(session=sessions, lease=lengths.filter(bool), idle=lengths.filter(bool))
    def attach(self, session: str, lease: int, idle: int) -> None:
        attach_request = attach_to(session, lease=lease, idle=idle, every=max(lease // 12, SECOND))
        expected = self.model.attach(attach_request, self.now)
        limits = {"lease": lease, "idle": idle, "every": attach_request.heartbeat_microseconds}
        assert self.run(attach_one(self.store, session, **limits)) == expected

    @rule(
        session=sessions,
        age=st.sampled_from([0, 0, 0, 1]),
        repeated=st.booleans(),
        active=st.booleans(),
        end=st.none() | st.sampled_from(["STOPPED", "FAILED", "IDLE_TIMEOUT"]),
        finished=st.booleans(),
        counted=counters,
    )
    def update_stream(
        self, session: str, age: int, repeated: bool, active: bool, end: str | None, finished: bool, counted: Any
    ) -> None:
        attachment = self.model.attachments[session] - age
        if attachment < 1:
            self.attach(session, 20 * SECOND, 100 * SECOND)
            attachment = self.model.attachments[session]
        if attachment < 1:
            return
        saves = self.model.saves[session, attachment]
        save = saves + (not repeated or not saves)
        values = {"attachment": attachment, "save": int(save), "active": active, "end": end, "counted": counted}
        values["finished"] = finished
        expected = self.model.update_stream(stream_update(session, **values), self.now)
        assert self.run(update_one(self.store, session, **values)) == expected

    @rule(capacity=capacities, rules=seats)
    def put_capacity(self, capacity: int, rules: tuple[int | None, str, int | None]) -> None:
        limit, when_full, tenant = rules
        put = Seats(limit, when_full, None if tenant is None else self.tenants[tenant])
        expected = self.model.put_capacity(self.capacities[capacity], put, self.now)
        assert self.run(self.store.put_capacity(self.capacities[capacity], put, EVERYTHING, ACTOR)) == expected

    @precondition(lambda self: self.model.capacities)
    @rule(capacity=capacities)
    def delete_capacity(self, capacity: int) -> None:
        expected = self.model.delete_capacity(self.capacities[capacity], self.now)
        assert self.run(self.store.delete_capacity(self.capacities[capacity], EVERYTHING, ACTOR)) == expected

    @rule(microseconds=steps)
    def wait(self, microseconds: int) -> None:
        self.now += timedelta(microseconds=microseconds)
        self._set_clock()

    @rule(microseconds=steps)
    def step_back(self, microseconds: int) -> None:
        self.now = max(NOON, self.now - timedelta(microseconds=microseconds))
        self._set_clock()

    @invariant()
    def reads_match_model(self) -> None:
        found = self.run(self.store.list_sessions(SessionFilter(), None, ALL, EVERYTHING))
        assert {session.session_id: session for session in found.sessions} == self.model.read(self.now)

    @invariant()
    def counts_match_model(self) -> None:
        assert self.run(self.store.count_sessions(EVERYTHING)) == self.model.count(self.now)
        found = self.run(self.store.list_capacities(None, None, ALL, EVERYTHING))
        assert {capacity.capacity_id: capacity for capacity in found} == self.model.read_capacities(self.now)

    @invariant()
    def check_at_matches_model(self) -> None:
        found = self.run(self.database.rows("SELECT session_id, check_at FROM sessions"))
        assert {str(row["session_id"]): _instant(row["check_at"]) for row in found} == self.model.check_at

    @invariant()
    def sessions_of_a_key_never_overlap(self) -> None:
        for user, capacity in product(self.users, self.capacities):
            spans = sorted(
                (session.started_at, session.closed_at or session.term_ends_at)
                for session in self.model.recorded.values()
                if (session.user_object_id, session.capacity_id) == (user, capacity)
            )
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))

    def _open_request(
        self, user: int, tenant: int, capacity: int, kind: int, lease: int | None, idle: int | None
    ) -> OpenRequest:
        return request(
            user_object_id=self.users[user],
            tenant_object_id=self.tenants[tenant],
            capacity_id=self.capacities[capacity],
            kind=kind,
            lease_microseconds=lease,
            heartbeat_microseconds=lease and max(lease // 12, SECOND),
            idle_microseconds=idle,
        )


def _comparable(result: OpenResult) -> object:
    return result.outcome, result.session, Counter(result.closed_sessions)


def _counted(swept: SweepResult) -> object:
    return swept.looked_at, Counter(swept.closed_sessions)


def _instant(value: Any) -> datetime | None:
    return from_microseconds(value) if isinstance(value, int) else value


@pytest.fixture(params=["sqlite", "postgresql"])
def bound(request: pytest.FixtureRequest) -> Iterator[type[SessionMachine]]:
    yield from bound_to_database(SessionMachine, request)


def test_sessions_match_model(bound: type[SessionMachine]) -> None:
    run_examples(bound, examples=3)


@pytest.mark.slow
def test_sessions_match_model_with_more_examples(bound: type[SessionMachine]) -> None:
    run_examples(bound, examples=MORE_EXAMPLES)


# Hypothesis tries random samples. The test below covers every combination of term, lease and idle limit from LENGTHS.

LENGTHS = (10, 20, 30)
"""Seconds."""


@pytest.mark.parametrize("term", LENGTHS)
async def test_lease_idle_limit_and_term_match_model_in_every_combination(database: Database, term: int) -> None:
    """For every lease and idle limit, there is a session without heartbeats, one whose heartbeats report no activity,
    and one whose heartbeats report activity. The test reads all sessions every five seconds, and sweeps only once, at
    the end.
    """
    limits = Limits(timedelta(seconds=term))
    model = SessionModel(limits)
    await database.clock.set(NOON)
    kept: dict[str, list[str]] = {"silent": [], "idle": [], "active": []}
    for lease, idle, client_activity in product((None, *LENGTHS), (None, *LENGTHS), kept):
        one = request(
            lease_microseconds=lease and lease * SECOND,
            heartbeat_microseconds=lease and SECOND,
            idle_microseconds=idle and idle * SECOND,
        )
        result = await open_one(database.store, one, limits)
        assert _comparable(result) == _comparable(model.open(one, NOON, ()))
        kept[client_activity].append(one.session_id)
    for second in range(5, 45, 5):
        await _read_and_renew(database, model, NOON + timedelta(seconds=second), kept)
    assert _counted(await sweep_some(database.store, ALL)) == _counted(model.sweep(NOON + timedelta(seconds=40)))
    found = await database.store.list_sessions(SessionFilter(active=False), None, ALL, EVERYTHING)
    assert {session.session_id: session for session in found.sessions} == model.recorded


async def _read_and_renew(database: Database, model: SessionModel, now: datetime, kept: dict[str, list[str]]) -> None:
    await database.clock.set(now)
    found = await database.store.list_sessions(SessionFilter(), None, ALL, EVERYTHING)
    assert {session.session_id: session for session in found.sessions} == model.read(now)
    heartbeats = [
        Heartbeat(one, client_activity == "active", EVERYTHING)
        for client_activity in ("idle", "active")
        for one in kept[client_activity]
    ]
    results = await database.store.heartbeat(heartbeats)
    assert results == [model.heartbeat(heartbeat, now) for heartbeat in heartbeats]
