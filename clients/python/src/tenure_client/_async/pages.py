"""Lists that are read page by page."""

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from tenure_client._async import _io

T = TypeVar("T")
P = TypeVar("P")


class AsyncPages(Generic[P, T]):
    """A list that is read page by page. Iterate over it to get the items of all pages; `first` and `pages` return the
    server's responses.

    Nothing is requested before the iteration or `first`. Each iteration starts again with the first page or, if a
    cursor was given, with the page at this cursor.
    """

    def __init__(self, fetch: _io.Fetch[P], items: str, cursor: str | None) -> None:
        self._fetch = fetch
        self._items = items
        self._cursor = cursor

    async def first(self) -> P:
        """Return the first page; if a cursor was given, the page at this cursor."""
        return await self._fetch(self._cursor)

    async def pages(self) -> AsyncIterator[P]:
        cursor = self._cursor
        while True:
            page: Any = await self._fetch(cursor)
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in getattr(page, self._items):
                yield item
