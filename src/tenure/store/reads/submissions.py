"""The reads of `submissions` and `submission_attempts` that all engines share."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    String,
    bindparam,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    union_all,
)

from tenure.clock import from_microseconds, to_microseconds
from tenure.domain.submissions import (
    Attempt,
    Change,
    Contract,
    Envelope,
    OpenAttempt,
    PendingEntry,
    PendingPage,
    Submission,
    SubmissionCount,
    SubmissionFilter,
    SubmissionState,
)
from tenure.ids import id_of_number, number_of_id
from tenure.store.expressions import unsearched
from tenure.store.limits import COUNTED_GATEWAYS_MAX, COUNTED_MAX, COUNTED_MIN, COUNTED_TOTAL
from tenure.store.reads.sessions import read_now
from tenure.store.tables import submission_attempts, submissions

COLUMNS = tuple(submissions.c[name] for name in Submission.__struct_fields__)
ATTEMPT_COLUMNS = tuple(submission_attempts.c[name] for name in Attempt.__struct_fields__)
ENVELOPE_COLUMNS = tuple(submissions.c[name] for name in Envelope.__struct_fields__)

_decode = msgspec.json.Decoder(Contract).decode
_encode = msgspec.json.Encoder().encode


def contract_text(contract: Contract) -> str:
    return _encode(contract).decode()


def contract_of(text: str) -> Contract:
    return _decode(text)


def get_submission(
    connection: Connection, submission_id: str, owner: str | None
) -> tuple[Submission, Sequence[Attempt]] | None:
    rows = connection.execute(get_statement(submission_id, owner)).mappings().all()
    if not rows:
        return None
    found = Submission(**{column.name: rows[0][column.name] for column in COLUMNS})
    return found, [_attempt(row) for row in rows if row["attempt_number"] is not None]


def get_statement(submission_id: str, owner: str | None) -> Select[Any]:
    """Selects a submission with its attempts. It is one statement for both tables, so that PostgreSQL and SQLite read
    both at one instant.
    """
    owned = [] if owner is None else [unsearched(submissions.c.caller == owner)]
    named = [column.label(f"attempt_{column.name}") for column in ATTEMPT_COLUMNS]
    of_submission = submission_attempts.c.submission_id == submissions.c.submission_id
    return (
        select(*COLUMNS, *named)
        .outerjoin_from(submissions, submission_attempts, of_submission)
        .where(submissions.c.submission_id == submission_id, *owned)
        .order_by(submission_attempts.c.number)
    )


def _attempt(row: RowMapping) -> Attempt:
    return Attempt(**{column.name: row[f"attempt_{column.name}"] for column in ATTEMPT_COLUMNS})


def list_submissions(
    connection: Connection, criteria: SubmissionFilter, before: str | None, limit: int
) -> Sequence[Submission]:
    rows = connection.execute(list_statement(criteria, before, limit)).mappings()
    return [Submission(**row) for row in rows]


def list_statement(criteria: SubmissionFilter, before: str | None, limit: int) -> Select[Any]:
    """Selects submissions, newest first. Ids sort by the time of creation."""
    by_id = submissions.c.submission_id
    if criteria.gateway is None and criteria.state is None:
        statement = select(*COLUMNS) if before is None else select(*COLUMNS).where(by_id < before)
        return statement.order_by(by_id.desc()).limit(limit)
    states = [*SubmissionState] if criteria.state is None else [criteria.state]
    parts = [_newest(criteria.gateway, state, before or LAST_ID, limit) for state in states]
    ids = union_all(*(select(part.subquery()) for part in parts)).subquery("ids")
    on_page = select(ids.c.submission_id).order_by(ids.c.submission_id.desc()).limit(limit)
    return select(*COLUMNS).where(by_id.in_(on_page)).order_by(by_id.desc())


_HAS_KEY = submissions.c.delivery_key > literal_column("''")
"""A condition that is always true. The planner uses the partial indexes of the list only if a statement contains it."""
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


def _newest(gateway: str | None, state: str, before: str, limit: int) -> Select[Any]:
    """Selects the newest ids below `before` with this state and, if given, this gateway, from one range of an index.

    The statement compares and sorts tuples of all columns of the index. With the simpler condition `gateway = …`, the
    planner might read the submissions of all gateways and states in the order of their ids.
    """
    row = submissions.c
    columns, values = [row.state], [literal(state, row.state.type)]
    if gateway is not None:
        columns, values = [row.gateway, *columns], [literal(gateway, row.gateway.type), *values]
    last = [*values, literal(before, row.submission_id.type)]
    return (
        select(row.submission_id)
        .where(_HAS_KEY, tuple_(*columns) >= tuple_(*values), tuple_(*columns, row.submission_id) < tuple_(*last))
        .order_by(*(column.desc() for column in (*columns, row.submission_id)))
        .limit(limit)
    )


COUNTED_STATES = (
    SubmissionState.PENDING,
    SubmissionState.FAILED,
    SubmissionState.CANCELLED,
    SubmissionState.DELIVERED,
)
"""The order of counting: first the states that matter most to an operator. Later states may be counted only up to
COUNTED_MIN, because COUNTED_TOTAL may be used up."""
CountStatement = Callable[[str, str, int], Select[Any]]


def count_submissions(connection: Connection) -> Sequence[SubmissionCount]:
    return count_with(connection, next_gateway_statement, count_statement)


def count_with(
    connection: Connection, next_gateway: Callable[[str], Select[Any]], count: CountStatement
) -> Sequence[SubmissionCount]:
    """Counts the entries of an index, up to limits, because counting a million entries takes half a second.

    A table with exact counts would need no limits. But every transaction that accepts or delivers a submission would
    update this table, and wait for the other such transactions.
    """
    gateways: list[str] = []
    while len(gateways) < COUNTED_GATEWAYS_MAX:
        found = connection.execute(next_gateway(gateways[-1] if gateways else "")).scalar_one_or_none()
        if found is None:
            break
        gateways.append(found)
    left, counted = COUNTED_TOTAL, []
    for state in COUNTED_STATES:
        for gateway in gateways:
            most = min(COUNTED_MAX, max(left, COUNTED_MIN))
            # Count one more than is returned, to know whether there are more.
            number = connection.execute(count(gateway, state.value, most + 1)).scalar_one()
            left -= number
            if number:
                counted.append(SubmissionCount(gateway, state.value, min(number, most), number <= most))
    return sorted(counted, key=lambda each: (each.gateway, COUNTED_STATES.index(SubmissionState(each.state))))


def next_gateway_statement(after: str) -> Select[Any]:
    """Selects the first gateway after `after` that has submissions, from one entry of the index."""
    row = submissions.c
    return (
        select(row.gateway)
        .where(_HAS_KEY, row.gateway > after)
        .order_by(row.gateway, row.state, row.submission_id)
        .limit(1)
    )


def count_statement(gateway: str, state: str, limit: int) -> Select[Any]:
    return select(func.count()).select_from(_newest(gateway, state, LAST_ID, limit).subquery())


def state_literal(state: str) -> BindParameter[str]:
    """Puts the state into the text of the statement: a partial index is not used if the state is a parameter."""
    return bindparam(None, state, String, literal_execute=True)


def list_pending(connection: Connection, after: Change | None, limit: int) -> PendingPage:
    # Read the clock first: changes after this instant may be missing from the page.
    now = read_now(connection)
    rows = connection.execute(pending_statement(after, limit))
    return PendingPage(now, [_pending_entry(*row) for row in rows])


def _pending_entry(submission_id: str, gateway: str, due_at: datetime | None, changed_at: datetime) -> PendingEntry:
    due = None if due_at is None else to_microseconds(due_at)
    return PendingEntry(number_of_id(submission_id), gateway, due, to_microseconds(changed_at))


def pending_statement(after: Change | None, limit: int) -> Select[Any]:
    row = submissions.c
    columns = (row.submission_id, row.gateway, row.next_attempt_at, row.last_modified_at)
    statement = select(*columns).where(row.state == state_literal(SubmissionState.PENDING.value))
    if after is not None:
        changed_at = from_microseconds(after.changed_microseconds)
        # The first condition is redundant, but the database can use it to search an index.
        statement = statement.where(
            row.last_modified_at >= changed_at,
            or_(row.last_modified_at > changed_at, row.submission_id > id_of_number(after.number)),
        )
    return statement.order_by(row.last_modified_at, row.submission_id).limit(limit)


def list_orphaned_attempts(connection: Connection, epoch: int, limit: int) -> Sequence[OpenAttempt]:
    """Returns open attempts of other epochs than `epoch`."""
    # The attempts and the submissions are read in separate statements: on SQL Server, a join could lock rows in another
    # order than the writes do.
    epochs = submission_attempts.c.epoch
    numbers: dict[str, int] = {}
    # An orphaned attempt can also have a later epoch: if the executor's lease was renamed, the epochs began again at 1.
    # Earlier and later epochs are read in separate statements, so that each statement reads one range of the index.
    for is_other in (epochs < epoch, epochs > epoch):
        rows = connection.execute(_open_attempts(is_other, limit - len(numbers)))
        numbers |= {row.submission_id: row.number for row in rows}
    row = submissions.c
    columns = select(row.submission_id, row.gateway, row.unknowns, row.contract)
    found = connection.execute(columns.where(row.submission_id.in_(list(numbers))))
    return [
        OpenAttempt(submission_id, numbers[submission_id], gateway, unknowns, contract_of(contract))
        for submission_id, gateway, unknowns, contract in found
    ]


def _open_attempts(of_epochs: ColumnElement[bool], limit: int) -> Select[Any]:
    attempt = submission_attempts.c
    return select(attempt.submission_id, attempt.number).where(attempt.ended_at.is_(None), of_epochs).limit(limit)


def read_envelopes(connection: Connection, submission_ids: Sequence[str]) -> Sequence[Envelope]:
    rows = connection.execute(select(*ENVELOPE_COLUMNS).where(submissions.c.submission_id.in_(submission_ids)))
    return [envelope(*row) for row in rows]


def envelope(
    submission_id: str,
    delivery_key: str,
    payload: bytes | None,
    contract: str,
    request_id: str | None,
    traceparent: str | None,
) -> Envelope:
    return Envelope(submission_id, delivery_key, payload or b"", contract_of(contract), request_id, traceparent)
