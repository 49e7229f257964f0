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
        """Waits for the session writes in progress, moves the horizon of events to now, and returns the horizon.
        Session writes that begin after this call get timestamps after the horizon.

        If the horizon was moved within the last `pause_microseconds`, returns it unchanged. If the writes in progress
        take too long, returns the horizon unchanged or, on SQL Server, raises an error.
        """

    async def read_events(
        self, criteria: EventFilter, after: EventPosition, until: EventPosition | None, limit: int
    ) -> EventPage:
        """Returns the events after `after`, up to `until` or the horizon, whichever is earlier, in order. Reading a
        span again returns the same events.

        If a page would have to search too many sessions, it ends early, with few events or none, and the next page
        continues there.
        """

    async def subscribe_gateways(self, fence: Fence, gateways: Sequence[str]) -> Sequence[EventSubscription]:
        """Returns the position of each gateway in the feed. A new gateway starts at the current time."""

    async def save_event_batch(self, fence: Fence, batch: NewEventBatch) -> bool:
        """Saves the next batch with its submission, and moves the gateway's position in the feed to the end of the
        batch. If the batch has no events, saves no batch, and only moves the position. Returns True after either.

        Returns False and does nothing if the gateway's last batch is neither delivered nor cancelled, or if the
        gateway's position is not the start of this batch. The latter is the case, for example, if an earlier call has
        saved the batch and its response was lost.
        """

    async def find_event_batches(self, submission_ids: Sequence[str]) -> Sequence[EventBatch]:
        """Returns the batch of each submission that has one, in any order."""
