"""The same keys at once, executors that follow each other in mid-sentence, callers who cancel what is being sent."""

import asyncio
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

from tenure.clock import MICROSECOND
from tenure.errors import LeaseLost
from tenure.model.leases import Fence
from tenure.model.submissions import Accepted, BeginAttemptFound, SubmissionCommand, Submit
from tenure.store import Store
from tenure.store.store import SUBMISSIONS_KEPT
from tests.support.databases import Database
from tests.support.leases import held, sibling, table, taken
from tests.support.locks import WAIT_SECONDS, Holder, holding
from tests.support.submission_contest import ENOUGH, accept_keys, contest
from tests.support.submissions import (
    DELIVERED,
    EXECUTOR,
    accept,
    all_waiting,
    attempts,
    begin_one,
    changed,
    end,
    executor,
    ids_of,
    next_executor,
    one,
    place,
    submit,
)
from tests.support.wishes import NOON, SECOND

ROOT = Path(__file__).parents[2]
KEYS = 25
PROCESSES = 3
TRAIL = timedelta(seconds=5)
"""By which the executor's cursor trails."""


@asynccontextmanager
async def several(database: Database, count: int) -> AsyncIterator[Sequence[Store]]:
    """Stores of as many instances, with connections of their own."""
    stores = [sibling(database) for _ in range(count)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


# The same key at once


@pytest.mark.parametrize("rounds", [6, pytest.param(40, marks=pytest.mark.slow)])
async def test_of_many_who_bring_the_same_keys_at_once_one_makes_each_submission(
    database: Database, rounds: int, seed: int
) -> None:
    """Each in an order of its own. One of them brings another payload."""
    chance = random.Random(seed)
    async with several(database, 5) as stores:
        for number in range(rounds):
            payloads = [b"%d" % number] * 4 + [b"another"]
            told = await asyncio.gather(
                *(accept_keys(store, KEYS, payload, chance) for store, payload in zip(stores, payloads, strict=True))
            )
            assert wrong_answers(told, [payload == b"another" for payload in payloads]) == [], f"seed {seed}"
            assert len(await table(database, "submissions")) == KEYS
            await database.execute("DELETE FROM submissions")


def wrong_answers(told: Sequence[Sequence[Accepted]], brings_another: Sequence[bool]) -> list[str]:
    """For each key: one submission, made by one, and the same for those who brought what that one did."""
    wrong = []
    for number, answers in enumerate(zip(*told, strict=True)):
        makers = [other for answer, other in zip(answers, brings_another, strict=True) if answer.new]
        if len({answer.submission_id for answer in answers}) != 1 or len(makers) != 1:
            wrong.append(f"key {number} was made by {len(makers)}: {answers}")
        elif [answer.same for answer in answers] != [other == makers[0] for other in brings_another]:
            wrong.append(f"key {number} is not the same for those who brought the same: {answers}")
    return wrong


async def test_a_key_that_somebody_is_bringing_is_waited_for(postgres_database: Database) -> None:
    wish = submit(key="once", payload=b"the same")
    async with holding(postgres_database) as first:
        (answer,) = await postgres_database.store.accept_submissions([wish])
        await first._connection.execute(f"DELETE FROM submissions WHERE submission_id = '{answer.submission_id}'")
        second = asyncio.create_task(
            postgres_database.store.accept_submissions([submit(key="once", payload=b"the same")])
        )
        await first.somebody_waits()
        await first.rollback()
        assert await second == [Accepted(wish.submission_id, "pending", same=True, new=False)]


ACCEPT = """SELECT tenure_accept_submissions_1($1, $2, $3, $4, $5, $6, '{"{}"}')"""


async def bring(holder: Holder, wish: Submit) -> None:
    """A submission, which nobody else can see yet but everybody has to wait for."""
    values = (wish.submission_id, wish.gateway, wish.caller, wish.key, wish.payload, wish.digest)
    await holder._connection.execute(ACCEPT, *([value] for value in values))


async def test_batches_with_the_same_keys_do_not_wait_for_each_other_crosswise(postgres_database: Database) -> None:
    """In whatever order they bring them."""
    async with holding(postgres_database) as other:
        await bring(other, submit(key="a"))
        call = asyncio.create_task(postgres_database.store.accept_submissions([submit(key="b"), submit(key="a")]))
        await other.somebody_waits()
        await asyncio.wait_for(bring(other, submit(key="b")), WAIT_SECONDS)
        await other.commit()
        assert [answer.new for answer in await call] == [False, False]


async def test_what_is_pruned_while_its_key_is_brought_again_loses_no_wish(
    postgres_database: Database,
) -> None:
    """Between the statement that finds the key taken and the one that looks what is there."""
    store = postgres_database.store
    await store.accept_submissions([submit(key="b")])
    await postgres_database.execute(
        "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'"
    )
    await postgres_database.execute(
        "CREATE TRIGGER pause AFTER INSERT ON submissions FOR EACH STATEMENT EXECUTE FUNCTION pause()"
    )
    wishes = [submit(key=key) for key in "abc"]
    async with holding(postgres_database) as pruning:
        await pruning._connection.execute("SELECT pg_advisory_xact_lock(1)")
        call = asyncio.create_task(store.accept_submissions(wishes))
        await pruning.somebody_waits()
        await pruning._connection.execute("DELETE FROM submissions WHERE idempotency_key = 'b'")
        await pruning.commit()
        told = await call
    assert [answer.submission_id for answer in told] == [wish.submission_id for wish in wishes]
    missing = [each.submission_id for each in told if await store.get_submission(each.submission_id) is None]
    assert missing == [], "accepted and not there"


# Executors and callers at once


@pytest.mark.parametrize("seconds", [1.2, pytest.param(4.0, marks=pytest.mark.slow)])
async def test_whoever_leads_cancels_or_retries_no_submission_is_sent_twice_at_once(
    database: Database, seconds: float, seed: int
) -> None:
    submission_ids = await accept(database.store, KEYS)
    async with several(database, 3) as stores:
        did = await contest(stores, "holder", seconds, seed, submission_ids)
    told = f"seed {seed}: {did}"
    assert await broken_promises(database) == [], told
    assert all(did[what] >= count for what, count in ENOUGH.items()), f"too few to prove anything: {told}"


@pytest.mark.slow
async def test_processes_that_bring_the_same_keys_and_contest_the_lease_keep_all_promises(
    database: Database, seed: int
) -> None:
    found = await asyncio.gather(*(contesting(database.url, n, 4.0, seed) for n in range(PROCESSES)))
    told = [[Accepted(each[0], "", same=each[1], new=each[2]) for each in process["told"]] for process in found]
    did = sum((Counter(process["did"]) for process in found), Counter())
    assert len({tuple(answer.submission_id for answer in answers) for answers in told}) == 1, f"seed {seed}"
    assert [sum(answer.new for answer in answers) for answers in zip(*told, strict=True)] == [1] * KEYS, f"seed {seed}"
    assert await broken_promises(database) == [], f"seed {seed}: {did}"
    assert all(did[what] >= count for what, count in ENOUGH.items()), f"too few to prove anything, seed {seed}: {did}"


async def contesting(url: str, number: int, seconds: float, seed: int) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.support.submission_contest", url, f"process {number}"),
        *(str(value) for value in (KEYS, seconds, seed + 100 * number)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    *_log, told = output.splitlines()
    return json.loads(told)


async def broken_promises(database: Database) -> list[str]:
    """By the rows alone: numbers without gaps, one attempt at a time, each begun while its epoch lasted."""
    by_submission: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in await table(database, "submission_attempts"):
        by_submission[row["submission_id"]].append(row)
    stays = {row["epoch"]: row for row in await table(database, "lease_history")}
    broken = []
    for row in await table(database, "submissions"):
        rows = by_submission.pop(row["submission_id"], [])
        if [each["number"] for each in rows] != list(range(1, row["attempts"] + 1)):
            broken.append(f"gaps: {row['attempts']} attempts, numbered {[each['number'] for each in rows]}")
        if row["next_attempt_at"] is not None and rows and rows[-1]["ended_at"] is None:
            broken.append(f"due while it is sent: {dict(row)}")
        broken += [f"at once: {a} {b}" for a, b in pairwise(rows) if a["ended_at"] is None]
        broken += [f"at once: {a} {b}" for a, b in pairwise(rows) if a["ended_at"] and a["ended_at"] > b["started_at"]]
        broken += [f"{each} in the time of {stays[each['epoch']]}" for each in rows if not in_time(each, stays)]
    return broken + [f"of nothing: {rows}" for rows in by_submission.values()]


def in_time(attempt: Mapping[str, Any], stays: Mapping[int, Mapping[str, Any]]) -> bool:
    stay = stays[attempt["epoch"]]
    ended_at: datetime | None = stay["ended_at"]
    is_before_the_end = ended_at is None or attempt["started_at"] <= ended_at
    return stay["holder"] == attempt["holder"] and stay["acquired_at"] <= attempt["started_at"] and is_before_the_end


# What waits for what, on PostgreSQL


async def lock(holder: Holder, submission_id: str) -> None:
    await holder._connection.execute("SELECT FROM submissions WHERE submission_id = $1 FOR UPDATE", submission_id)


async def as_executor(holder: Holder, fence: Fence, call: str, *arguments: object) -> None:
    """A fenced write, which nobody else can see yet."""
    numbers = ", ".join(f"${number}" for number in range(1, 4 + len(arguments)))
    await holder._connection.execute(f"SELECT {call}({numbers})", *astuple(fence), *arguments)


async def test_a_begin_does_not_wait_for_what_somebody_is_changing(postgres_database: Database) -> None:
    free, locked = await accept(postgres_database.store, 2)
    fence = await executor(postgres_database.store)
    async with holding(postgres_database) as caller:
        await lock(caller, locked)
        told = await asyncio.wait_for(postgres_database.store.begin_attempts(fence, [locked, free]), WAIT_SECONDS)
    found = {each.submission_id: each.found for each in told.attempts}
    assert found == {free: BeginAttemptFound.BEGUN, locked: BeginAttemptFound.HELD}
    assert await attempts(postgres_database, locked) == []


async def test_a_cancelling_that_waited_for_a_begin_leaves_the_attempt_open(postgres_database: Database) -> None:
    (submission_id,) = await accept(postgres_database.store)
    fence = await executor(postgres_database.store)
    async with holding(postgres_database) as beginning:
        await as_executor(beginning, fence, "tenure_begin_attempts_1", [submission_id])
        call = asyncio.create_task(
            postgres_database.store.command_submissions(SubmissionCommand.CANCEL, [submission_id])
        )
        await beginning.somebody_waits()
        await beginning.commit()
        assert await call == {submission_id: True}
    assert (await one(postgres_database, submission_id)).state == "cancelled"
    (begun,) = await attempts(postgres_database, submission_id)
    assert begun.ended_at is None


async def test_a_retry_that_waited_for_a_begin_makes_nothing_due_beside_it(postgres_database: Database) -> None:
    (submission_id,) = await accept(postgres_database.store)
    fence = await executor(postgres_database.store)
    async with holding(postgres_database) as beginning:
        await as_executor(beginning, fence, "tenure_begin_attempts_1", [submission_id])
        call = asyncio.create_task(
            postgres_database.store.command_submissions(SubmissionCommand.RETRY, [submission_id])
        )
        await beginning.somebody_waits()
        await beginning.commit()
        await call
    assert (await one(postgres_database, submission_id)).next_attempt_at is None


async def test_a_finish_that_waited_for_a_cancelling_leaves_it_cancelled(postgres_database: Database) -> None:
    (submission_id,) = await accept(postgres_database.store)
    fence = await executor(postgres_database.store)
    await begin_one(postgres_database.store, fence, submission_id)
    async with holding(postgres_database) as caller:
        await caller._connection.execute("SELECT tenure_command_submissions_1('cancel', $1)", [submission_id])
        call = asyncio.create_task(postgres_database.store.finish_attempts(fence, [end(submission_id)]))
        await caller.somebody_waits()
        await caller.commit()
        (moved,) = await call
    assert (moved.state, moved.next_attempt_at) == ("cancelled", None)


async def test_a_closing_that_waited_leaves_alone_what_was_begun_meanwhile(postgres_database: Database) -> None:
    """A repetition after a lost answer, whose first call is carried out before it, and whose caller goes on."""
    (submission_id,) = await accept(postgres_database.store)
    await begin_one(postgres_database.store, await executor(postgres_database.store), submission_id)
    fence = await next_executor(postgres_database.store)
    async with holding(postgres_database) as first:
        await lock(first, submission_id)
        call = asyncio.create_task(postgres_database.store.close_unknown(fence, 9))
        await first.somebody_waits()
        await as_executor(first, fence, "tenure_close_unknown_1", 9)
        await as_executor(first, fence, "tenure_begin_attempts_1", [submission_id])
        await first.commit()
        await call
    assert (await one(postgres_database, submission_id)).next_attempt_at is None, "due while it is sent"
    assert [each.ended_at is None for each in await attempts(postgres_database, submission_id)] == [False, True]


@pytest.mark.parametrize("what", ["finish", "cancel", "close"])
async def test_what_waited_for_a_submission_is_stamped_afterwards(postgres_database: Database, what: str) -> None:
    """The clock is read once the row is locked."""
    store = postgres_database.store
    (submission_id,) = await accept(store)
    fence = await executor(store)
    await begin_one(store, fence, submission_id)
    fence = await next_executor(store) if what == "close" else fence
    calls = {
        "finish": lambda: store.finish_attempts(fence, [end(submission_id)]),
        "cancel": lambda: store.command_submissions(SubmissionCommand.CANCEL, [submission_id]),
        "close": lambda: store.close_unknown(fence, 9),
    }
    async with holding(postgres_database) as caller:
        await lock(caller, submission_id)
        call = asyncio.ensure_future(calls[what]())
        await caller.somebody_waits()
        waited_until = await caller.now()
        await caller.commit()
        await call
    (last,) = await attempts(postgres_database, submission_id)
    stamp = (await one(postgres_database, submission_id)).ended_at if what == "cancel" else last.ended_at
    assert stamp is not None
    assert stamp > waited_until


async def test_pruning_does_not_wait_for_what_somebody_is_changing(postgres_database: Database) -> None:
    store = postgres_database.store
    await postgres_database.clock.set(NOON)
    free, locked = await accept(store, 2)
    await store.command_submissions(SubmissionCommand.CANCEL, [free, locked])
    await postgres_database.clock.set(NOON + 2 * SUBMISSIONS_KEPT)
    async with holding(postgres_database) as caller:
        await lock(caller, locked)
        pruned = await asyncio.wait_for(store.prune(await held(store, "job:prune"), 9), WAIT_SECONDS)
    assert pruned.submissions == 1
    assert (await one(postgres_database, locked)).state == "cancelled"


@pytest.mark.parametrize("what", ["begin", "finish"])
async def test_what_waited_for_the_next_acquire_is_refused(postgres_database: Database, what: str) -> None:
    store = postgres_database.store
    due, under_way = await accept(store, 2)
    fence = await executor(store)
    await begin_one(store, fence, under_way)
    calls = {
        "begin": lambda: store.begin_attempts(fence, [due]),
        "finish": lambda: store.finish_attempts(fence, [end(under_way, outcome=DELIVERED)]),
    }
    before = await table(postgres_database, "submission_attempts")
    async with holding(postgres_database) as next_one:
        await next_one._connection.execute("SELECT tenure_resign_lease_1($1)", EXECUTOR)
        await next_one._connection.execute(
            "SELECT tenure_acquire_lease_1($1, 'one', gen_random_uuid(), 60000000)", EXECUTOR
        )
        late = asyncio.ensure_future(calls[what]())
        await next_one.somebody_waits()
        await next_one.commit()
        with pytest.raises(LeaseLost):
            await late
    assert await table(postgres_database, "submission_attempts") == before


async def test_the_next_acquire_waits_for_a_begin_that_is_under_way(postgres_database: Database) -> None:
    (submission_id,) = await accept(postgres_database.store)
    fence = await executor(postgres_database.store)
    async with holding(postgres_database) as beginning:
        await as_executor(beginning, fence, "tenure_begin_attempts_1", [submission_id])
        following = asyncio.create_task(next_executor(postgres_database.store))
        await beginning.somebody_waits()
        await beginning.commit()
        await postgres_database.store.close_unknown(await following, 9)
    (begun,) = await attempts(postgres_database, submission_id)
    assert begun.outcome == "unknown"


async def test_no_attempt_is_begun_at_an_instant_at_which_its_lease_has_run_out(postgres_database: Database) -> None:
    """By a clock that moves on by a second whenever it is read, as if the server were held up between two readings."""
    await postgres_database.clock.set(NOON)
    (submission_id,) = await accept(postgres_database.store)
    fence = await taken(postgres_database.store, EXECUTOR, "one", 60 * SECOND)
    expires_at = (await postgres_database.store.list_leases(None, 9))[0].expires_at
    await postgres_database.execute("CREATE SEQUENCE readings MINVALUE 0 START 0")
    await postgres_database.execute(
        "CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
        f"$$SELECT '{expires_at - MICROSECOND}'::timestamptz + nextval('readings') * interval '1 second'$$"
    )
    with suppress(LeaseLost):
        await postgres_database.store.begin_attempts(fence, [submission_id])
    late = [each for each in await attempts(postgres_database, submission_id) if each.started_at >= expires_at]
    assert late == []


# Late commits


@pytest.mark.slow
async def test_what_is_committed_seconds_late_is_found_by_a_cursor_that_trails(postgres_database: Database) -> None:
    """It stands before what was committed meanwhile. A cursor that does not trail never sees it."""
    store = postgres_database.store
    late = submit()
    async with holding(postgres_database) as slow:
        await bring(slow, late)
        await accept(store)
        (seen,) = await all_waiting(store, 9)
        await asyncio.sleep(1)
        page = await store.list_waiting(None, 9)
        await slow.commit()
    assert late.submission_id not in ids_of(await all_waiting(store, 9, place(seen)))
    trailing = changed(page.now - TRAIL, late.submission_id)
    assert late.submission_id in ids_of(await all_waiting(store, 9, trailing))
