"""Concurrent accepts of the same idempotency keys, competing executors, and commands during attempts."""

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
from tenure.domain.leases import Fence
from tenure.domain.submissions import BeginAttemptOutcome, SubmissionCommand, SubmitRequest, SubmitResult
from tenure.errors import LeaseLost
from tenure.store.contract import Store
from tenure.store.limits import SUBMISSIONS_KEPT
from tests.support.audit_log import ACTOR_JSON, DRAFT_JSON, draft
from tests.support.databases import Database
from tests.support.leases import acquire_free_lease, hold_lease, read_table, sibling_store
from tests.support.locks import WAIT_SECONDS, Holder, holding
from tests.support.open_requests import NOON, SECOND
from tests.support.submission_contest import ENOUGH, accept_keys, contest
from tests.support.submissions import (
    DELIVERED,
    EXECUTOR,
    accept,
    attempt_end,
    begin_one,
    change_at,
    change_of,
    close_orphaned,
    executor_fence,
    ids_of,
    list_all_pending,
    next_executor_fence,
    read_attempts,
    read_submission,
    submit_request,
)

ROOT = Path(__file__).parents[2]
KEYS = 25
PROCESSES = 3
TRAIL = timedelta(seconds=5)
"""How far back before the previous refresh each refresh of the executor reads, because a submission may be committed
late."""


@asynccontextmanager
async def several(database: Database, count: int) -> AsyncIterator[Sequence[Store]]:
    """Stores of `count` instances, each with its own connections."""
    stores = [sibling_store(database) for _ in range(count)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


# Concurrent accepts of one key


async def test_concurrent_accepts_create_one_submission_per_key(database: Database, seed: int) -> None:
    """Each of five callers sends the keys in its own random order. One caller sends a different payload."""
    chance = random.Random(seed)
    async with several(database, 5) as stores:
        for number in range(10):
            payloads = [b"%d" % number] * 4 + [b"another"]
            results = await asyncio.gather(
                *(accept_keys(store, KEYS, payload, chance) for store, payload in zip(stores, payloads, strict=True))
            )
            assert wrong_results(results, [payload == b"another" for payload in payloads]) == [], f"seed {seed}"
            assert len(await read_table(database, "submissions")) == KEYS
            await database.execute("DELETE FROM submissions")


def wrong_results(results: Sequence[Sequence[SubmitResult]], has_other_payload: Sequence[bool]) -> list[str]:
    """Returns a text for each wrong key. A key is right if all callers got the same submission, exactly one of them
    created it, and `same` is true for exactly those callers whose payload equals the stored one.
    """
    wrong = []
    for number, of_key in enumerate(zip(*results, strict=True)):
        creators = [other for result, other in zip(of_key, has_other_payload, strict=True) if result.new]
        if len({result.submission_id for result in of_key}) != 1 or len(creators) != 1:
            wrong.append(f"key {number} was created by {len(creators)} callers: {of_key}")
        elif [result.same for result in of_key] != [other == creators[0] for other in has_other_payload]:
            wrong.append(f"key {number}: `same` does not match the payloads: {of_key}")
    return wrong


async def test_accept_waits_for_uncommitted_delete_of_same_key(postgres_database: Database) -> None:
    """The delete is rolled back, so the accept then finds the submission again."""
    request = submit_request(key="once", payload=b"the same")
    async with holding(postgres_database) as first:
        (answer,) = await postgres_database.store.accept_submissions([request])
        await first._connection.execute(f"DELETE FROM submissions WHERE submission_id = '{answer.submission_id}'")
        second = asyncio.create_task(
            postgres_database.store.accept_submissions([submit_request(key="once", payload=b"the same")])
        )
        await first.wait_for_blocked()
        await first.rollback()
        assert await second == [SubmitResult(request.submission_id, "pending", same=True, new=False)]


ACCEPT = """SELECT tenure_accept_submissions_1($1, $2, $3, $4, $5, $6, '{"{}"}', '{}', '{}')"""


async def insert(holder: Holder, request: SubmitRequest) -> None:
    """Accepts a submission without a commit: other accepts of its key wait for this transaction."""
    values = (request.submission_id, request.gateway, request.caller, request.key, request.payload, request.digest)
    await holder._connection.execute(ACCEPT, *([value] for value in values))


async def test_batches_with_same_keys_do_not_deadlock(postgres_database: Database) -> None:
    """A transaction accepts the keys a and b, one after the other. A batch contains them in the opposite order."""
    async with holding(postgres_database) as other:
        await insert(other, submit_request(key="a"))
        call = asyncio.create_task(
            postgres_database.store.accept_submissions([submit_request(key="b"), submit_request(key="a")])
        )
        await other.wait_for_blocked()
        await asyncio.wait_for(insert(other, submit_request(key="b")), WAIT_SECONDS)
        await other.commit()
        assert [answer.new for answer in await call] == [False, False]


async def test_accept_loses_no_request_when_its_key_is_pruned_concurrently(
    postgres_database: Database,
) -> None:
    """The INSERT of the accept finds that an old submission already has one of the keys. The old submission is deleted
    before the next statement of the accept reads it.
    """
    store = postgres_database.store
    await store.accept_submissions([submit_request(key="b")])
    await postgres_database.execute(
        "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'"
    )
    await postgres_database.execute(
        "CREATE TRIGGER pause AFTER INSERT ON submissions FOR EACH STATEMENT EXECUTE FUNCTION pause()"
    )
    requests = [submit_request(key=key) for key in "abc"]
    async with holding(postgres_database) as pruning:
        await pruning._connection.execute("SELECT pg_advisory_xact_lock(1)")
        call = asyncio.create_task(store.accept_submissions(requests))
        await pruning.wait_for_blocked()
        await pruning._connection.execute("DELETE FROM submissions WHERE idempotency_key = 'b'")
        await pruning.commit()
        results = await call
    assert [result.submission_id for result in results] == [request.submission_id for request in requests]
    missing = [each.submission_id for each in results if await store.get_submission(each.submission_id, None) is None]
    assert missing == [], "accepted, but not in the table"


# Competing executors and commands


async def test_competing_executors_never_send_submission_twice_concurrently(database: Database, seed: int) -> None:
    submission_ids = await accept(database.store, KEYS)
    async with several(database, 3) as stores:
        did = await contest(stores, "holder", 1.2, seed, submission_ids)
    shown = f"seed {seed}: {did}"
    assert await find_violations(database) == [], shown
    assert all(did[what] >= count for what, count in ENOUGH.items()), f"too few operations: {shown}"


@pytest.mark.slow
async def test_processes_that_share_keys_and_contest_lease_keep_all_guarantees(database: Database, seed: int) -> None:
    found = await asyncio.gather(*(contesting(database.url, n, 3.0, seed) for n in range(PROCESSES)))
    results = [
        [SubmitResult(each[0], "", same=each[1], new=each[2]) for each in process["results"]] for process in found
    ]
    did = sum((Counter(process["did"]) for process in found), Counter())
    assert len({tuple(result.submission_id for result in of_process) for of_process in results}) == 1, f"seed {seed}"
    created = [sum(result.new for result in of_key) for of_key in zip(*results, strict=True)]
    assert created == [1] * KEYS, f"seed {seed}"
    assert await find_violations(database) == [], f"seed {seed}: {did}"
    assert all(did[what] >= count for what, count in ENOUGH.items()), f"too few operations, seed {seed}: {did}"


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
    *_log, printed = output.splitlines()
    return json.loads(printed)


async def find_violations(database: Database) -> list[str]:
    """Returns a text for each violation of these guarantees: the attempt numbers of a submission have no gaps, its
    attempts do not overlap, no submission is due during its attempt, each attempt begins within the term of its epoch,
    and each attempt belongs to a submission.
    """
    by_submission: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in await read_table(database, "submission_attempts"):
        by_submission[row["submission_id"]].append(row)
    terms = {row["epoch"]: row for row in await read_table(database, "lease_history")}
    broken = []
    for row in await read_table(database, "submissions"):
        rows = by_submission.pop(row["submission_id"], [])
        if [each["number"] for each in rows] != list(range(1, row["attempts"] + 1)):
            broken.append(f"gaps: {row['attempts']} attempts, numbered {[each['number'] for each in rows]}")
        if row["next_attempt_at"] is not None and rows and rows[-1]["ended_at"] is None:
            broken.append(f"due during an attempt: {dict(row)}")
        broken += [f"concurrent: {a} {b}" for a, b in pairwise(rows) if a["ended_at"] is None]
        broken += [
            f"concurrent: {a} {b}" for a, b in pairwise(rows) if a["ended_at"] and a["ended_at"] > b["started_at"]
        ]
        broken += [f"{each} in the term of {terms[each['epoch']]}" for each in rows if not in_time(each, terms)]
    return broken + [f"without a submission: {rows}" for rows in by_submission.values()]


def in_time(attempt: Mapping[str, Any], terms: Mapping[int, Mapping[str, Any]]) -> bool:
    term = terms[attempt["epoch"]]
    ended_at: datetime | None = term["ended_at"]
    is_before_the_end = ended_at is None or attempt["started_at"] <= ended_at
    return term["holder"] == attempt["holder"] and term["acquired_at"] <= attempt["started_at"] and is_before_the_end


# Lock waits on PostgreSQL


async def lock(holder: Holder, submission_id: str) -> None:
    await holder._connection.execute("SELECT FROM submissions WHERE submission_id = $1 FOR UPDATE", submission_id)


async def as_executor(holder: Holder, fence: Fence, call: str, *arguments: object) -> None:
    """Calls the function `call` of the database with this fence, without a commit."""
    numbers = ", ".join(f"${number}" for number in range(1, 4 + len(arguments)))
    await holder._connection.execute(f"SELECT {call}({numbers})", *astuple(fence), *arguments)


async def test_begin_attempts_returns_held_for_locked_submission(postgres_database: Database) -> None:
    free, locked = await accept(postgres_database.store, 2)
    fence = await executor_fence(postgres_database.store)
    async with holding(postgres_database) as caller:
        await lock(caller, locked)
        begun = await asyncio.wait_for(postgres_database.store.begin_attempts(fence, [locked, free]), WAIT_SECONDS)
    found = {each.submission_id: each.found for each in begun.attempts}
    assert found == {free: BeginAttemptOutcome.BEGUN, locked: BeginAttemptOutcome.HELD}
    assert await read_attempts(postgres_database, locked) == []


async def test_commands_lock_submissions_in_order_of_ids(postgres_database: Database) -> None:
    """Otherwise two commands, or a command and the recording of outcomes, could deadlock."""
    first, *others = await accept(postgres_database.store, 8)
    async with holding(postgres_database) as holder, holding(postgres_database) as other:
        await holder.execute(f"SELECT FROM submissions WHERE submission_id = '{first}' FOR UPDATE")
        ids = [*reversed(others), first]
        call = asyncio.create_task(
            postgres_database.store.command_submissions(SubmissionCommand.CANCEL, ids, None, draft())
        )
        await holder.wait_for_blocked()
        await other.execute(f"SELECT FROM submissions WHERE submission_id <> '{first}' FOR UPDATE NOWAIT")
        await other.rollback()
        await holder.rollback()
        assert set((await call).values()) == {True}


async def test_cancel_that_waited_for_begin_leaves_attempt_open(postgres_database: Database) -> None:
    (submission_id,) = await accept(postgres_database.store)
    fence = await executor_fence(postgres_database.store)
    async with holding(postgres_database) as beginning:
        await as_executor(beginning, fence, "tenure_begin_attempts_1", [submission_id])
        call = asyncio.create_task(
            postgres_database.store.command_submissions(SubmissionCommand.CANCEL, [submission_id], None, draft())
        )
        await beginning.wait_for_blocked()
        await beginning.commit()
        assert await call == {submission_id: True}
    assert (await read_submission(postgres_database, submission_id)).state == "cancelled"
    (begun,) = await read_attempts(postgres_database, submission_id)
    assert begun.ended_at is None


async def test_retry_that_waited_for_begin_does_not_make_submission_due(postgres_database: Database) -> None:
    (submission_id,) = await accept(postgres_database.store)
    fence = await executor_fence(postgres_database.store)
    async with holding(postgres_database) as beginning:
        await as_executor(beginning, fence, "tenure_begin_attempts_1", [submission_id])
        call = asyncio.create_task(
            postgres_database.store.command_submissions(SubmissionCommand.RETRY, [submission_id], None, draft())
        )
        await beginning.wait_for_blocked()
        await beginning.commit()
        await call
    assert (await read_submission(postgres_database, submission_id)).next_attempt_at is None


async def test_finish_that_waited_for_cancel_keeps_submission_cancelled(postgres_database: Database) -> None:
    (submission_id,) = await accept(postgres_database.store)
    fence = await executor_fence(postgres_database.store)
    await begin_one(postgres_database.store, fence, submission_id)
    async with holding(postgres_database) as caller:
        await caller._connection.execute(
            "SELECT tenure_command_submissions_1('cancel', $1, NULL, $2)", [submission_id], DRAFT_JSON
        )
        call = asyncio.create_task(postgres_database.store.finish_attempts(fence, [attempt_end(submission_id)]))
        await caller.wait_for_blocked()
        await caller.commit()
        (moved,) = await call
    assert (moved.state, moved.next_attempt_at) == ("cancelled", None)


async def test_repeated_close_of_orphaned_attempt_leaves_next_attempt_open(postgres_database: Database) -> None:
    """The call that closes the orphaned attempt is repeated, because its response was lost. While the repeated call
    waits for the lock, the first call commits and the next attempt begins.
    """
    (submission_id,) = await accept(postgres_database.store)
    await begin_one(postgres_database.store, await executor_fence(postgres_database.store), submission_id)
    fence = await next_executor_fence(postgres_database.store)
    async with holding(postgres_database) as first:
        await lock(first, submission_id)
        call = asyncio.create_task(close_orphaned(postgres_database.store, fence))
        await first.wait_for_blocked()
        await first._connection.execute(
            "UPDATE submission_attempts SET ended_at = tenure_now(), outcome = 'unknown' WHERE submission_id = $1",
            submission_id,
        )
        await first._connection.execute(
            "UPDATE submissions SET next_attempt_at = tenure_now() WHERE submission_id = $1", submission_id
        )
        await as_executor(first, fence, "tenure_begin_attempts_1", [submission_id])
        await first.commit()
        await call
    assert (await read_submission(postgres_database, submission_id)).next_attempt_at is None, "due during an attempt"
    assert [each.ended_at is None for each in await read_attempts(postgres_database, submission_id)] == [False, True]


@pytest.mark.parametrize("what", ["finish", "cancel", "close"])
async def test_submission_call_reads_clock_after_lock_wait(postgres_database: Database, what: str) -> None:
    store = postgres_database.store
    (submission_id,) = await accept(store)
    fence = await executor_fence(store)
    await begin_one(store, fence, submission_id)
    fence = await next_executor_fence(store) if what == "close" else fence
    calls = {
        "finish": lambda: store.finish_attempts(fence, [attempt_end(submission_id)]),
        "cancel": lambda: store.command_submissions(SubmissionCommand.CANCEL, [submission_id], None, draft()),
        "close": lambda: close_orphaned(store, fence),
    }
    async with holding(postgres_database) as caller:
        await lock(caller, submission_id)
        call = asyncio.ensure_future(calls[what]())
        await caller.wait_for_blocked()
        waited_until = await caller.now()
        await caller.commit()
        await call
    (last,) = await read_attempts(postgres_database, submission_id)
    stamp = (await read_submission(postgres_database, submission_id)).ended_at if what == "cancel" else last.ended_at
    assert stamp is not None
    assert stamp > waited_until


async def test_prune_skips_locked_submission(postgres_database: Database) -> None:
    store = postgres_database.store
    await postgres_database.clock.set(NOON)
    free, locked = await accept(store, 2)
    await store.command_submissions(SubmissionCommand.CANCEL, [free, locked], None, draft())
    await postgres_database.clock.set(NOON + 2 * SUBMISSIONS_KEPT)
    async with holding(postgres_database) as caller:
        await lock(caller, locked)
        pruned = await asyncio.wait_for(store.prune(await hold_lease(store, "job:prune"), 9), WAIT_SECONDS)
    assert pruned.submissions == 1
    assert (await read_submission(postgres_database, locked)).state == "cancelled"


@pytest.mark.parametrize("what", ["begin", "finish"])
async def test_attempt_call_that_waited_for_next_acquire_raises_lease_lost(
    postgres_database: Database, what: str
) -> None:
    store = postgres_database.store
    due, with_open_attempt = await accept(store, 2)
    fence = await executor_fence(store)
    await begin_one(store, fence, with_open_attempt)
    calls = {
        "begin": lambda: store.begin_attempts(fence, [due]),
        "finish": lambda: store.finish_attempts(fence, [attempt_end(with_open_attempt, outcome=DELIVERED)]),
    }
    before = await read_table(postgres_database, "submission_attempts")
    async with holding(postgres_database) as next_one:
        await next_one._connection.execute("SELECT FROM tenure_resign_lease_1($1, $2)", EXECUTOR, ACTOR_JSON)
        await next_one._connection.execute(
            "SELECT FROM tenure_acquire_lease_1($1, 'one', gen_random_uuid(), 60000000)", EXECUTOR
        )
        late = asyncio.ensure_future(calls[what]())
        await next_one.wait_for_blocked()
        await next_one.commit()
        with pytest.raises(LeaseLost):
            await late
    assert await read_table(postgres_database, "submission_attempts") == before


async def test_next_acquire_waits_for_begin_in_progress(postgres_database: Database) -> None:
    (submission_id,) = await accept(postgres_database.store)
    fence = await executor_fence(postgres_database.store)
    async with holding(postgres_database) as beginning:
        await as_executor(beginning, fence, "tenure_begin_attempts_1", [submission_id])
        following = asyncio.create_task(next_executor_fence(postgres_database.store))
        await beginning.wait_for_blocked()
        await beginning.commit()
        await close_orphaned(postgres_database.store, await following)
    (begun,) = await read_attempts(postgres_database, submission_id)
    assert begun.outcome == "unknown"


async def test_no_attempt_begins_after_its_lease_expired(postgres_database: Database) -> None:
    """The clock advances by a second with each read, as if the server were paused between every two reads."""
    await postgres_database.clock.set(NOON)
    (submission_id,) = await accept(postgres_database.store)
    fence = await acquire_free_lease(postgres_database.store, EXECUTOR, "one", 60 * SECOND)
    expires_at = (await postgres_database.store.list_leases(None, 9))[0].expires_at
    await postgres_database.execute("CREATE SEQUENCE readings MINVALUE 0 START 0")
    await postgres_database.execute(
        "CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
        f"$$SELECT '{expires_at - MICROSECOND}'::timestamptz + nextval('readings') * interval '1 second'$$"
    )
    with suppress(LeaseLost):
        await postgres_database.store.begin_attempts(fence, [submission_id])
    late = [each for each in await read_attempts(postgres_database, submission_id) if each.started_at >= expires_at]
    assert late == []


# Late commits


@pytest.mark.slow
async def test_trailing_cursor_finds_submission_committed_seconds_late(postgres_database: Database) -> None:
    """A submission is committed after another one whose timestamp is later. So a cursor at the later timestamp misses
    the submission that was committed late, and a cursor that stays TRAIL behind the current time finds it.
    """
    store = postgres_database.store
    late = submit_request()
    async with holding(postgres_database) as slow:
        await insert(slow, late)
        await accept(store)
        (seen,) = await list_all_pending(store, 9)
        await asyncio.sleep(1)
        page = await store.list_pending(None, 9)
        await slow.commit()
    assert late.submission_id not in ids_of(await list_all_pending(store, 9, change_of(seen)))
    trailing = change_at(page.now - TRAIL, late.submission_id)
    assert late.submission_id in ids_of(await list_all_pending(store, 9, trailing))
