"""The horizon of events and the batches of gateways. Every function runs under the file's write lock, so no session
write is in progress.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, exists, func, insert, select, update

from tenure.domain.events import (
    EVENTS_CALLER,
    EventPosition,
    EventSubscription,
    NewEventBatch,
    delivery_key,
    end_of,
    types_text,
)
from tenure.domain.leases import Fence
from tenure.domain.sessions import Kind
from tenure.domain.submissions import SubmissionState
from tenure.store.engines.sqlite.leases import check_fence, lease_now
from tenure.store.engines.sqlite.submissions import insert_generated
from tenure.store.reads.submissions import contract_text
from tenure.store.tables import event_batches, event_subscriptions, installation, sessions, submissions

_row = event_subscriptions.c
_SETTLED = (SubmissionState.DELIVERED.value, SubmissionState.CANCELLED.value)


def publish_events(connection: Connection, now: datetime, pause_microseconds: int) -> datetime:
    """`now` is from `write_now`, so it is after the current horizon."""
    clock = lease_now(connection)
    published_at: datetime | None = connection.execute(select(installation.c.published_at)).scalar_one()
    if published_at is not None and published_at <= clock < published_at + timedelta(microseconds=pause_microseconds):
        return published_at
    # If `now` is after the clock, the clock was stepped back, and earlier writes may have timestamps later than `now`.
    # The horizon then moves at least to the newest of these timestamps.
    horizon = now if now <= clock else max([now, *_newest_stamps(connection)])
    connection.execute(update(installation).values(stamped_after=horizon, published_at=horizon))
    return horizon


def _newest_stamps(connection: Connection) -> Sequence[datetime]:
    session = sessions.c
    newest = [select(func.max(session.closed_at)).where(session.closed_at.is_not(None))]
    newest += [
        select(func.max(session.started_at)).where(session.close_reason.is_(None), session.kind == kind)
        for kind in Kind
    ]
    found = [connection.execute(statement).scalar_one() for statement in newest]
    return [stamp for stamp in found if stamp is not None]


def subscribe_gateways(
    connection: Connection, now: datetime, fence: Fence, gateways: Sequence[str]
) -> Sequence[EventSubscription]:
    """`now` is from `write_now`. A new gateway starts with the events after `now`."""
    check_fence(connection, fence)
    known = set(connection.execute(select(_row.gateway).where(_row.gateway.in_(gateways))).scalars())
    for gateway in gateways:
        if gateway not in known:
            connection.execute(insert(event_subscriptions).values(gateway=gateway, number=0, **_place(end_of(now))))
    found = connection.execute(select(event_subscriptions).where(_row.gateway.in_(gateways))).all()
    return [
        EventSubscription(
            row.gateway,
            EventPosition(row.position_at, row.position_rank, row.position_id),
            row.number,
            _is_settled(connection, row.submission_id),
        )
        for row in found
    ]


def _place(position: EventPosition) -> dict[str, object]:
    return {"position_at": position.at, "position_rank": position.rank, "position_id": position.session_id}


def _is_settled(connection: Connection, submission_id: str | None) -> bool:
    if submission_id is None:
        return True
    open_one = (submissions.c.submission_id == submission_id, submissions.c.state.not_in(_SETTLED))
    return not connection.execute(select(exists().where(*open_one))).scalar_one()


def save_event_batch(connection: Connection, now: datetime, fence: Fence, batch: NewEventBatch) -> bool:
    """`now` is from the plain clock, `lease_now`."""
    check_fence(connection, fence)
    last = connection.execute(
        select(event_subscriptions).where(_row.gateway == batch.gateway, _row.number == batch.number - 1)
    ).one_or_none()
    if last is None or EventPosition(last.position_at, last.position_rank, last.position_id) != batch.start:
        return False
    if not _is_settled(connection, last.submission_id):
        return False
    moved = update(event_subscriptions).where(_row.gateway == batch.gateway).values(**_place(batch.end))
    if batch.events == 0:
        connection.execute(moved)
        return True
    installation_id = connection.execute(select(installation.c.installation_id)).scalar_one()
    key = delivery_key(installation_id, batch.gateway, batch.number)
    connection.execute(
        insert(event_batches).values(
            gateway=batch.gateway,
            number=batch.number,
            from_at=batch.start.at,
            from_rank=batch.start.rank,
            from_id=batch.start.session_id,
            to_at=batch.end.at,
            to_rank=batch.end.rank,
            to_id=batch.end.session_id,
            types=types_text(batch.types),
            events=batch.events,
            digest=batch.digest,
            submission_id=batch.submission_id,
        )
    )
    insert_generated(
        connection,
        now,
        submission_id=batch.submission_id,
        gateway=batch.gateway,
        caller=EVENTS_CALLER,
        key=key,
        contract=contract_text(batch.contract),
    )
    connection.execute(moved.values(number=batch.number, submission_id=batch.submission_id))
    return True
