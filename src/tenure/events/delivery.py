"""Delivers events to the gateways that subscribe to them, in batches, through the executor of submissions.

The leader of the lease `events` runs `EventDelivery.work`. In each round, the leader moves the horizon. Then it saves
the next batch of events, with a submission, for each gateway whose last batch is settled: delivered or cancelled. A
batch is stored as a span of positions. Its payload is rendered from the session table when it is sent
(`EventPayloads`).

Guarantees, and their reasons:

- **No event is lost.** Each batch begins at the saved position of its gateway, and the transaction that saves the batch
  also moves this position to the end of the batch. Events are read only up to the horizon, and no later write can add
  an event before the horizon.
- **Batches are delivered in order.** The transaction that saves a batch checks that the previous batch of the gateway
  is settled.
- **A repeated delivery has the same key and bytes.** The delivery key contains the number of the batch. The digest of
  the body is saved with the batch, and a rendering with another digest is withheld.

| interrupted | state left | recovery |
|---|---|---|
| before a batch is saved, or the save fails | nothing | the next round, on any instance, reads the same events |
| the answer to the save is lost | the batch and its submission | the next round continues after the batch |
| after the save, before the hint | the batch and its submission | the next refresh of the executor finds them |
| the leader is paused until its lease expires | nothing: the database refuses its save | the next leader continues |
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from msgspec.structs import replace

from tenure.clock import monotonic
from tenure.domain.events import (
    BATCH_EVENTS_MAX,
    EventBatch,
    EventFilter,
    EventPosition,
    EventSubscription,
    EventType,
    NewEventBatch,
    SessionEvent,
)
from tenure.domain.leases import Fence
from tenure.domain.submissions import Contract, Envelope
from tenure.errors import DatabaseTooSlow, DatabaseUnavailable
from tenure.events.feed import PUBLISH_PAUSE_MICROSECONDS
from tenure.events.formats import CONTRACT_FORMATS, render
from tenure.ids import new_id
from tenure.leases.held import HeldLease
from tenure.leases.waiting import is_set_within
from tenure.store.contract import Store
from tenure.submissions.payloads import Withheld
from tenure.telemetry.events import EventBatchSaved, EventsDelayed, Telemetry

ROUND_SECONDS = 0.5
BUSY_ROUND_SECONDS = 0.1
BUSY_SECONDS = 2.0
"""For this long after a save, the pause between rounds is only BUSY_ROUND_SECONDS: the next batch can be saved as soon
as the last one is delivered."""
PAGES_MAX = 50
"""The most pages without an event that one round reads for a gateway."""
SAVE_EMPTY_SECONDS = 60.0
"""How often the position of a gateway is saved while it gets no events."""
DELAYED_SECONDS = 10.0
"""While rounds keep failing because the database is unavailable, the leader reports `EventsDelayed` about this
often."""
READ_RETRY_SECONDS = 10.0
ID_LENGTH = 36


class GatewaySubscription:
    """The subscription of a gateway, from its configuration."""

    def __init__(self, contract: Contract, types: Sequence[EventType], event_format: str) -> None:
        self.types = tuple(each for each in EventType if each in types)
        # Without a limit on attempts: a batch that failed for good would leave a gap in the events of the receiver.
        self.contract = replace(contract, max_attempts=None, format=f"events-{event_format}")


class EventDelivery:
    def __init__(
        self,
        store: Store,
        subscriptions: Mapping[str, GatewaySubscription],
        hint: Callable[[], None],
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._hint = hint
        self._telemetry = telemetry
        self._searched: dict[str, _Searched] = {}

    async def work(self, held: HeldLease) -> None:
        """Runs for one epoch of the lease. Returns only if the instance stops."""
        self._searched = {}
        succeeded_at = saved_at = monotonic()
        while not held.ending.is_set():
            try:
                if await self.run_once(held.fence):
                    saved_at = monotonic()
                succeeded_at = monotonic()
            except DatabaseUnavailable as error:
                if monotonic() - succeeded_at > DELAYED_SECONDS:
                    self._telemetry.report(EventsDelayed(error.detail))
                    succeeded_at = monotonic()
            is_busy = monotonic() - saved_at < BUSY_SECONDS
            await is_set_within(held.ending, BUSY_ROUND_SECONDS if is_busy else ROUND_SECONDS)

    async def run_once(self, fence: Fence) -> bool:
        """Saves the next batch of each gateway whose last batch is settled. Returns whether a batch was saved."""
        await self._store.publish_events(PUBLISH_PAUSE_MICROSECONDS)
        found = await self._store.subscribe_gateways(fence, list(self._subscriptions))
        saved = [await self._save_next(fence, each) for each in found if each.is_settled]
        if any(saved):
            self._hint()
            await self._store.announce_submissions()
        return any(saved)

    async def _save_next(self, fence: Fence, now: EventSubscription) -> bool:
        """Returns whether a batch with events was saved."""
        wanted = self._subscriptions[now.gateway]
        searched = self._searched.get(now.gateway)
        if searched is None or searched.since != now.position:
            searched = self._searched[now.gateway] = _Searched(now.position)
        events, end = await self._read_next(EventFilter(wanted.types), searched.until)
        if not events:
            # Skip only pages without events: if the save of a batch fails, the next round must find its events again.
            searched.until = end
            if end == now.position or monotonic() - searched.saved_at < SAVE_EMPTY_SECONDS:
                return False
        installation = await self._store.read_installation()
        body = render(str(wanted.contract.format), installation.installation_id, events) if events else b""
        batch = NewEventBatch(
            gateway=now.gateway,
            number=now.number + 1,
            start=now.position,
            end=end,
            types=wanted.types,
            events=len(events),
            digest=sha256(body).digest(),
            submission_id=new_id(),
            contract=wanted.contract,
        )
        if not await self._store.save_event_batch(fence, batch) or not events:
            return False
        self._telemetry.report(EventBatchSaved(batch.gateway, batch.number, batch.events, events[-1].at))
        return True

    async def _read_next(
        self, criteria: EventFilter, after: EventPosition
    ) -> tuple[Sequence[SessionEvent], EventPosition]:
        """Returns the next events, and the position up to which this call has searched."""
        for _ in range(PAGES_MAX):
            page = await self._store.read_events(criteria, after, None, BATCH_EVENTS_MAX)
            if page.events or page.is_last or page.position == after:
                return page.events, page.position
            after = page.position
        return [], after


class _Searched:
    """How far this leader has searched for the next events of a gateway: from `since`, the saved position of the
    gateway, to `until`.
    """

    def __init__(self, since: EventPosition) -> None:
        self.since = since
        self.until = since
        self.saved_at = monotonic()


class EventPayloads:
    """The `PayloadSource` of batches. All renderings of a batch, on any instance, are identical."""

    name = "events"
    media_types: Mapping[str, str] = {name: each.media_type for name, each in CONTRACT_FORMATS.items()}

    def __init__(self, store: Store) -> None:
        self._store = store

    async def render(self, envelopes: Sequence[Envelope]) -> Mapping[str, bytes | Withheld]:
        found = await self._store.find_event_batches([envelope.submission_id for envelope in envelopes])
        batches = {batch.submission_id: batch for batch in found}
        return {
            envelope.submission_id: await self._payload(envelope, batches.get(envelope.submission_id))
            for envelope in envelopes
        }

    async def _payload(self, envelope: Envelope, batch: EventBatch | None) -> bytes | Withheld:
        if batch is None:
            return Withheld("there is no batch of events for this submission")
        try:
            events = await self._read(batch)
        except DatabaseTooSlow as error:
            return Withheld(f"the events could not be read: {error.detail}", READ_RETRY_SECONDS)
        if len(events) != batch.events:
            return Withheld(f"the batch has {len(events)} events, and had {batch.events} when it was saved")
        # Take the id of the installation from the delivery key, which begins with it: the operator may have changed the
        # id since the batch was saved (after a restore), and the body must keep the same bytes.
        body = render(str(envelope.contract.format), envelope.delivery_key[:ID_LENGTH], events)
        if sha256(body).digest() != batch.digest:
            return Withheld("its digest differs from the one stored when the batch was saved")
        return body

    async def _read(self, batch: EventBatch) -> Sequence[SessionEvent]:
        events: list[SessionEvent] = []
        position = batch.start
        while position != batch.end and len(events) <= batch.events:
            page = await self._store.read_events(EventFilter(batch.types), position, batch.end, BATCH_EVENTS_MAX)
            events += page.events
            if page.position == position:
                break
            position = page.position
        return events

    async def store_digests(self, fence: Fence, envelopes: Sequence[Envelope]) -> Mapping[str, Withheld]:
        """Does nothing: the digest was stored with the batch, and `render` has compared it."""
        del fence, envelopes
        return {}

    async def report_delivered(self, submission_ids: Sequence[str]) -> None:
        """Does nothing: the next round finds the batch settled and saves the next one."""
