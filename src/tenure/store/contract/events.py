"""Events of sessions: the horizon, the feed, and batches for gateways."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from tenure.domain.events import (
    EventBatch,
    EventFilter,
    EventPage,
    EventPosition,
    EventSubscription,
    NewEventBatch,
)
from tenure.domain.leases import Fence


class EventStore(Protocol):
    async def publish_events(self, pause_microseconds: int) -> datetime:
        """Moves the horizon of events to now, and returns it. Later session writes get a later timestamp.

        Waits for the session writes in progress. The horizon does not move if they take too long, or if it was moved
        within the last `pause_microseconds`.
        """

    async def read_events(
        self, criteria: EventFilter, after: EventPosition, until: EventPosition | None, limit: int
    ) -> EventPage:
        """Returns the events after `after`, up to `until` and the horizon, in order. Reading a span again returns the
        same events.

        If a page would have to search too many sessions, it ends early, with few events or none, and the next page
        continues there.
        """

    async def subscribe_gateways(self, fence: Fence, gateways: Sequence[str]) -> Sequence[EventSubscription]:
        """Returns the position of each gateway in the feed. A new gateway starts at the current time."""

    async def save_event_batch(self, fence: Fence, batch: NewEventBatch) -> bool:
        """Saves the next batch with its submission, and moves the gateway's position in the feed to the end of the
        batch. If the batch has no events, saves no batch, and only moves the position. Returns True after either.

        Returns False and does nothing if the gateway's last batch is neither delivered nor cancelled, or if the
        gateway's position is not the start of this batch, for example because an earlier call, whose answer was lost,
        saved the batch.
        """

    async def find_event_batches(self, submission_ids: Sequence[str]) -> Sequence[EventBatch]:
        """Returns the batch of each submission that has one, in any order."""
