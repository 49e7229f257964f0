"""Batches of events for gateways: their content, when the next batch is saved, and when a batch is withheld."""

import asyncio
import json
from datetime import timedelta
from hashlib import sha256
from unittest.mock import AsyncMock

import pytest

from tenure.domain.events import EVENTS_LEASE, EventType, end_of
from tenure.domain.leases import Fence
from tenure.domain.sessions import CloseReason
from tenure.domain.submissions import Contract, SubmissionCommand, SubmissionFilter
from tenure.errors import DatabaseUnavailable
from tenure.events.delivery import EventDelivery, EventPayloads, GatewaySubscription
from tenure.submissions.payloads import Withheld
from tenure.telemetry.events import EventBatchSaved
from tests.support.audit_log import draft
from tests.support.databases import Database
from tests.support.events import new_batch
from tests.support.leases import hold_lease
from tests.support.locks import holding
from tests.support.open_requests import end_one
from tests.support.sessions import open_new_session
from tests.support.submissions import DELIVERED, attempt_end
from tests.support.telemetry import RecordedTelemetry
from tests.support.usage import CONTRACT

GATEWAY = "hooks"
_PENDING = SubmissionFilter(gateway=GATEWAY, state="pending")


class Delivering:
    """Runs the rounds in which a leader saves batches, and renders and delivers them as the executor does."""

    def __init__(self, database: Database, fence: Fence, *types: EventType, event_format: str = "tenure") -> None:
        self._store, self._fence = database.store, fence
        self.telemetry = RecordedTelemetry()
        wanted = {GATEWAY: GatewaySubscription(CONTRACT, types or tuple(EventType), event_format)}
        self._delivery = EventDelivery(database.store, wanted, lambda: None, self.telemetry)
        self.payloads = EventPayloads(database.store)

    async def round(self) -> bool:
        # A round finds new events only if the horizon has moved since the last round.
        await self._store.publish_events(0)
        return await self._delivery.run_once(self._fence)

    async def pending(self) -> list[str]:
        found = await self._store.list_submissions(_PENDING, None, 9)
        return [submission.submission_id for submission in found]

    async def render(self, submission_id: str) -> bytes | Withheld:
        return (await self.payloads.render(await self._store.read_envelopes([submission_id])))[submission_id]

    async def deliver(self, submission_id: str) -> None:
        await self._store.begin_attempts(self._fence, [submission_id])
        await self._store.finish_attempts(self._fence, [attempt_end(submission_id, outcome=DELIVERED)])


@pytest.fixture
async def fence(database: Database) -> Fence:
    return await hold_lease(database.store, EVENTS_LEASE)


async def test_next_batch_is_saved_after_last_one_is_delivered(database: Database, fence: Fence) -> None:
    delivering = Delivering(database, fence)
    assert not await delivering.round(), "a new gateway starts at the current time, so there is no batch yet"
    one = await open_new_session(database)
    assert await delivering.round()
    await end_one(database.store, one.session_id, CloseReason.STOPPED)
    assert not await delivering.round(), "the first batch is not delivered yet"
    (first,) = await delivering.pending()
    body = await delivering.render(first)
    assert isinstance(body, bytes)
    content = json.loads(body)
    assert (content["type"], [event["id"] for event in content["data"]]) == (
        "session.events",
        [f"{one.session_id}-opened"],
    )
    assert content["timestamp"] == content["data"][-1]["at"]
    await delivering.deliver(first)
    assert await delivering.round()
    (second,) = await delivering.pending()
    assert f"{one.session_id}-closed".encode() in await delivering.render(second)  # type: ignore[operator]
    await database.store.command_submissions(SubmissionCommand.CANCEL, [second], None, draft())
    await open_new_session(database)
    assert await delivering.round(), "a cancelled batch is skipped"
    saved = [event for event in delivering.telemetry.events if isinstance(event, EventBatchSaved)]
    assert [(event.number, event.events) for event in saved] == [(1, 1), (2, 1), (3, 1)]


async def test_next_leader_renders_same_bytes(database: Database, fence: Fence) -> None:
    delivering = Delivering(database, fence, event_format="cloudevents")
    await delivering.round()
    one = await open_new_session(database)
    await delivering.round()
    (batch,) = await delivering.pending()
    before = await delivering.render(batch)
    await end_one(database.store, one.session_id, CloseReason.STOPPED)
    after = await Delivering(database, fence).render(batch)
    assert before == after
    (event,) = json.loads(after)  # type: ignore[arg-type]
    assert (event["type"], event["subject"]) == ("tenure.session.opened", one.session_id)
    found = await database.store.find_event_batches([batch])
    assert found[0].digest == sha256(after).digest()  # type: ignore[arg-type]


async def test_events_of_a_batch_that_could_not_be_saved_are_in_the_next_one(
    database: Database, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivering = Delivering(database, fence)
    await delivering.round()
    one = await open_new_session(database)
    with monkeypatch.context() as patched:
        patched.setattr(database.store, "save_event_batch", AsyncMock(side_effect=DatabaseUnavailable("disk full")))
        with pytest.raises(DatabaseUnavailable):
            await delivering.round()
    two = await open_new_session(database)
    assert await delivering.round()
    (batch,) = await delivering.pending()
    content = json.loads(await delivering.render(batch))  # type: ignore[arg-type]
    assert [event["id"] for event in content["data"]] == [f"{each.session_id}-opened" for each in (one, two)]


async def test_unwanted_types_are_skipped(database: Database, fence: Fence) -> None:
    delivering = Delivering(database, fence, EventType.CLOSED)
    await delivering.round()
    one = await open_new_session(database)
    assert not await delivering.round()
    await end_one(database.store, one.session_id, CloseReason.STOPPED)
    assert await delivering.round()
    (batch,) = await delivering.pending()
    content = json.loads(await delivering.render(batch))  # type: ignore[arg-type]
    assert [event["type"] for event in content["data"]] == ["session.closed"]


async def test_position_is_saved_while_there_are_no_wanted_events(
    database: Database, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.events.delivery.SAVE_EMPTY_SECONDS", 0)
    delivering = Delivering(database, fence, EventType.UPGRADED)
    await delivering.round()
    (before,) = await database.store.subscribe_gateways(fence, [GATEWAY])
    await open_new_session(database)
    await delivering.round()
    (after,) = await database.store.subscribe_gateways(fence, [GATEWAY])
    assert after.position.at > before.position.at
    assert after.number == 0


@pytest.mark.parametrize(
    "change", ["UPDATE sessions SET kind = 3", "DELETE FROM sessions", "DELETE FROM event_batches"]
)
async def test_batch_is_withheld_if_rows_were_altered(database: Database, fence: Fence, change: str) -> None:
    delivering = Delivering(database, fence)
    await delivering.round()
    await open_new_session(database, kind=1)
    await delivering.round()
    (batch,) = await delivering.pending()
    await database.execute(change)
    assert isinstance(await delivering.render(batch), Withheld)


def test_events_are_retried_without_limit() -> None:
    contract = Contract((1.0,), 3, (), 5.0)
    assert GatewaySubscription(contract, [EventType.CLOSED], "tenure").contract.max_attempts is None


async def test_batch_is_not_saved_if_position_of_gateway_changed_during_lock_wait(postgres_database: Database) -> None:
    """The leader repeats a call that timed out, and the first call may still be in progress. Only one of the two calls
    may save a batch.
    """
    store = postgres_database.store
    fence = await hold_lease(store, EVENTS_LEASE)
    (began,) = await store.subscribe_gateways(fence, [GATEWAY])
    batch = new_batch(1, began.position, end_of(began.position.at + timedelta(seconds=2)))
    async with holding(postgres_database) as holder:
        await holder.execute("UPDATE event_subscriptions SET position_at = position_at + interval '1 second'")
        saving = asyncio.create_task(store.save_event_batch(fence, batch))
        await holder.wait_for_blocked()
        await holder.commit()
    assert not await saving
    assert await postgres_database.rows("SELECT FROM event_batches") == []
