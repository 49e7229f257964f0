"""The history of a session, on every engine."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from tenure.domain.history import Fact, View
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.sessions import CloseReason
from tests.support.databases import Database
from tests.support.histories import ALL, end_in_every_way, expected_facts, read_facts, summary
from tests.support.leases import all_tables
from tests.support.open_requests import some_id
from tests.support.sessions import open_new_session, read_session
from tests.support.submissions import DELIVERED, executor_fence, make_attempt
from tests.support.usage import CONTRACT, chunk_all, cut, minute

pytestmark = pytest.mark.usefixtures("installed")


def named(facts: Sequence[Fact], name: str) -> list[Fact]:
    return [fact for fact in facts if fact.fact == name]


async def test_read_history__matches_tables_for_every_end(database: Database) -> None:
    ids = await end_in_every_way(database)
    assert {*CloseReason, "live", "unrecorded", "closing"} <= ids.keys()
    tables, now = await all_tables(database), minute(11, 30)
    for name, session_id in ids.items():
        facts = await read_facts(database, session_id)
        expected = expected_facts(tables, session_id, now)
        billed = named(facts, "billed")
        # If one `billed` fact covers several windows, the history has no facts about the attempts of these windows.
        collapsed = {
            window_id
            for fact in billed
            if fact.windows != 1
            for window_id in range(fact.window_id or 0, (fact.last_window_id or 0) + 1)
        }
        single = [each for each in expected.facts if not (isinstance(each[2], tuple) and each[2][0] in collapsed)]
        found = [summary(fact) for fact in facts if fact.fact != "billed"]
        assert sorted(map(repr, found)) == sorted(map(repr, single)), name
        used = {
            (fact.window_id, fact.last_window_id): sum(
                usage
                for window_id, usage in expected.windows.items()
                if (fact.window_id or 0) <= window_id <= (fact.last_window_id or 0)
            )
            for fact in billed
        }
        assert {(fact.window_id, fact.last_window_id): fact.usage_millionths for fact in billed} == used, name
        assert sum(fact.windows or 0 for fact in billed) == len(expected.windows), name
        assert [fact.at for fact in facts] == sorted(fact.at for fact in facts), name
        assert all(fact.text for fact in facts)
    seen = {fact.fact for session_id in ids.values() for fact in await read_facts(database, session_id)}
    assert {name.value for name in type(next(iter(seen)))} - {name.value for name in seen} == {"windowsNotKept"}


async def test_read_history__names_reason_and_actor_of_end(database: Database) -> None:
    ids = await end_in_every_way(database)
    for reason in CloseReason:
        (ended,) = named(await read_facts(database, ids[reason]), "ended")
        assert (ended.close_reason, ended.recorded) == (reason, True)
        assert ended.name == ("ops" if reason in ("STOPPED", "TERMINATED") else None)
        assert reason.value in ended.text
    (lapsed,) = named(await read_facts(database, ids["unrecorded"]), "ended")
    assert (lapsed.close_reason, lapsed.recorded) == ("LEASE_EXPIRED", False)
    assert "not recorded yet" in lapsed.text
    (evicted,) = named(await read_facts(database, ids["EVICTED"]), "evictedFor")
    assert evicted.session_ids == [ids["newcomer"]]
    chain = [await read_facts(database, ids[name]) for name in ("first", "second", "third")]
    assert [len(named(facts, "upgradedTo")) for facts in chain] == [1, 1, 0]
    assert named(chain[0], "upgradedTo")[0].next_session_id == ids["second"]
    assert named(chain[1], "upgradedTo")[0].next_session_id == ids["third"]
    assert named(chain[1], "upgradedFrom")[0].previous_session_id == ids["first"]


async def test_read_history__omits_facts_that_the_caller_may_not_read(database: Database) -> None:
    ids = await end_in_every_way(database)
    session_id = ids["TERMINATED"]
    bound = View(audit=False, usage=True, deliveries=False)
    facts = await read_facts(database, session_id, view=bound)
    assert named(facts, "ended")[0].name is None
    (billed,) = named(facts, "billed")
    assert (billed.windows, billed.delivery, billed.delivered_at) == (2, None, None)
    assert {fact.fact for fact in facts} == {"opened", "ended", "billed"}
    nothing = View(audit=False, usage=False, deliveries=False)
    assert [fact.fact for fact in await read_facts(database, session_id, view=nothing)] == ["opened", "ended"]
    session = await read_session(database, session_id)
    for scope in (Scope(some_id()), Scope(session.tenant_object_id, some_id())):
        assert await database.store.read_history(session_id, scope, ALL, None) is None
    assert await database.store.read_history(some_id(), EVERYTHING, ALL, None) is None
    # The session that took the seat of the evicted session belongs to another tenant. So a caller that is bound to the
    # tenant of the evicted session does not see it.
    evicted = await read_session(database, ids["EVICTED"])
    assert named(await read_facts(database, ids["EVICTED"], Scope(evicted.tenant_object_id)), "evictedFor") == []


async def test_read_history__returns_same_facts_if_read_in_several_sections(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await end_in_every_way(database)
    whole = {name: await read_facts(database, session_id) for name, session_id in ids.items()}
    monkeypatch.setattr("tenure.store.reads.history.RUNS_MAX", 2)
    for name, session_id in ids.items():
        in_sections = await read_facts(database, session_id)
        assert sorted(map(repr, in_sections)) == sorted(map(repr, whole[name]))


async def test_read_history__reports_every_span_of_windows_without_gateway(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await open_new_session(database, kind=2)
    without = {1, 2, 3, 5, 8, 9, 12}
    for number in range(1, 13):
        await cut(database, minute(number), contract=None if number in without else CONTRACT)
        chunks = await chunk_all(database)
        for chunk in chunks if number not in {4, 11} else ():
            if chunk.submission_id is not None:
                await make_attempt(database.store, await executor_fence(database.store), chunk.submission_id, DELIVERED)
    expected = [
        *((1, 3, "notSent"), (4, 4, "waiting"), (5, 5, "notSent"), (6, 7, "delivered"), (8, 9, "notSent")),
        *((10, 10, "delivered"), (11, 11, "waiting"), (12, 12, "notSent")),
    ]
    for limit in (10, 2, 1):
        monkeypatch.setattr("tenure.store.reads.history.UNSENT_SPANS_MAX", limit)
        for runs in (100, 3, 1):
            monkeypatch.setattr("tenure.store.reads.history.RUNS_MAX", runs)
            billed = named(await read_facts(database, session.session_id), "billed")
            assert [(fact.window_id, fact.last_window_id, fact.delivery) for fact in billed] == expected


async def test_read_history__splits_billed_windows_at_each_era(database: Database) -> None:
    session = await open_new_session(database, kind=2)
    for number in range(1, 7):
        factors = (1_000_000, 2_000_000, 3_000_000) if number < 4 else (4_000_000, 5_000_000, 6_000_000)
        await cut(database, minute(number), factors=factors)
        await chunk_all(database)
    billed = named(await read_facts(database, session.session_id), "billed")
    assert [(fact.window_id, fact.last_window_id, fact.delivery) for fact in billed] == [
        (1, 3, "notSent"),
        (4, 6, "notSent"),
    ]
    expected = expected_facts(await all_tables(database), session.session_id, minute(6))
    assert sum(fact.usage_millionths or 0 for fact in billed) == sum(expected.windows.values())


async def test_read_history__reports_span_whose_windows_were_pruned(database: Database) -> None:
    session = await open_new_session(database)
    for number in range(1, 4):
        await cut(database, minute(number), contract=CONTRACT)
        await chunk_all(database)
    await database.execute("DELETE FROM usage_windows WHERE window_id < 3")
    facts = await read_facts(database, session.session_id)
    (missing,) = named(facts, "windowsNotKept")
    assert (missing.from_at, missing.to_at) == (session.started_at, minute(2))
    assert [fact.window_id for fact in named(facts, "billed")] == [3]


async def test_read_history__shows_session_before_its_first_window(database: Database) -> None:
    session = await open_new_session(database)
    await database.clock.set(session.started_at + timedelta(seconds=2))
    facts = await read_facts(database, session.session_id)
    assert [fact.fact for fact in facts] == ["opened", "notBilledYet", "deadline"]
