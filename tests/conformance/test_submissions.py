"""Submissions accepted, listed, read and listed, on every engine."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from tenure.ids import new_id
from tenure.model.submissions import (
    KEY_MAX,
    Accepted,
    Contract,
    Parcel,
    Submission,
    SubmissionFilter,
    SubmissionState,
)
from tenure.store.store import BATCH_MAX, Topic
from tests.support.databases import Database
from tests.support.leases import all_tables, sibling, table
from tests.support.submissions import (
    CONTRACT,
    DELIVERED,
    PAUSED,
    accept,
    attempt,
    attempts,
    end,
    executor,
    pending,
    put_in_state,
    submit,
)
from tests.support.wishes import NOON, some_id

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
EVERYTHING = SubmissionFilter()
IS_DELIVERED, IS_FAILED, IS_CANCELLED = "delivered", "failed", "cancelled"


# Accepting


async def test_accept_submissions__makes_one_that_is_due_at_once(database: Database) -> None:
    wish = submit(gateway="pager")
    told = await database.store.accept_submissions([wish])
    assert told == [Accepted(wish.submission_id, "pending", same=True, new=True)]
    assert await database.store.get_submission(wish.submission_id) == (
        pending(wish.submission_id, NOON, gateway="pager"),
        [],
    )


async def test_accept_submissions__finds_its_own_work_when_repeated(database: Database) -> None:
    wishes = [submit() for _ in range(3)]
    first = await database.store.accept_submissions(wishes)
    before = await all_tables(database)
    await database.clock.set(NOON + SECONDS)
    assert await database.store.accept_submissions(wishes) == first
    assert await all_tables(database) == before


async def test_accept_submissions__finds_its_own_work_although_it_was_delivered_since(database: Database) -> None:
    wish = submit()
    await database.store.accept_submissions([wish])
    await attempt(database.store, await executor(database.store), wish.submission_id, DELIVERED)
    assert await database.store.accept_submissions([wish]) == [
        Accepted(wish.submission_id, IS_DELIVERED, same=True, new=True)
    ]


@pytest.mark.parametrize("state", SubmissionState)
async def test_accept_submissions__tells_what_is_there_under_a_known_key(
    database: Database, state: SubmissionState
) -> None:
    known = await put_in_state(database.store, state, key="once", payload=b"the same")
    before = await all_tables(database)
    await database.clock.set(NOON + SECONDS)
    told = await database.store.accept_submissions([submit(key="once", payload=b"the same")])
    assert told == [Accepted(known, state.value, same=True, new=False)]
    assert await all_tables(database) == before


async def test_accept_submissions__tells_that_the_payload_is_another(database: Database) -> None:
    (known,) = await accept(database.store, key="once", payload=b"the first")
    before = await all_tables(database)
    told = await database.store.accept_submissions([submit(key="once", payload=b"the second")])
    assert told == [Accepted(known, "pending", same=False, new=False)]
    assert await all_tables(database) == before


@pytest.mark.parametrize(
    "other",
    [
        {"caller": "till"},
        {"gateway": "pager"},
        {"caller": "shopledger", "gateway": ""},
        {"caller": "Shop"},
        {"gateway": "Ledger"},
        {"key": "Once"},
        {"key": "once "},
        {"key": "x" * KEY_MAX},
    ],
    ids=str,
)
async def test_accept_submissions__keeps_the_keys_of_callers_and_gateways_apart(
    database: Database, other: dict[str, str]
) -> None:
    known = submit(key="once", payload=b"the same")
    another = submit(**{"key": "once", "payload": b"the same", **other})
    await database.store.accept_submissions([known])
    told = await database.store.accept_submissions([another, known])
    assert [answer.submission_id for answer in told] == [another.submission_id, known.submission_id]
    assert len(await table(database, "submissions")) == 2


async def test_accept_submissions__makes_one_of_a_key_that_is_twice_in_a_batch(database: Database) -> None:
    wishes = [submit(key="twice", payload=b"the same") for _ in range(2)]
    told = await database.store.accept_submissions([submit(), *wishes, submit()])
    made = next(wish for wish, answer in zip(wishes, told[1:3], strict=True) if answer.new)
    assert {answer.submission_id for answer in told[1:3]} == {made.submission_id}
    assert sorted(answer.new for answer in told[1:3]) == [False, True]
    assert all(answer.same for answer in told)
    assert len(await table(database, "submissions")) == 3


async def test_accept_submissions__makes_one_of_a_key_with_two_payloads_in_a_batch(database: Database) -> None:
    told = await database.store.accept_submissions([submit(key="twice", payload=b"%d" % n) for n in range(2)])
    assert len({answer.submission_id for answer in told}) == 1
    assert sorted((answer.same, answer.new) for answer in told) == [(False, False), (True, True)]


async def test_accept_submissions__answers_in_the_order_of_the_wishes(database: Database) -> None:
    """Whatever the order of their keys, and with some of them known."""
    numbers = [(37 * n) % BATCH_MAX for n in range(BATCH_MAX)]
    wishes = [submit(key=f"key {n:03}", caller=f"caller {n % 3}", gateway=f"gateway {n % 5}") for n in numbers]
    await database.store.accept_submissions(wishes[::7])
    told = await database.store.accept_submissions(wishes)
    assert [answer.submission_id for answer in told] == [wish.submission_id for wish in wishes]


async def test_announce_submissions__is_heard_by_other_instances_where_the_engine_can_tell(database: Database) -> None:
    other = sibling(database)
    woken, disturbed = asyncio.Event(), asyncio.Event()
    other.listen(Topic.SUBMISSIONS, woken.set)
    other.listen(Topic.BOARD, disturbed.set)
    await other.read_board([])
    await database.store.announce_submissions()
    if database.engine == "postgresql":
        await asyncio.wait_for(woken.wait(), 5)
    assert not disturbed.is_set()
    await other.close()


# What is sent


PAYLOADS = {
    "every byte": bytes(range(256)),
    "a mebibyte": bytes(range(255, -1, -1)) * 4096,
    "nothing": b"",
    "a zero": b"\0",
    "one letter": b"x",
    "what looks escaped": rb"\x00 \\ ' %s",
    "text": "äöü 漢字 🎟\r\n".encode(),
}


async def test_read_parcels__gives_the_very_bytes_that_were_accepted(database: Database) -> None:
    wishes = {name: submit(payload=payload) for name, payload in PAYLOADS.items()}
    await database.store.accept_submissions(list(wishes.values()))
    parcels = await database.store.read_parcels([wish.submission_id for wish in wishes.values()])
    found = {parcel.submission_id: parcel.payload for parcel in parcels}
    wrong = [name for name, wish in wishes.items() if found[wish.submission_id] != wish.payload]
    assert (wrong, len(parcels)) == ([], len(wishes))


@pytest.mark.parametrize("contract", [CONTRACT, Contract((0.001,), None, (), 1e6)])
async def test_read_parcels__gives_the_contract_of_the_acceptance(database: Database, contract: Contract) -> None:
    wish = submit(payload=b"parcel", contract=contract)
    await database.store.accept_submissions([wish])
    await database.store.accept_submissions([replace(wish, contract=Contract((9.0,), 9, (9,), 9.0))])
    assert await database.store.read_parcels([wish.submission_id]) == [
        Parcel(wish.submission_id, wish.submission_id, b"parcel", contract)
    ]


async def test_read_parcels__leaves_out_what_is_not_there_or_not_asked_for(database: Database) -> None:
    first, _second, third = await accept(database.store, 3)
    found = await database.store.read_parcels([third, some_id(), first])
    assert {parcel.submission_id for parcel in found} == {first, third}


# Reading


async def test_get_submission__knows_no_such_one(database: Database) -> None:
    await accept(database.store)
    assert await database.store.get_submission(new_id()) is None


async def test_get_submission__tells_its_own_attempts_in_order(database: Database) -> None:
    mine, other = await accept(database.store, 2)
    fence = await executor(database.store)
    await attempt(database.store, fence, other)
    for number in range(12):
        await database.clock.set(NOON + number * PAUSED)
        await attempt(database.store, fence, mine)
    found = await attempts(database, mine)
    assert [(each.number, each.started_at) for each in found] == [(n + 1, NOON + n * PAUSED) for n in range(12)]


async def test_get_submission__never_tells_of_an_end_without_that_of_its_attempt(database: Database) -> None:
    """Whoever reads while attempts are closed sees each before or after, not between."""
    fence = await executor(database.store)
    made = await accept(database.store, 30)
    await database.store.begin_attempts(fence, made)
    seen: set[tuple[str, bool]] = set()

    async def watch() -> None:
        for submission_id in made:
            state = "pending"
            while state == "pending":
                told = await database.store.get_submission(submission_id)
                assert told is not None
                state, (found,) = told[0].state, told[1]
                seen.add((state, found.ended_at is not None))

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(watch())
        for submission_id in made:
            await database.store.finish_attempts(fence, [end(submission_id, outcome=DELIVERED)])
    assert ("delivered", True) in seen
    assert seen <= {("pending", False), ("delivered", True)}


async def ids(database: Database, criteria: SubmissionFilter = EVERYTHING, before: str | None = None) -> list[str]:
    return [found.submission_id for found in await database.store.list_submissions(criteria, before, 500)]


async def test_list_submissions__begins_with_the_newest(database: Database) -> None:
    made = await accept(database.store, 5)
    assert await ids(database) == made[::-1]


async def test_list_submissions__tells_all_of_each(database: Database) -> None:
    waiting, failed = await accept(database.store, 2)
    await attempt(database.store, await executor(database.store), failed, pause_microseconds=None, error="no luck")
    given_up = Submission(
        submission_id=failed,
        gateway="ledger",
        state=IS_FAILED,
        attempts=1,
        failures=1,
        last_error="no luck",
        created_at=NOON,
        last_modified_at=NOON,
        ended_at=NOON,
    )
    assert await database.store.list_submissions(EVERYTHING, None, 9) == [given_up, pending(waiting, NOON)]


async def test_list_submissions__goes_on_before_the_last_one(database: Database) -> None:
    made = await accept(database.store, 5)
    first = await database.store.list_submissions(EVERYTHING, None, 2)
    second = await database.store.list_submissions(EVERYTHING, first[-1].submission_id, 2)
    assert [found.submission_id for found in (*first, *second)] == made[:0:-1]
    assert await ids(database, before=made[1]) == made[:1]


@pytest.mark.parametrize("state", SubmissionState)
async def test_list_submissions__tells_those_of_a_state(database: Database, state: SubmissionState) -> None:
    made = {each: [await put_in_state(database.store, each) for _ in range(3)] for each in SubmissionState}
    wanted = sorted(made[state], reverse=True)
    assert await ids(database, SubmissionFilter(state=state.value)) == wanted
    assert await ids(database, SubmissionFilter(state=state.value), before=wanted[0]) == wanted[1:]


async def test_list_submissions__tells_those_of_a_gateway_and_a_state(database: Database) -> None:
    mine = await put_in_state(database.store, IS_FAILED, gateway="pager")
    await put_in_state(database.store, IS_FAILED)
    waiting = await put_in_state(database.store, "pending", gateway="pager")
    assert await ids(database, SubmissionFilter(gateway="pager")) == sorted([mine, waiting], reverse=True)
    assert await ids(database, SubmissionFilter(gateway="pager", state=IS_FAILED)) == [mine]
    assert await ids(database, SubmissionFilter(gateway="Pager")) == []
