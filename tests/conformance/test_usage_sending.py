"""Windows that were cut while no gateway for usage was configured are sent on request, and each only once."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from tenure.domain.usage import ChunkBounds, ChunkDelivery, UnsentWindow, Window, WindowToSend
from tenure.ids import new_id
from tenure.store.limits import USAGE_KEPT
from tenure.usage import send
from tenure.usage.audit import Audit
from tenure.usage.send import SentUsage, send_windows
from tests.support.audit_log import draft
from tests.support.databases import Database
from tests.support.leases import all_tables, read_table
from tests.support.open_requests import NOON, some_id
from tests.support.submissions import DELIVERED, executor_fence, list_all_pending, make_attempt
from tests.support.usage import (
    CONTRACT,
    chunk_all,
    cut_one,
    insert_sessions,
    minute,
    read_window,
    save,
    session_between,
    windows,
)

THREE = [ChunkBounds(some_id(), some_id(), 1000 + number, 7**number) for number in range(3)]
ALL = 1_000_000


pytestmark = pytest.mark.usefixtures("installed")


async def unsent_window(database: Database, number: int, bounds: list[ChunkBounds]) -> Window:
    window = await cut_one(database, minute(number), contract=None)
    await save(database, window, bounds)
    return window


def with_ids(window: Window, chunks: int) -> WindowToSend:
    return WindowToSend(window.window_id, [new_id() for _ in range(chunks)])


# Unsent windows


async def test_list_unsent_windows__returns_divided_windows_without_contract(database: Database) -> None:
    await unsent_window(database, 1, THREE)
    await unsent_window(database, 2, [])
    await save(database, await cut_one(database, minute(3), contract=CONTRACT), THREE)
    await unsent_window(database, 4, THREE[:1])
    await cut_one(database, minute(5), contract=None)  # not divided
    expected = [UnsentWindow(1, 3), UnsentWindow(2, 0), UnsentWindow(4, 1)]
    assert await database.store.list_unsent_windows(NOON, None, 9) == expected
    assert await database.store.list_unsent_windows(NOON, None, 2) == expected[:2]


async def test_list_unsent_windows__selects_windows_by_their_start(database: Database) -> None:
    for number in (1, 2, 3):
        await unsent_window(database, number, [])

    async def found(*span: object) -> list[int]:
        return [each.window_id for each in await database.store.list_unsent_windows(*span, 9)]  # type: ignore[arg-type]

    assert await found(minute(1), None) == [2, 3]
    assert await found(minute(1), minute(2)) == [2]
    assert await found(minute(1, 1), minute(2)) == []
    assert await found(NOON, minute(2, 1)) == [1, 2, 3]


async def test_list_unsent_windows__leaves_out_windows_past_their_retention_time(database: Database) -> None:
    await unsent_window(database, 1, [])
    await unsent_window(database, 2, [])
    await database.clock.set(minute(1) + USAGE_KEPT + timedelta(microseconds=1))
    assert await database.store.list_unsent_windows(NOON, None, 9) == [UnsentWindow(2, 0)]


# Sending windows


async def test_send_windows__assigns_contract_to_window_and_submissions_to_chunks(database: Database) -> None:
    window = await unsent_window(database, 1, THREE)
    sending = with_ids(window, 3)
    await database.clock.set(minute(9))
    assert await database.store.send_windows(CONTRACT, [sending], draft()) == [1]
    sent, chunks = await read_window(database, 1)
    assert (sent.contract, sent.delivered_at) == (CONTRACT, None)
    assert [chunk.submission_id for chunk in chunks] == sending.submission_ids
    rows = {row["submission_id"]: row for row in await read_table(database, "submissions")}
    for chunk in chunks:
        row = rows[chunk.submission_id]
        assert row["delivery_key"] == f"{window.installation_id}-1-{chunk.chunk}"
        assert (row["gateway"], row["caller"], row["state"], row["attempts"]) == ("usages", "tenure", "pending", 0)
        assert (row["created_at"], row["next_attempt_at"], row["last_modified_at"]) == (minute(9),) * 3
    assert await database.store.list_unsent_windows(NOON, None, 9) == []


async def test_send_windows__creates_same_submissions_as_division_with_a_gateway(database: Database) -> None:
    await database.store.send_windows(CONTRACT, [with_ids(await unsent_window(database, 1, THREE[:1]), 1)], draft())
    await save(database, await cut_one(database, minute(2), contract=CONTRACT), THREE[:1])
    varying = ("submission_id", "delivery_key", "idempotency_key", "next_attempt_at", "created_at", "last_modified_at")
    one, other = [
        {name: value for name, value in row.items() if name not in varying}
        for row in await read_table(database, "submissions")
    ]
    assert one == other


async def test_send_windows__counts_empty_window_as_delivered(database: Database) -> None:
    await unsent_window(database, 1, [])
    await database.clock.set(minute(9))
    assert await database.store.send_windows(CONTRACT, [WindowToSend(1, [])], draft()) == [1]
    assert (await read_window(database, 1))[0].delivered_at == minute(9)


async def test_send_windows__window_is_delivered_when_its_last_chunk_is(database: Database) -> None:
    sending = with_ids(await unsent_window(database, 1, THREE), 3)
    await database.store.send_windows(CONTRACT, [sending], draft())
    fence = await executor_fence(database.store)
    for submission_id in sending.submission_ids:
        assert (await read_window(database, 1))[0].delivered_at is None
        await make_attempt(database.store, fence, submission_id, DELIVERED)
    assert (await read_window(database, 1))[0].delivered_at is not None


async def test_send_windows__skips_window_past_its_retention_time_and_missing_window(database: Database) -> None:
    old = await unsent_window(database, 1, THREE)
    await database.clock.set(minute(1) + USAGE_KEPT + timedelta(microseconds=1))
    before = await all_tables(database)
    assert await database.store.send_windows(CONTRACT, [with_ids(old, 3), WindowToSend(99, [])], draft()) == []
    assert await all_tables(database) == before


async def test_send_windows__skips_undivided_and_sent_windows_and_wrong_numbers_of_chunks(database: Database) -> None:
    divided = await unsent_window(database, 1, THREE)
    undivided = await cut_one(database, minute(2), contract=None)
    await save(database, undivided, THREE[:1], complete=False)
    sent = await cut_one(database, minute(3), contract=CONTRACT)
    await save(database, sent, THREE)
    before = await all_tables(database)
    for sending in (with_ids(divided, 2), with_ids(divided, 4), with_ids(undivided, 1), with_ids(sent, 3)):
        assert await database.store.send_windows(CONTRACT, [sending], draft()) == []
    assert await all_tables(database) == before


async def test_send_windows__changes_nothing_when_repeated(database: Database) -> None:
    sending = [with_ids(await unsent_window(database, number, THREE), 3) for number in (1, 2)]
    assert sorted(await database.store.send_windows(CONTRACT, sending, draft())) == [1, 2]
    before = await all_tables(database)
    assert await database.store.send_windows(CONTRACT, sending, draft()) == []
    assert await database.store.send_windows(CONTRACT, [with_ids(await _window(database, 1), 3)], draft()) == []
    assert await all_tables(database) == before


async def _window(database: Database, window_id: int) -> Window:
    return (await read_window(database, window_id))[0]


async def test_send_windows__concurrent_calls_send_each_window_once(database: Database) -> None:
    made = [await unsent_window(database, number, THREE) for number in range(1, 9)]
    calls = [
        database.store.send_windows(CONTRACT, [with_ids(window, 3) for window in order], draft())
        for order in (made, list(reversed(made)), made, list(reversed(made)))
    ]
    sent = [window_id for found in await asyncio.gather(*calls) for window_id in found]
    assert sorted(sent) == list(range(1, 9))
    assert len(await list_all_pending(database.store, 100)) == 24


# Spans that need several transactions


async def test_whole_span_is_sent_in_several_transactions_and_audit_is_clean(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send, "WINDOWS_PER_TRANSACTION", 3)
    monkeypatch.setattr(send, "CHUNKS_PER_TRANSACTION", 2)
    await insert_sessions(database, [session_between(NOON, minute(4)), session_between(minute(1, 5), minute(7))])
    for number in range(1, 9):
        await cut_one(database, minute(number), contract=None)
    await chunk_all(database)
    assert (await Audit(database.store).run()).unsent_millionths > 0
    assert await send_windows(database.store, CONTRACT, minute(1), minute(4), ALL, draft()) == SentUsage(
        3, 3, complete=True
    )
    assert await send_windows(database.store, CONTRACT, NOON, None, ALL, draft()) == SentUsage(5, 4, complete=True)
    assert await send_windows(database.store, CONTRACT, NOON, None, ALL, draft()) == SentUsage(0, 0, complete=True)
    report = await Audit(database.store).run()
    assert (report.findings, report.unsent_millionths) == ([], 0)
    assert report.waiting_millionths == report.lived_millionths > 0


async def test_span_is_not_complete_while_a_window_is_undivided(database: Database) -> None:
    for number in (1, 2):
        await unsent_window(database, number, [])
    await cut_one(database, minute(3), contract=None)  # not divided
    assert not (await send_windows(database.store, CONTRACT, NOON, None, ALL, draft())).complete
    assert (await send_windows(database.store, CONTRACT, NOON, minute(2), ALL, draft())).complete
    await chunk_all(database)
    assert await send_windows(database.store, CONTRACT, NOON, None, ALL, draft()) == SentUsage(1, 0, complete=True)
    assert {window.contract for window in await windows(database)} == {CONTRACT}


async def test_span_is_not_complete_while_the_windows_before_it_are_undivided(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More windows are undivided than one read returns, and only the last is in the span."""
    monkeypatch.setattr(send, "WINDOWS_PER_TRANSACTION", 2)
    for number in range(1, 4):
        await cut_one(database, minute(number), contract=None)
    assert not (await send_windows(database.store, CONTRACT, minute(2), None, ALL, draft())).complete
    await chunk_all(database)
    assert await send_windows(database.store, CONTRACT, minute(2), None, ALL, draft()) == SentUsage(1, 0, complete=True)


async def test_request_stops_at_limit_and_next_request_sends_the_rest(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two windows per transaction, a limit of three windows is reached after four."""
    monkeypatch.setattr(send, "WINDOWS_PER_TRANSACTION", 2)
    for number in range(1, 6):
        await unsent_window(database, number, [])
    assert await send_windows(database.store, CONTRACT, NOON, None, 3, draft()) == SentUsage(4, 0, complete=False)
    assert await send_windows(database.store, CONTRACT, NOON, None, 3, draft()) == SentUsage(1, 0, complete=True)


@pytest.mark.parametrize("when", ["before its deliveries are read", "after its deliveries are read"])
async def test_window_sent_during_an_audit_causes_no_finding(
    database: Database, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    await insert_sessions(database, [session_between(NOON, minute(4))])
    await cut_one(database, minute(1), contract=None)
    await chunk_all(database)
    list_deliveries = database.store.list_deliveries

    async def send_meanwhile(window_id: int) -> Sequence[ChunkDelivery]:
        if when.startswith("before"):
            await send_windows(database.store, CONTRACT, NOON, None, ALL, draft())
        deliveries = await list_deliveries(window_id)
        await send_windows(database.store, CONTRACT, NOON, None, ALL, draft())
        return deliveries

    monkeypatch.setattr(database.store, "list_deliveries", send_meanwhile)
    report = await Audit(database.store).run()
    assert (report.findings, report.waiting_millionths) == ([], report.lived_millionths)
