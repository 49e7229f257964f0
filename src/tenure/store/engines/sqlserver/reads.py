"""The reads for which SQL Server needs its own statements."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Select, String, cast, func, select, text

from tenure.domain.doctor import ReadOnly, ServerFacts
from tenure.domain.submissions import (
    Submission,
    SubmissionCount,
    SubmissionFilter,
)
from tenure.domain.usage import ChunkDelivery, Overlap
from tenure.store.reads import sessions as session_reads
from tenure.store.reads import usage
from tenure.store.reads.sessions import read_now
from tenure.store.reads.submissions import COLUMNS, count_with, state_literal
from tenure.store.tables import sessions, submissions
from tenure.store.types import ID_LENGTH

BY_ID = "WITH (INDEX (sessions_pkey))"
"""Reads the sessions of a window by primary key. Closing a session moves it from one of the other indexes to another,
so a read of those indexes could miss the session or return it twice.
"""
BY_GATEWAY = "WITH (FORCESEEK, INDEX (submissions_gateway))"
READS_MAX = 5

_id_text = cast(submissions.c.submission_id, String(ID_LENGTH)).collate("Latin1_General_100_BIN2")
"""The id as text in upper case, for sorting: SQL Server sorts ids by their last digits first, which are random."""


def id_order(session_id: str) -> bytes:
    """Returns a sort key that gives the order in which SQL Server sorts ids: it compares the last group of digits
    first, then each group before it. It compares the bytes of each of the first three groups from right to left.
    """
    value = UUID(session_id).bytes
    return value[10:] + value[8:10] + value[7:5:-1] + value[5:3:-1] + value[3::-1]


SERVER = text(
    "SELECT CAST(@@MAX_CONNECTIONS AS int), CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(20))"
)
"""The number of open connections is not read, because only logins with VIEW SERVER STATE can see it."""


def read_server(connection: Connection) -> ServerFacts:
    connections_max, updateability = connection.execute(SERVER).one()
    return ServerFacts(
        now=read_now(connection),
        connections_max=connections_max,
        read_only=ReadOnly.DATABASE if updateability == "READ_ONLY" else None,
    )


def list_submissions(
    connection: Connection, criteria: SubmissionFilter, before: str | None, limit: int
) -> Sequence[Submission]:
    rows = connection.execute(submissions_page_statement(criteria, before, limit)).mappings()
    return [Submission(**row) for row in rows]


def submissions_page_statement(criteria: SubmissionFilter, before: str | None, limit: int) -> Select[Any]:
    """Reads the ids of all matching submissions, but complete rows only for those on the page."""
    ids = select(submissions.c.submission_id).order_by(_id_text.desc()).limit(limit)
    if criteria.gateway is not None:
        ids = ids.where(submissions.c.gateway == criteria.gateway)
    if criteria.state is not None:
        ids = ids.where(submissions.c.state == state_literal(criteria.state))
    if before is not None:
        ids = ids.where(_id_text < before.upper())
    on_page = submissions.c.submission_id.in_(ids)
    return select(*COLUMNS).where(on_page).order_by(_id_text.desc())


def count_submissions(connection: Connection) -> Sequence[SubmissionCount]:
    return count_with(connection, next_gateway_statement, count_statement)


def count_statement(gateway: str, state: str, limit: int) -> Select[Any]:
    """Reads one span of the index on gateway and state. Unlike the shared statement, it compares no tuples, which SQL
    Server does not support.
    """
    row = submissions.c
    found = select(row.gateway).where(row.gateway == gateway, row.state == state)
    return select(func.count()).select_from(found.with_hint(submissions, BY_GATEWAY, "mssql").limit(limit).subquery())


def next_gateway_statement(after: str) -> Select[Any]:
    row = submissions.c
    statement = select(row.gateway).where(row.gateway > after).order_by(row.gateway).limit(1)
    return statement.with_hint(submissions, BY_GATEWAY, "mssql")


def list_deliveries(connection: Connection, window_id: int) -> Sequence[ChunkDelivery]:
    """Reads up to READS_MAX times, until two reads in a row are equal, and returns the last read. No delivery is ever
    undone, so the result of two equal reads was true at one instant between them.
    """
    found = usage.list_deliveries(connection, window_id)
    for _ in range(READS_MAX - 1):
        previous, found = found, usage.list_deliveries(connection, window_id)
        if found == previous:
            break
    return found


def find_overlaps(connection: Connection, limit: int) -> Sequence[Overlap]:
    """Reads each overlapping pair again. The first read may have seen one session before it was closed, and the other
    session, which was opened only after that close.
    """
    found = session_reads.find_overlaps(connection, limit)
    return [pair for pair in found if connection.execute(overlap_statement(pair)).one_or_none() is not None]


def overlap_statement(pair: Overlap) -> Select[Any]:
    one, other = sessions.alias("one"), sessions.alias("other")
    ended_at = func.coalesce(one.c.closed_at, one.c.deadline_at)
    both = one.c.session_id == pair.session_id, other.c.session_id == pair.other_session_id
    return select(one.c.session_id).join_from(one, other, other.c.started_at < ended_at).where(*both)
