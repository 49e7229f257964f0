"""The feed of events: single pages, and an endless follower that uses long polls.

A follower has one position: the `nextCursor` of the last page that it received. Each poll requests the events after
this position. A poll that fails does not change the position, and yields no event. So the next poll requests the same
events again. The order of the feed never changes. So a follower yields each event once.

`latest` and a missing cursor are not positions: at each poll they mean another place in the feed. So the first poll
serves to get a cursor. It does not wait for an event, and requests at most one, so that the `nextCursor` of its page is
the position after that event.
"""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from tenure_client import _routes, models
from tenure_client._async import _io
from tenure_client._async.resources import _AsyncResource
from tenure_client._core import may_repeat, pause_before
from tenure_client.errors import TenureError

if TYPE_CHECKING:
    from tenure_client._async.client import AsyncClient

LATEST = "latest"
WAIT_SECONDS = 30
"""How long a poll of a follower waits for an event: the maximum that the server allows."""
EMPTY_SECONDS = 0.5
"""If an empty page arrives within this time, the server did not wait: the poll was the first one, `wait` is 0, or the
instance is stopping. The follower then pauses before the next poll, as after a failure."""


class AsyncEvents(_AsyncResource):
    async def list(
        self,
        *,
        after: str | None = None,
        type: str | Sequence[str] | None = None,  # noqa: A002 - the name of the parameter
        wait: int | None = None,
        limit: int | None = None,
    ) -> models.EventList:
        """Return one page of the feed.

        `after` is a cursor, or `latest` for the events from now on. Without `after`, the page begins 7 days ago.
        `wait` is how many seconds the server waits for an event, at most 30.
        """
        query = models.EventQuery(after=after, limit=limit, type=_joined(type), wait=wait)
        return await self._get(_routes.EVENTS, models.EventList, query=query, wait=wait or 0)

    def follow(
        self,
        *,
        after: str | None = None,
        types: str | Sequence[str] | None = None,
        wait: int = WAIT_SECONDS,
        limit: int | None = None,
    ) -> "AsyncEventFollower":
        """Follow the feed without end. `after` and `wait` have the same meanings as for `list`."""
        return AsyncEventFollower(self._client, after, _joined(types), wait, limit)


class AsyncEventFollower:
    """An endless feed of events. Iterate over it to get the events; `pages` yields the server's responses.

    Temporary failures are retried without end, after growing pauses plus the `Retry-After` of the server. Other
    errors are raised, such as `Unauthenticated`. Nothing runs in the background, so leaving the loop stops the
    follower. The iteration ends if the client is closed. Each iteration begins at `after`.
    """

    def __init__(
        self, client: "AsyncClient", after: str | None, types: str | None, wait: int, limit: int | None
    ) -> None:
        self._client = client.with_options(max_retries=0)
        self._after = after
        self._types = types
        self._wait = wait
        self._limit = limit

    async def pages(self) -> AsyncIterator[models.EventList]:
        """Yield the pages that have events. To continue after a restart, store `next_cursor` of each processed page."""
        async for _, page in self._pages():
            yield page

    async def __aiter__(self) -> AsyncIterator[models.FollowedEvent]:
        async for before, page in self._pages():
            for left, event in zip(reversed(range(page.count)), page.events, strict=True):
                cursor = before if left else page.next_cursor
                yield models.FollowedEvent(**msgspec.structs.asdict(event), cursor=cursor)

    async def _pages(self) -> AsyncIterator[tuple[str, models.EventList]]:
        """Yield each page that has events, with the cursor before the page."""
        options = self._client._options
        cursor, failures = self._after, 0
        while not self._client._shared.is_closed:
            failure: TenureError | None = None
            began = options.clock.now()
            try:
                page = await self._poll(cursor)
            except TenureError as error:
                if not may_repeat(error, repeatable=True):
                    raise
                failure = error
            else:
                before, cursor = cursor, page.next_cursor
                if page.events:
                    # `before` can be None only at the first poll. Its page has one event, so `before` is not used.
                    yield before or cursor, page
                if page.events or options.clock.now() - began >= EMPTY_SECONDS:
                    failures = 0
                    continue
            failures += 1
            await _io.sleep(options, pause_before(failures, failure))

    async def _poll(self, cursor: str | None) -> models.EventList:
        events = self._client.events
        if cursor is None or cursor == LATEST:
            return await events.list(after=cursor, type=self._types, limit=1)
        return await events.list(after=cursor, type=self._types, wait=self._wait, limit=self._limit)


def _joined(types: str | Sequence[str] | None) -> str | None:
    return types if types is None or isinstance(types, str) else ",".join(types)
