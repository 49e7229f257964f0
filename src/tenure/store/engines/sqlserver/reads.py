"""The reads for which SQL Server needs words of its own."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, Select, String, bindparam, cast, func, select

from tenure.clock import to_microseconds
from tenure.ids import number_of_id
from tenure.model.submissions import Change, Submission, SubmissionFilter, SubmissionState, Waiting, WaitingPage
from tenure.model.usage import ChunkDelivery, Overlap
from tenure.store import sessions as session_reads
from tenure.store import usage
from tenure.store.sessions import read_now
from tenure.store.submissions import COLUMNS, list_statement, waiting_statement
from tenure.store.tables import sessions, submissions
from tenure.store.types import ID_LENGTH

BY_ID = "WITH (INDEX (sessions_pkey))"
"""How sessions are read for a window: no other index, in which one that is being closed would change its place."""
LOOKS_MAX = 5

_id_text = cast(submissions.c.submission_id, String(ID_LENGTH)).collate("Latin1_General_100_BIN2")
"""SQL Server orders ids by their last digits first, which are random. Their text has capitals."""


def list_waiting(connection: Connection, after: Change | None, limit: int) -> WaitingPage:
    # The clock first, as the other engines read it.
    now = read_now(connection)
    rows = connection.execute(waiting_page(after, limit))
    return WaitingPage(now, [_waiting(*row) for row in rows])


def _waiting(submission_id: str, gateway: str, due_at: datetime | None, changed_at: datetime) -> Waiting:
    due = None if due_at is None else to_microseconds(due_at)
    return Waiting(number_of_id(submission_id), gateway, due, to_microseconds(changed_at))


def waiting_page(after: Change | None, limit: int) -> Select[Any]:
    return waiting_statement(after, limit).where(_is(SubmissionState.PENDING.value))


def list_submissions(
    connection: Connection, criteria: SubmissionFilter, before: str | None, limit: int
) -> Sequence[Submission]:
    rows = connection.execute(submissions_page(criteria, before, limit)).mappings()
    return [Submission(**row) for row in rows]


def submissions_page(criteria: SubmissionFilter, before: str | None, limit: int) -> Select[Any]:
    """Looks at the ids of all that fit, but only at the rows of those that are told."""
    ids = list_statement(replace(criteria, state=None), None, limit).with_only_columns(submissions.c.submission_id)
    if criteria.state is not None:
        ids = ids.where(_is(criteria.state))
    if before is not None:
        ids = ids.where(_id_text < before.upper())
    told = submissions.c.submission_id.in_(ids.order_by(None).order_by(_id_text.desc()))
    return select(*COLUMNS).where(told).order_by(_id_text.desc())


def _is(state: str) -> ColumnElement[bool]:
    """As part of the text: an index on some rows is not used for what a parameter might ask for."""
    return submissions.c.state == bindparam(None, state, submissions.c.state.type, literal_execute=True)


def list_deliveries(connection: Connection, window_id: int) -> Sequence[ChunkDelivery]:
    """Looks until it sees the same twice: so it then was between the two looks, since nothing is delivered back."""
    found = usage.list_deliveries(connection, window_id)
    for _ in range(LOOKS_MAX - 1):
        seen, found = found, usage.list_deliveries(connection, window_id)
        if found == seen:
            break
    return found


def find_overlaps(connection: Connection, limit: int) -> Sequence[Overlap]:
    """Looks again at what it finds: one may have been read before it was closed, and the next one after that."""
    found = session_reads.find_overlaps(connection, limit)
    return [pair for pair in found if connection.execute(overlap_statement(pair)).one_or_none() is not None]


def overlap_statement(pair: Overlap) -> Select[Any]:
    one, other = sessions.alias("one"), sessions.alias("other")
    ended_at = func.coalesce(one.c.closed_at, one.c.deadline_at)
    both = one.c.session_id == pair.session_id, other.c.session_id == pair.other_session_id
    return select(one.c.session_id).join_from(one, other, other.c.started_at < ended_at).where(*both)
