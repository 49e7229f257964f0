"""The usage routes: sums over any span, and windows as they were billed."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from tenure.access.grants import OPERATORS, READERS, narrowed
from tenure.clock import from_microseconds, to_microseconds
from tenure.domain.meter import decimal_text
from tenure.domain.usage import KINDS, Chunk, CutRules, GroupBy, UsageFilter, UsageGroup, UsageSumQuery, Window
from tenure.errors import (
    FieldError,
    Invalid,
    NotFound,
    NoUsageGateway,
    TooLarge,
    Unavailable,
    UnsupportedMediaType,
)
from tenure.http.answers import Answer
from tenure.http.fields import Cursor, GivenInstant, Instant, KindNumber, PageLimit, Uuid, in_utc, instant
from tenure.http.pages import cursor_of_text, forged, number_of, page, text_of
from tenure.http.pipeline import Call, Route
from tenure.ids import canonical_id
from tenure.store.contract import Store
from tenure.store.reads.usage_sums import SPAN
from tenure.telemetry.events import Telemetry, UsageHandedOver
from tenure.usage.send import draft_of, send_windows

DIGITS_MAX = 18
SENT_PER_REQUEST = 10_000
"""A request stops once it has sent at least this many windows. That is about a week of one-minute windows."""
EARLIEST_END = datetime.min.replace(tzinfo=UTC) + SPAN
"""The earliest valid end of a span without a start. The start is then SPAN before the end, and no date is earlier than
the year 1."""

Amount = Annotated[
    msgspec.Raw, Meta(extra_json_schema={"type": "number"}, description="Exact, with at most six decimals.")
]
GroupKey = Annotated[GroupBy, Meta(extra={"must": f"must be {', '.join(GroupBy)}"})]


class WindowAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    window_id: int
    start_at: Instant
    end_at: Instant
    factors: dict[Literal["1", "2", "3"], Amount]
    sessions: int | None
    usage: Amount | None
    delivered_at: Instant | None
    delivery: Literal["delivered", "waiting", "notSent", "nothing"]


class ChunkAnswer(msgspec.Struct, frozen=True, rename="camel"):
    chunk: int
    submission_id: Uuid | None
    sessions: int
    usage: Amount
    digest: str | None
    delivered_at: Instant | None
    receipt: bool


class WholeWindowAnswer(WindowAnswer, frozen=True, rename="camel", kw_only=True):
    chunks: list[ChunkAnswer]


class WindowList(msgspec.Struct, frozen=True, rename="camel"):
    windows: list[WindowAnswer]
    count: int
    next_cursor: str | None


class UsageGroupAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One group of the sum. Of the ids and `sessionKind`, only the field that the request grouped by is set."""

    tenant_object_id: Uuid | UnsetType = UNSET
    capacity_id: Uuid | UnsetType = UNSET
    user_object_id: Uuid | UnsetType = UNSET
    session_kind: KindNumber | UnsetType = UNSET
    session_id: Uuid | UnsetType = UNSET
    usage: Amount
    sessions: int


class UsageAnswer(msgspec.Struct, frozen=True, rename="camel"):
    from_at: Instant = msgspec.field(name="from")
    to_at: Instant = msgspec.field(name="to")
    final_until: Instant
    group_by: GroupBy | None
    groups: list[UsageGroupAnswer]
    count: int
    next_cursor: str | None


KEYS = {
    GroupBy.TENANT: "tenant_object_id",
    GroupBy.CAPACITY: "capacity_id",
    GroupBy.USER: "user_object_id",
    GroupBy.KIND: "session_kind",
    GroupBy.SESSION: "session_id",
}


class WindowQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    limit: PageLimit = 100
    cursor: Cursor | None = None


class UsageQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    from_at: GivenInstant | None = msgspec.field(name="from", default=None)
    to_at: GivenInstant | None = msgspec.field(name="to", default=None)
    tenant: Uuid | None = None
    capacity: Uuid | None = None
    user: Uuid | None = None
    group_by: GroupKey | None = None
    quick: Annotated[Literal["true", "false"], Meta(extra={"must": "must be true or false"})] = "false"
    limit: PageLimit = 100
    cursor: Cursor | None = None


class SendBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    from_at: GivenInstant = msgspec.field(name="from")
    to_at: GivenInstant | None = msgspec.field(name="to", default=None)


class SentAnswer(msgspec.Struct, frozen=True, rename="camel"):
    windows: int
    chunks: int
    complete: bool


class UsageRoutes:
    def __init__(
        self, store: Store, rules: CutRules, hint: Callable[[], None], telemetry: Telemetry, prefix: str
    ) -> None:
        self._store = store
        self._rules = rules
        self._hint = hint
        self._telemetry = telemetry
        self._path = f"{prefix}/usage"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/usage",
                handler=self.sums,
                grants=narrowed(READERS),
                tag="usage",
                summary="Sum usage over a span",
                description=(
                    "Sums the usage as if windows had been cut at both ends of the span. Usage after finalUntil may "
                    "change. With `quick`, a sum of many sessions may cover only full hours: `from` and `to` in the "
                    "response say which."
                ),
                query=UsageQuery,
                answers={200: UsageAnswer},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/usage/windows",
                handler=self.windows,
                grants=READERS,
                tag="usage",
                summary="List windows, newest first",
                description="A window that was just cut has no sums until it is divided, a moment later.",
                query=WindowQuery,
                answers={200: WindowList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="POST",
                path="/usage/windows/send",
                handler=self.send,
                grants=OPERATORS,
                tag="usage",
                summary="Send windows that were cut without a gateway",
                description=(
                    "Sends the windows that begin in the span and were never sent. Repeat the request until `complete` "
                    "is true: no window is sent twice."
                ),
                body=SendBody,
                answers={200: SentAnswer},
                refusals=(Invalid, NoUsageGateway, TooLarge, UnsupportedMediaType, Unavailable),
            ),
            Route(
                method="GET",
                path="/usage/windows/{windowId}",
                handler=self.window,
                grants=READERS,
                tag="usage",
                summary="Read a window, its chunks and their delivery",
                answers={200: WholeWindowAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
        ]

    async def windows(self, call: Call) -> Answer:
        query: WindowQuery = call.query
        before = None if query.cursor is None else number_of(query.cursor)
        found = await self._store.list_windows(before, query.limit + 1)
        path = f"{self._path}/windows"
        return page(found, query, path, lambda window: cursor_of_text(str(window.window_id)), _listed)

    async def window(self, call: Call) -> Answer:
        text = call.path["windowId"]
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX else 0
        found = await self._store.get_window(number)
        if found is None:
            raise NotFound(f"window {text[:64]} does not exist")
        window, chunks = found
        return Answer(WholeWindowAnswer(chunks=[_chunk(chunk) for chunk in chunks], **_window_fields(window)))

    async def send(self, call: Call) -> Answer:
        body: SendBody = call.body
        if self._rules.contract is None:
            raise NoUsageGateway("gateway usages is not configured on this instance")
        from_at, to_at = in_utc("from", body.from_at), in_utc("to", body.to_at)
        _check_order(from_at, to_at)
        draft = draft_of(call.actor, from_at, to_at)
        sent = await send_windows(self._store, self._rules.contract, from_at, to_at, SENT_PER_REQUEST, draft)
        if sent.windows:
            self._telemetry.report(UsageHandedOver(sent.windows, sent.chunks))
            self._hint()
        return Answer(SentAnswer(sent.windows, sent.chunks, sent.complete))

    async def sums(self, call: Call) -> Answer:
        query, after = _continued(call.query)
        sum_query = UsageSumQuery(
            from_at=query.from_at,
            to_at=query.to_at,
            criteria=UsageFilter(tenant=_lower(query.tenant), capacity=_lower(query.capacity), user=_lower(query.user)),
            group_by=query.group_by,
            scope=call.caller.scope,
            factors=self._rules.factors,
            quick=query.quick == "true",
        )
        found = await self._store.sum_usage(sum_query, after, query.limit + 1)

        def cursor_after(group: UsageGroup) -> str:
            ends = (to_microseconds(found.from_at), to_microseconds(found.to_at))
            return cursor_of_text(f"{query.group_by} {ends[0]} {ends[1]} {group.key}")

        def listed(groups: Sequence[UsageGroup], count: int, cursor: str | None) -> UsageAnswer:
            named = [_group(query.group_by, group) for group in groups]
            span = (instant(found.from_at), instant(found.to_at), instant(found.final_until))
            return UsageAnswer(*span, query.group_by, named, count, cursor)

        return page(
            found.groups, replace(query, from_at=found.from_at, to_at=found.to_at), self._path, cursor_after, listed
        )


def _continued(query: UsageQuery) -> tuple[UsageQuery, str | None]:
    """Returns the query for this page, and the key of the group after which the page starts.

    The cursor contains the span of the first page, so that all pages cover the same span.
    """
    if query.cursor is None:
        return _checked(query), None
    if query.group_by is None:
        raise forged()
    try:
        group_by, from_text, to_text, key = text_of(query.cursor).split(" ")
        from_at, to_at = (from_microseconds(int(text)) for text in (from_text, to_text))
    except (ValueError, OverflowError) as error:
        raise forged() from error
    if group_by != query.group_by or not _is_key(query.group_by, key):
        raise forged()
    return replace(query, from_at=from_at, to_at=to_at), key


def _is_key(group_by: GroupBy, key: str) -> bool:
    return key in map(str, KINDS) if group_by is GroupBy.KIND else canonical_id(key) == key


def _checked(query: UsageQuery) -> UsageQuery:
    from_at, to_at = in_utc("from", query.from_at), in_utc("to", query.to_at)
    _check_order(from_at, to_at)
    if from_at is None and to_at is not None and to_at < EARLIEST_END:
        raise Invalid(FieldError("to", "must be at least 30 days after the first instant of year 1"))
    return replace(query, from_at=from_at, to_at=to_at)


def _check_order(from_at: datetime | None, to_at: datetime | None) -> None:
    if from_at is not None and to_at is not None and from_at >= to_at:
        raise Invalid(FieldError("from", "must be before to"))


def _lower(uuid: str | None) -> str | None:
    return uuid and uuid.lower()


def _group(group_by: GroupBy | None, group: UsageGroup) -> UsageGroupAnswer:
    key: Any = int(group.key) if group_by is GroupBy.KIND and group.key is not None else group.key
    named = {} if group_by is None else {KEYS[group_by]: key}
    return UsageGroupAnswer(usage=_amount(group.usage_millionths), sessions=group.sessions, **named)


def _listed(windows: Sequence[Window], count: int, cursor: str | None) -> WindowList:
    return WindowList([WindowAnswer(**_window_fields(window)) for window in windows], count, cursor)


def _window_fields(window: Window) -> dict[str, Any]:
    return {
        "window_id": window.window_id,
        "start_at": instant(window.started_at),
        "end_at": instant(window.ended_at),
        "factors": {str(kind): _amount(factor) for kind, factor in zip(KINDS, window.era.factors, strict=True)},
        "sessions": window.sessions,
        "usage": None if window.usage_millionths is None else _amount(window.usage_millionths),
        "delivered_at": window.delivered_at and instant(window.delivered_at),
        "delivery": _delivery(window),
    }


def _delivery(window: Window) -> str:
    if window.sessions == 0:
        return "nothing"
    if window.contract is None:
        return "notSent"
    return "waiting" if window.delivered_at is None else "delivered"


def _chunk(chunk: Chunk) -> ChunkAnswer:
    return ChunkAnswer(
        chunk.chunk,
        chunk.submission_id,
        chunk.sessions,
        _amount(chunk.usage_millionths),
        None if chunk.digest is None else chunk.digest.hex(),
        chunk.delivered_at and instant(chunk.delivered_at),
        chunk.has_receipt,
    )


def _amount(millionths: int) -> msgspec.Raw:
    return msgspec.Raw(decimal_text(millionths).encode())
