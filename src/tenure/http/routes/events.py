"""The route of the feed of events: pages, long polls, and Server-Sent Events."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tenure.access.grants import READERS, narrowed
from tenure.domain.events import EventFilter, EventPosition, EventType, types_of
from tenure.domain.sessions import CloseReason
from tenure.errors import FieldError, Invalid, Unavailable
from tenure.events.feed import Feed, Piece
from tenure.http.answers import JSON, Answer, Headers, StreamedAnswer
from tenure.http.fields import CURSOR_MAX, Instant, KindNumber, PageLimit, Uuid
from tenure.http.pages import cursor_of_event, event_position_of
from tenure.http.pipeline import Call, Route
from tenure.naming import CAMEL, Names

LATEST = "latest"
WAIT_MAX = 30
KEEP_ALIVE_SECONDS = 15.0
"""After this time without an event, the server sends a comment on the connection, so that proxies keep the connection
open, and the server detects a dead connection."""
RETRY_MILLISECONDS = 1000
"""How long a client waits before it connects again after its connection has ended."""
EVENT_STREAM = "text/event-stream"
STREAM: Headers = (
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    # Without this header, nginx would buffer events instead of forwarding them.
    (b"x-accel-buffering", b"no"),
)

TypeNames = Annotated[
    str,
    Meta(
        pattern=r"^session\.(opened|upgraded|closed)(,session\.(opened|upgraded|closed))*$",
        max_length=200,
        extra={"must": "must be session.opened, session.upgraded or session.closed, or several with commas between"},
        examples=["session.opened,session.closed"],
    ),
]


class EventQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    after: (
        Annotated[
            str, Meta(max_length=CURSOR_MAX, extra={"must": "must be latest or the nextCursor of a previous response"})
        ]
        | None
    ) = None
    limit: PageLimit = 100
    type: TypeNames | None = None
    wait: Annotated[
        int, Meta(ge=0, le=WAIT_MAX, extra={"must": f"must be a whole number of seconds from 0 to {WAIT_MAX}"})
    ] = 0


class EventHeaders(msgspec.Struct, frozen=True):
    accept: str = ""
    last_event_id: Annotated[str, Meta(max_length=CURSOR_MAX)] | None = msgspec.field(
        name="Last-Event-ID", default=None
    )


class EventAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    type: EventType
    at: Instant
    session_id: Uuid
    user_object_id: Uuid
    tenant_object_id: Uuid
    capacity_id: Uuid
    session_kind: KindNumber
    previous_session_id: Uuid | UnsetType = UNSET
    """Set only for `session.upgraded`."""
    session_start_utc: Instant | UnsetType = UNSET
    """Set only for `session.closed`, like `closeReason`."""
    close_reason: CloseReason | UnsetType = UNSET


class EventList(msgspec.Struct, frozen=True, rename="camel"):
    events: list[EventAnswer]
    count: int
    next_cursor: str


class EventRoutes:
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/events",
                handler=self.read,
                grants=narrowed(READERS),
                tag="events",
                summary="Read the events of sessions, in order",
                description=(
                    "Continue with `after` and the `nextCursor` of the last response. With `wait`, the response comes "
                    "as soon as there is an event. With `Accept: text/event-stream`, events are sent as they happen."
                ),
                query=EventQuery,
                headers=EventHeaders,
                answers={200: EventList},
                refusals=(Invalid, Unavailable),
            )
        ]

    async def read(self, call: Call) -> Answer | StreamedAnswer:
        query: EventQuery = call.query
        criteria = EventFilter(
            EventFilter().types if query.type is None else types_of(query.type), call.caller.scope.tenant
        )
        if EVENT_STREAM in call.headers.accept:
            after = await self._position("Last-Event-ID" if call.headers.last_event_id else "after", call)
            return StreamedAnswer(self._frames(criteria, after, call.names), STREAM)
        piece = await self._feed.page(criteria, await self._position("after", call), query.limit, query.wait)
        return Answer(_with_names(_listed(piece), call.names), 200, JSON)

    async def _position(self, field: str, call: Call) -> EventPosition:
        given = call.query.after if field == "after" else call.headers.last_event_id
        if given is None:
            return await self._feed.start_position()
        if given == LATEST:
            return await self._feed.latest()
        try:
            return event_position_of(given)
        except Invalid as error:
            raise Invalid(FieldError(field, "must be latest or the nextCursor of a previous response")) from error

    async def _frames(self, criteria: EventFilter, after: EventPosition, names: Names) -> AsyncGenerator[bytes]:
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        async with aclosing(self._feed.follow(criteria, after, KEEP_ALIVE_SECONDS)) as pieces:
            async for piece in pieces:
                # A block without data is not an event, but the client stores its id, and continues from there when it
                # connects again.
                yield (
                    _with_names(piece.frames, names)
                    or f": keep-alive\nid: {cursor_of_event(piece.position)}\n\n".encode()
                )


_KEY = re.compile(rb'"([a-z]+[A-Z][A-Za-z]*)":')


def _with_names(events: bytes, names: Names) -> bytes:
    """Converts the field names of encoded events from camelCase to the style of `names`. All followers share the
    encoded events, which have camelCase names. No value in an event looks like a field name.
    """
    if names is CAMEL:
        return events
    return _KEY.sub(lambda key: b'"%b":' % names.name(key[1].decode()).encode(), events)


def _listed(piece: Piece) -> bytes:
    events = b",".join(each.json for each in piece.events)
    cursor = cursor_of_event(piece.position).encode()
    return b'{"events":[%b],"count":%d,"nextCursor":"%b"}' % (events, len(piece.events), cursor)
