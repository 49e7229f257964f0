"""The route of active and cleared alerts."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tenure.access.grants import READERS
from tenure.domain.alerts import Alert, AlertFilter, AlertName, AlertPosition
from tenure.domain.leases import NAME_MAX
from tenure.domain.sessions import Position
from tenure.errors import Invalid, Unavailable
from tenure.http.answers import Answer
from tenure.http.fields import Cursor, Instant, PageLimit, Uuid, instant
from tenure.http.pages import cursor_of, page, position_of
from tenure.http.pipeline import Call, Route
from tenure.store.contract import Store

FilterSubject = Annotated[
    str,
    Meta(
        pattern="^[ -~]+$",
        max_length=NAME_MAX,
        extra={"must": f"must be printable ASCII, at most {NAME_MAX} characters"},
    ),
]
FilterName = Annotated[AlertName, Meta(extra={"must": f"must be one of {', '.join(AlertName)}"})]
FilterState = Annotated[Literal["active", "cleared"], Meta(extra={"must": "must be active or cleared"})]


class AlertQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: FilterName | None = None
    subject: FilterSubject | None = None
    state: FilterState | None = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class AlertAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    alert_id: Uuid
    name: str
    subject: str | None
    state: Literal["active", "cleared"]
    detail: str
    raised_at: Instant
    cleared_at: Instant | None


class AlertList(msgspec.Struct, frozen=True, rename="camel"):
    alerts: list[AlertAnswer]
    count: int
    next_cursor: str | None


class AlertRoutes:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._path = f"{prefix}/alerts"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/alerts",
                handler=self.list,
                grants=READERS,
                tag="alerts",
                summary="List alerts, newest first",
                description="Active alerts, and those that were cleared in the last 90 days.",
                query=AlertQuery,
                answers={200: AlertList},
                refusals=(Invalid, Unavailable),
            ),
        ]

    async def list(self, call: Call) -> Answer:
        query: AlertQuery = call.query
        active = None if query.state is None else query.state == "active"
        criteria = AlertFilter(name=query.name and query.name.value, subject=query.subject, active=active)
        found = await self._store.list_alerts(criteria, _position_of(query.cursor), query.limit + 1)
        return page(
            found, query, self._path, lambda alert: cursor_of(Position(alert.raised_at, alert.alert_id)), _listed
        )


def _position_of(cursor: str | None) -> AlertPosition | None:
    if cursor is None:
        return None
    position = position_of(cursor)
    return AlertPosition(position.started_at, position.session_id)


def _listed(alerts: Sequence[Alert], count: int, cursor: str | None) -> AlertList:
    return AlertList([_answer(alert) for alert in alerts], count, cursor)


def _answer(alert: Alert) -> AlertAnswer:
    return AlertAnswer(
        alert_id=alert.alert_id,
        name=alert.name,
        subject=alert.subject,
        state="active" if alert.cleared_at is None else "cleared",
        detail=alert.detail,
        raised_at=instant(alert.raised_at),
        cleared_at=alert.cleared_at and instant(alert.cleared_at),
    )
