"""Between records of asyncpg and the model; arguments and answers of the functions in `migrations/postgres`."""

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg

from tenure.clock import to_microseconds
from tenure.deadlines import opened, span_of
from tenure.ids import id_text
from tenure.model.leases import JOB_LOCK, BeginFound, Begun, Fence, Lease
from tenure.model.sessions import (
    Attached,
    Closing,
    Ended,
    Found,
    Kept,
    Limits,
    Open,
    Opened,
    Outcome,
    Session,
    StreamCounters,
    StreamUpdated,
)
from tenure.model.submissions import (
    Accepted,
    BeginAttemptFound,
    BegunAttempt,
    BegunAttempts,
    SubmissionState,
    Submit,
    Waiting,
    WaitingPage,
)
from tenure.store import leases, sessions

SESSION_COLUMNS = ", ".join(f"(e.session).{column.name}" for column in sessions.COLUMNS)
"""Column by column: for a composite, asyncpg asks every new connection a dozen questions about its type."""


def array(values: Sequence[str]) -> str:
    """An array as text, for values that need no quotes. asyncpg's own encoding costs more than the rest of the call."""
    return f"{{{','.join(values)}}}"


def numbers(values: Sequence[int | None]) -> str | None:
    """`unnest` fills up a missing array with NULLs, which is cheaper than sending them."""
    if not any(values):
        return None
    return array(["NULL" if value is None else str(value) for value in values])


def flags(values: Sequence[bool]) -> str:
    return array(["t" if value else "f" for value in values])


def openings(lines: Sequence[asyncpg.Record], wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
    answers: list[Opened | None] = [None] * len(wishes)
    closings: dict[int, list[Closing]] = {}
    for line in lines:
        position, outcome = line[0], line[1]
        if position is None:
            if outcome == "created":
                return _created_or(answers, wishes, limits, line[5])
        elif outcome == "closing":
            closings.setdefault(position, []).append(Closing(str(line[2]), line[8], line[7]))
        else:
            answers[position - 1] = _opening(line, wishes[position - 1], limits)
    found = [answer or _AGAIN for answer in answers]
    for position, closed in closings.items():
        found[position - 1] = Opened(found[position - 1].outcome, found[position - 1].session, closed)
    return found


_AGAIN = Opened(Outcome.AGAIN)


def _created_or(
    answers: Sequence[Opened | None], wishes: Sequence[Open], limits: Limits, started_at: datetime
) -> Sequence[Opened]:
    span = span_of(limits, started_at)
    return [
        answer or Opened(Outcome.CREATED, opened(wish, limits, started_at, span))
        for answer, wish in zip(answers, wishes, strict=True)
    ]


def _opening(line: asyncpg.Record, wish: Open, limits: Limits) -> Opened:
    outcome = Outcome(line[1])
    if outcome not in (Outcome.CREATED, Outcome.EXISTING, Outcome.UPGRADED):
        return Opened(outcome)
    if line[3] is None:
        return Opened(outcome, opened(wish, limits, line[5]))
    return Opened(outcome, _found(line, wish))


def _found(line: asyncpg.Record, wish: Open) -> Session:
    previous = line[14]
    return Session(
        session_id=str(line[2]),
        tenant_object_id=str(line[16]),
        user_object_id=wish.user_object_id,
        capacity_id=wish.capacity_id,
        kind=line[3],
        state=line[4],
        started_at=line[5],
        term_ends_at=line[6],
        deadline_at=line[7],
        lapse_reason=line[8],
        lease_microseconds=line[9],
        idle_microseconds=line[10],
        heartbeat_microseconds=line[11],
        last_heartbeat_at=line[12],
        last_activity_at=line[13],
        previous_session_id=None if previous is None else str(previous),
        modified_at=line[15],
        stream=None if line[17] is None else StreamCounters(*line[17]),
    )


def session(record: asyncpg.Record) -> Session:
    return sessions.session_from_values(plain(record))


def kept(lines: Sequence[asyncpg.Record], session_ids: Sequence[str]) -> Sequence[Kept]:
    answers = [_UNKNOWN] * len(session_ids)
    for position, found, state, deadline_at, heartbeat, close_reason, recorded in lines:
        closing = Closing(session_ids[position - 1], close_reason, deadline_at) if recorded else None
        answers[position - 1] = Kept(Found(found), state, deadline_at, heartbeat, close_reason, closing)
    return answers


_UNKNOWN = Kept(Found.UNKNOWN)


def ended(lines: Sequence[asyncpg.Record], count: int) -> Sequence[Ended]:
    answers = [Ended(Found.UNKNOWN)] * count
    for line in lines:
        held = line["session_id"] is None
        answers[line["position"] - 1] = (
            Ended(Found.HELD) if held else Ended(Found.OVER, session(line), line["recorded"])
        )
    return answers


def attached(lines: Sequence[asyncpg.Record], count: int) -> Sequence[Attached]:
    answers = [Attached(Found.UNKNOWN)] * count
    for line in lines:
        one = session(line)
        closing = Closing(one.session_id, one.lapse_reason, one.deadline_at) if line["recorded"] else None
        answers[line["position"] - 1] = Attached(Found(line["found"]), one, line["attachment"], line["now"], closing)
    return answers


def streams_updated(lines: Sequence[asyncpg.Record], count: int) -> Sequence[StreamUpdated]:
    answers = [StreamUpdated(Found.UNKNOWN)] * count
    for line in lines:
        answers[line["position"] - 1] = StreamUpdated(
            Found(line["found"]), session(line), line["now"], line["recorded"]
        )
    return answers


def lease(line: asyncpg.Record) -> Lease:
    return leases.lease_from_values(line, line["now"])


def begun(line: asyncpg.Record, job: str, holder: str) -> Begun:
    found = BeginFound(line["found"])
    if found is not BeginFound.BEGUN:
        return Begun(found)
    name = JOB_LOCK + job
    reclaimed = line["reclaimed_epoch"] and Fence(name, line["reclaimed_holder"], line["reclaimed_epoch"])
    return Begun(
        found,
        fence=Fence(name, holder, line["epoch"]),
        started_at=line["started_at"],
        expires_at=line["expires_at"],
        tick_at=line["tick_at"],
        lock_timeout_microseconds=line["lock_timeout_microseconds"],
        failures_in_a_row=line["failures_in_a_row"],
        reclaimed=reclaimed,
    )


def accepted(lines: Sequence[asyncpg.Record], wishes: Sequence[Submit]) -> Sequence[Accepted]:
    """What nothing is told of was made by this call."""
    pending = SubmissionState.PENDING.value
    answers = [Accepted(wish.submission_id, pending, same=True, new=True) for wish in wishes]
    for position, submission_id, state, same, new in lines:
        answers[position - 1] = Accepted(str(submission_id), state, same, new)
    return answers


def waiting(line: asyncpg.Record) -> WaitingPage:
    now, gateways, packed = line
    if packed is None:
        return WaitingPage(now, [])
    rows = [
        (int.from_bytes(each, "big"), gateway, None if due == _NEVER else due + _SINCE_1970, changed + _SINCE_1970)
        for (each, changed, due), gateway in zip(_WAITING.iter_unpack(packed), gateways, strict=True)
    ]
    return WaitingPage(now, list(map(Waiting._make, rows)))


_WAITING = struct.Struct(">16sqq")
_NEVER = -(1 << 63)
_SINCE_1970 = to_microseconds(datetime(2000, 1, 1, tzinfo=UTC))
"""PostgreSQL counts from 2000."""


def begun_attempts(lines: Sequence[asyncpg.Record]) -> BegunAttempts:
    return BegunAttempts(
        lines[0][5], [BegunAttempt(str(line[0]), BeginAttemptFound(line[1]), *line[2:5]) for line in lines]
    )


def plain(record: asyncpg.Record) -> dict[str, Any]:
    """With ids as canonical strings."""
    return {
        name: id_text(value) if name.endswith("_id") and value is not None else value for name, value in record.items()
    }
