"""Accepting, reading and listing submissions, on every engine."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from tenure.domain.submissions import (
    KEY_MAX,
    Contract,
    Envelope,
    Submission,
    SubmissionFilter,
    SubmissionState,
    SubmitResult,
)
from tenure.ids import new_id
from tenure.store.contract import Topic
from tenure.store.limits import BATCH_MAX
from tests.support.databases import Database
from tests.support.leases import all_tables, read_table, sibling_store
from tests.support.open_requests import NOON, some_id
from tests.support.submissions import (
    CONTRACT,
    DELIVERED,
    PAUSED,
    accept,
    attempt_end,
    create_in_state,
    executor_fence,
    make_attempt,
    pending_submission,
    read_attempts,
    submit_request,
)

pytestmark = pytest.mark.usefixtures("noon")

SECONDS = timedelta(seconds=1)
EVERYTHING = SubmissionFilter()
IS_DELIVERED, IS_FAILED, IS_CANCELLED = "delivered", "failed", "cancelled"


# Accepting


async def test_accept_submissions__creates_submission_due_now(database: Database) -> None:
    request = submit_request(gateway="pager")
    results = await database.store.accept_submissions([request])
    assert results == [SubmitResult(request.submission_id, "pending", same=True, new=True)]
    assert await database.store.get_submission(request.submission_id, None) == (
        pending_submission(request.submission_id, NOON, gateway="pager"),
        [],
    )


async def test_accept_submissions__returns_same_result_when_repeated(database: Database) -> None:
    requests = [submit_request() for _ in range(3)]
    first = await database.store.accept_submissions(requests)
    before = await all_tables(database)
    await database.clock.set(NOON + SECONDS)
    assert await database.store.accept_submissions(requests) == first
    assert await all_tables(database) == before


async def test_accept_submissions__reports_repeated_request_as_new_even_after_delivery(database: Database) -> None:
    request = submit_request()
    await database.store.accept_submissions([request])
    await make_attempt(database.store, await executor_fence(database.store), request.submission_id, DELIVERED)
    assert await database.store.accept_submissions([request]) == [
        SubmitResult(request.submission_id, IS_DELIVERED, same=True, new=True)
    ]


@pytest.mark.parametrize("state", SubmissionState)
async def test_accept_submissions__returns_existing_submission_for_known_key(
    database: Database, state: SubmissionState
) -> None:
    known = await create_in_state(database.store, state, key="once", payload=b"the same")
    before = await all_tables(database)
    await database.clock.set(NOON + SECONDS)
    results = await database.store.accept_submissions([submit_request(key="once", payload=b"the same")])
    assert results == [SubmitResult(known, state.value, same=True, new=False)]
    assert await all_tables(database) == before


async def test_accept_submissions__reports_different_payload_for_known_key(database: Database) -> None:
    (known,) = await accept(database.store, key="once", payload=b"the first")
    before = await all_tables(database)
    results = await database.store.accept_submissions([submit_request(key="once", payload=b"the second")])
    assert results == [SubmitResult(known, "pending", same=False, new=False)]
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
async def test_accept_submissions__scopes_keys_by_caller_and_gateway(database: Database, other: dict[str, str]) -> None:
    known = submit_request(key="once", payload=b"the same")
    another = submit_request(**{"key": "once", "payload": b"the same", **other})
    await database.store.accept_submissions([known])
    results = await database.store.accept_submissions([another, known])
    assert [result.submission_id for result in results] == [another.submission_id, known.submission_id]
    assert len(await read_table(database, "submissions")) == 2


async def test_accept_submissions__creates_one_submission_for_duplicate_key_in_batch(database: Database) -> None:
    requests = [submit_request(key="twice", payload=b"the same") for _ in range(2)]
    results = await database.store.accept_submissions([submit_request(), *requests, submit_request()])
    made = next(request for request, result in zip(requests, results[1:3], strict=True) if result.new)
    assert {result.submission_id for result in results[1:3]} == {made.submission_id}
    assert sorted(result.new for result in results[1:3]) == [False, True]
    assert all(result.same for result in results)
    assert len(await read_table(database, "submissions")) == 3


async def test_accept_submissions__creates_one_submission_for_key_with_two_payloads(database: Database) -> None:
    results = await database.store.accept_submissions(
        [submit_request(key="twice", payload=b"%d" % n) for n in range(2)]
    )
    assert len({result.submission_id for result in results}) == 1
    assert sorted((result.same, result.new) for result in results) == [(False, False), (True, True)]


async def test_accept_submissions__returns_results_in_request_order(database: Database) -> None:
    """The requests are not in the order of their keys, and every seventh request has already been accepted."""
    numbers = [(37 * n) % BATCH_MAX for n in range(BATCH_MAX)]
    requests = [
        submit_request(key=f"key {n:03}", caller=f"caller {n % 3}", gateway=f"gateway {n % 5}") for n in numbers
    ]
    await database.store.accept_submissions(requests[::7])
    results = await database.store.accept_submissions(requests)
    assert [result.submission_id for result in results] == [request.submission_id for request in requests]


async def test_announce_submissions__notifies_only_submission_listeners_of_other_instances(database: Database) -> None:
    other = sibling_store(database)
    woken, disturbed = asyncio.Event(), asyncio.Event()
    other.listen(Topic.SUBMISSIONS, woken.set)
    other.listen(Topic.BOARD, disturbed.set)
    await other.read_board([])
    await database.store.announce_submissions()
    if database.engine == "postgresql":
        await asyncio.wait_for(woken.wait(), 5)
    assert not disturbed.is_set()
    await other.close()


# Envelopes


PAYLOADS = {
    "every byte": bytes(range(256)),
    "a mebibyte": bytes(range(255, -1, -1)) * 4096,
    "nothing": b"",
    "a zero": b"\0",
    "one letter": b"x",
    "escape characters": rb"\x00 \\ ' %s",
    "text": "äöü 漢字 🎟\r\n".encode(),
}


async def test_read_envelopes__returns_exact_payload_bytes(database: Database) -> None:
    requests = {name: submit_request(payload=payload) for name, payload in PAYLOADS.items()}
    await database.store.accept_submissions(list(requests.values()))
    envelopes = await database.store.read_envelopes([request.submission_id for request in requests.values()])
    found = {envelope.submission_id: envelope.payload for envelope in envelopes}
    wrong = [name for name, request in requests.items() if found[request.submission_id] != request.payload]
    assert (wrong, len(envelopes)) == ([], len(requests))


@pytest.mark.parametrize("contract", [CONTRACT, Contract((0.001,), None, (), 1e6)])
async def test_read_envelopes__returns_contract_stored_at_acceptance(database: Database, contract: Contract) -> None:
    request = submit_request(payload=b"parcel", contract=contract)
    await database.store.accept_submissions([request])
    await database.store.accept_submissions([replace(request, contract=Contract((9.0,), 9, (9,), 9.0))])
    assert await database.store.read_envelopes([request.submission_id]) == [
        Envelope(request.submission_id, request.submission_id, b"parcel", contract)
    ]


async def test_read_envelopes__returns_request_id_and_traceparent_of_submission(database: Database) -> None:
    traced = replace(submit_request(), request_id="customer-asks", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    plain = submit_request()
    await database.store.accept_submissions([traced, plain])
    found = await database.store.read_envelopes([traced.submission_id, plain.submission_id])
    named = {envelope.submission_id: (envelope.request_id, envelope.traceparent) for envelope in found}
    assert named[traced.submission_id] == (traced.request_id, traced.traceparent)
    assert named[plain.submission_id] == (None, None)
    shown = await database.store.get_submission(traced.submission_id, None)
    assert shown is not None
    assert shown[0].request_id == traced.request_id


async def test_read_envelopes__omits_unknown_and_unrequested_submissions(database: Database) -> None:
    first, _second, third = await accept(database.store, 3)
    found = await database.store.read_envelopes([third, some_id(), first])
    assert {envelope.submission_id for envelope in found} == {first, third}


# Reading


async def test_get_submission__returns_none_for_unknown_submission(database: Database) -> None:
    await accept(database.store)
    assert await database.store.get_submission(new_id(), None) is None


async def test_get_submission__returns_own_attempts_in_order(database: Database) -> None:
    mine, other = await accept(database.store, 2)
    fence = await executor_fence(database.store)
    await make_attempt(database.store, fence, other)
    for number in range(12):
        await database.clock.set(NOON + number * PAUSED)
        await make_attempt(database.store, fence, mine)
    found = await read_attempts(database, mine)
    assert [(each.number, each.started_at) for each in found] == [(n + 1, NOON + n * PAUSED) for n in range(12)]


async def test_get_submission__returns_ended_submission_only_with_ended_attempt(database: Database) -> None:
    """A reader sees each submission either before or after the end of its attempt."""
    fence = await executor_fence(database.store)
    made = await accept(database.store, 30)
    await database.store.begin_attempts(fence, made)
    seen: set[tuple[str, bool]] = set()

    async def watch() -> None:
        for submission_id in made:
            state = "pending"
            while state == "pending":
                read = await database.store.get_submission(submission_id, None)
                assert read is not None
                state, (found,) = read[0].state, read[1]
                seen.add((state, found.ended_at is not None))

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(watch())
        for submission_id in made:
            await database.store.finish_attempts(fence, [attempt_end(submission_id, outcome=DELIVERED)])
    assert ("delivered", True) in seen
    assert seen <= {("pending", False), ("delivered", True)}


async def ids(database: Database, criteria: SubmissionFilter = EVERYTHING, before: str | None = None) -> list[str]:
    return [found.submission_id for found in await database.store.list_submissions(criteria, before, 500)]


async def test_list_submissions__returns_newest_first(database: Database) -> None:
    made = await accept(database.store, 5)
    assert await ids(database) == made[::-1]


async def test_list_submissions__returns_all_fields(database: Database) -> None:
    waiting, failed = await accept(database.store, 2)
    await make_attempt(
        database.store, await executor_fence(database.store), failed, pause_microseconds=None, error="no luck"
    )
    failed = Submission(
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
    assert await database.store.list_submissions(EVERYTHING, None, 9) == [failed, pending_submission(waiting, NOON)]


async def test_list_submissions__continues_before_cursor(database: Database) -> None:
    made = await accept(database.store, 5)
    first = await database.store.list_submissions(EVERYTHING, None, 2)
    second = await database.store.list_submissions(EVERYTHING, first[-1].submission_id, 2)
    assert [found.submission_id for found in (*first, *second)] == made[:0:-1]
    assert await ids(database, before=made[1]) == made[:1]


@pytest.mark.parametrize("state", SubmissionState)
async def test_list_submissions__filters_by_state(database: Database, state: SubmissionState) -> None:
    made = {each: [await create_in_state(database.store, each) for _ in range(3)] for each in SubmissionState}
    wanted = sorted(made[state], reverse=True)
    assert await ids(database, SubmissionFilter(state=state.value)) == wanted
    assert await ids(database, SubmissionFilter(state=state.value), before=wanted[0]) == wanted[1:]


async def test_list_submissions__filters_by_gateway_and_state(database: Database) -> None:
    mine = await create_in_state(database.store, IS_FAILED, gateway="pager")
    await create_in_state(database.store, IS_FAILED)
    waiting = await create_in_state(database.store, "pending", gateway="pager")
    assert await ids(database, SubmissionFilter(gateway="pager")) == sorted([mine, waiting], reverse=True)
    assert await ids(database, SubmissionFilter(gateway="pager", state=IS_FAILED)) == [mine]
    assert await ids(database, SubmissionFilter(gateway="Pager")) == []


async def test_count_submissions__counts_by_gateway_and_state(database: Database) -> None:
    store = database.store
    assert await store.count_submissions() == []
    await accept(store, 2, gateway="b")
    for state in ("failed", "delivered", "delivered", "delivered", "cancelled"):
        await create_in_state(store, state, gateway="a")
    assert [(each.gateway, each.state, each.count, each.exact) for each in await store.count_submissions()] == [
        ("a", "failed", 1, True),
        ("a", "cancelled", 1, True),
        ("a", "delivered", 3, True),
        ("b", "pending", 2, True),
    ]


async def test_count_submissions__stops_at_its_limits(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COUNTED_MAX", 3), ("COUNTED_TOTAL", 5), ("COUNTED_MIN", 1), ("COUNTED_GATEWAYS_MAX", 3)):
        monkeypatch.setattr(f"tenure.store.reads.submissions.{name}", value)
    for gateway in ("a", "b", "c", "d"):
        await accept(database.store, 3 if gateway == "a" else 4, gateway=gateway)
    await create_in_state(database.store, "delivered", gateway="a")
    counts = [(each.gateway, each.state, each.count, each.exact) for each in await database.store.count_submissions()]
    assert counts == [
        ("a", "pending", 3, True),
        ("a", "delivered", 1, True),
        ("b", "pending", 2, False),
        ("c", "pending", 1, False),
    ]
