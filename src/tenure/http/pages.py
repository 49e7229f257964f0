"""Lists, a page at a time."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tenure.http.cursors import next_link
from tenure.http.routing import JSON, Answer

T = TypeVar("T")


def page(
    found: Sequence[T], query: Any, path: str, cursor_after: Callable[[T], str], listed: Callable[..., Any]
) -> Answer:
    """The answer for what was found if one more was asked for than fits: whether it is there tells of a next page.

    `listed` makes the list from what is shown, how many those are, and the cursor.
    """
    shown = found[: query.limit]
    cursor = None
    headers = list(JSON)
    if len(found) > len(shown):
        cursor = cursor_after(shown[-1])
        headers.append((b"link", next_link(path, query, cursor)))
    return Answer(listed(shown, len(shown), cursor), 200, headers)
