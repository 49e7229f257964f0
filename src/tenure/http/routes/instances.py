"""The routes of instances and of activity: the counts of openings, refusals, heartbeats and ends on all instances, for
each minute or longer step.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from tenure.access.grants import READERS
from tenure.domain.activity import ACTIVITY_POINTS_MAX, CLOSED, STEP_MAX_SECONDS, ActivityPoint, ActivityQuery, lapsed
from tenure.domain.instances import Instance
from tenure.errors import FieldError, Invalid, Unavailable
from tenure.http.answers import Answer
from tenure.http.fields import Cursor, GivenInstant, Instant, PageLimit, in_utc, instant
from tenure.http.pages import cursor_of_text, page, text_of
from tenure.http.pipeline import Call, Route
from tenure.store.contract import Store

Step = Annotated[
    int,
    Meta(
        ge=60,
        le=STEP_MAX_SECONDS,
        multiple_of=60,
        extra={"must": f"must be a multiple of 60, from 60 to {STEP_MAX_SECONDS} seconds"},
    ),
]


class InstanceQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    limit: PageLimit = 100
    cursor: Cursor | None = None


class InstanceAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    instance: str
    holder: str
    host: str
    pid: int
    worker: int
    version: str
    started_at: Instant
    last_seen_at: Instant
    stopped_at: Instant | None
    alive: bool
    leads: list[str]


class InstanceList(msgspec.Struct, frozen=True, rename="camel"):
    instances: list[InstanceAnswer]
    count: int
    next_cursor: str | None


class ActivityParameters(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    from_at: GivenInstant | None = msgspec.field(name="from", default=None)
    to_at: GivenInstant | None = msgspec.field(name="to", default=None)
    step: Step = 60


class ActivityPointAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    at: Instant
    opened: int
    upgraded: int
    existing: int
    refused: int
    heartbeats: int
    late_heartbeats: int
    closed: dict[str, int]
    lapsed: int


class ActivityAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    from_at: Instant = msgspec.field(name="from")
    to_at: Instant = msgspec.field(name="to")
    step_seconds: int
    points: list[ActivityPointAnswer]


class InstanceRoutes:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._path = f"{prefix}/instances"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/instances",
                handler=self.list,
                grants=READERS,
                tag="operations",
                summary="List instances, by name",
                description=(
                    "The worker processes of the installation, each with the leases that it holds, except the locks "
                    "of jobs. An instance is `alive` if it has not stopped and was last seen at most 30 seconds ago, "
                    "by the database's clock."
                ),
                query=InstanceQuery,
                answers={200: InstanceList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/activity",
                handler=self.activity,
                grants=READERS,
                tag="operations",
                summary="Count openings, heartbeats and ends over time",
                description=(
                    "The counts of all instances, for each step of the span. The last 12 seconds may be incomplete. "
                    "Counts are kept for 8 days."
                ),
                query=ActivityParameters,
                answers={200: ActivityAnswer},
                refusals=(Invalid, Unavailable),
            ),
        ]

    async def list(self, call: Call) -> Answer:
        query: InstanceQuery = call.query
        after = None if query.cursor is None else text_of(query.cursor)
        found = await self._store.list_instances(after, query.limit + 1)
        return page(found, query, self._path, lambda each: cursor_of_text(each.instance), _listed)

    async def activity(self, call: Call) -> Answer:
        given: ActivityParameters = call.query
        query = ActivityQuery(in_utc("from", given.from_at), in_utc("to", given.to_at), given.step)
        found = await self._store.read_activity(query)
        if found is None:
            allowed = f"must be before `to` and in the past; the span may have at most {ACTIVITY_POINTS_MAX} steps"
            raise Invalid(FieldError("from", allowed))
        return Answer(
            ActivityAnswer(
                from_at=instant(found.span.from_at),
                to_at=instant(found.span.to_at),
                step_seconds=given.step,
                points=[_point(point) for point in found.points],
            )
        )


def _listed(instances: Sequence[Instance], count: int, cursor: str | None) -> InstanceList:
    return InstanceList([_instance(each) for each in instances], count, cursor)


def _instance(found: Instance) -> InstanceAnswer:
    return InstanceAnswer(
        instance=found.instance,
        holder=found.holder,
        host=found.host,
        pid=found.pid,
        worker=found.worker,
        version=found.version,
        started_at=instant(found.started_at),
        last_seen_at=instant(found.last_seen_at),
        stopped_at=found.stopped_at and instant(found.stopped_at),
        alive=found.alive,
        leads=list(found.leads),
    )


def _point(point: ActivityPoint) -> ActivityPointAnswer:
    counts = point.counts
    return ActivityPointAnswer(
        at=instant(point.at),
        opened=counts["opened"],
        upgraded=counts["upgraded"],
        existing=counts["existing"],
        refused=counts["refused"],
        heartbeats=counts["heartbeats"],
        late_heartbeats=counts["late_heartbeats"],
        closed={reason: counts[name] for reason, name in CLOSED.items() if counts[name]},
        lapsed=lapsed(counts),
    )
