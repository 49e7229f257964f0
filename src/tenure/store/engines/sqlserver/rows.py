"""Between the model and the procedures in `migrations/sqlserver`: requests as JSON, answers from rows."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict, astuple, replace
from sqlalchemy import Row

from tenure.clock import MICROSECOND
from tenure.deadlines import opened, own_limits, span_of
from tenure.ids import new_id
from tenure.model.leases import (
    ERROR_MAX,
    JOB_LOCK,
    Acquired,
    BeginFound,
    Begun,
    Fence,
    Job,
    JobSettings,
    Lease,
    RunOutcome,
)
from tenure.model.sessions import (
    Attach,
    Attached,
    Closing,
    Ended,
    Found,
    Kept,
    Limits,
    Open,
    Opened,
    Outcome,
    Seats,
    Session,
    StreamUpdate,
    StreamUpdated,
    Swept,
)
from tenure.model.submissions import Accepted, AttemptEnd, BeginAttemptFound, BegunAttempt, BegunAttempts, Submit
from tenure.model.usage import CutRules, Piece, Seal
from tenure.store import leases, sessions
from tenure.store.engines.sqlserver.calls import OLD_SESSION

Value = str | int | None
Lines = Sequence[Row[Any]]


def numbered(entries: Iterable[Sequence[Any]]) -> str:
    """A list of lists, each with its position first."""
    return _json([(position, *entry) for position, entry in enumerate(entries)])


def wishes_text(wishes: Sequence[Open], limits: Limits) -> str:
    given = {
        "term": limits.term // MICROSECOND,
        "lease": limits.lease_microseconds,
        "heartbeat": limits.heartbeat_microseconds,
        "idle": limits.idle_microseconds,
        "wishes": [(position, *_wish(wish)) for position, wish in enumerate(wishes)],
    }
    return _set_ones(given)


def _wish(wish: Open) -> Sequence[Value]:
    return (
        wish.capacity_id,
        wish.user_object_id,
        wish.tenant_object_id,
        wish.kind,
        wish.session_id,
        wish.lease_microseconds,
        wish.heartbeat_microseconds,
        wish.idle_microseconds,
    )


def attach_values(attach: Attach) -> Sequence[Value]:
    return (attach.session_id, attach.lease_microseconds, attach.heartbeat_microseconds, attach.idle_microseconds)


def update_values(update: StreamUpdate) -> Sequence[Value]:
    return (
        update.session_id,
        update.attachment,
        update.save,
        int(update.active),
        update.end,
        int(update.finished),
        *astuple(update.counted),
    )


def seats_text(capacity_id: str, seats: Seats) -> str:
    return _set_ones(
        {
            "capacity": capacity_id,
            "tenant": seats.tenant_object_id,
            "maxSessions": seats.max_sessions,
            "whenFull": seats.when_full,
        }
    )


def job_values(job: JobSettings) -> Sequence[Value]:
    return (job.name, job.interval_microseconds, job.lock_timeout_microseconds, int(job.paused))


def finish_text(fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> str:
    given = {"outcome": outcome, "error": _fitting(error), "retry": retry_microseconds}
    return _set_ones(asdict(fence) | given)


def submits_text(wishes: Sequence[Submit]) -> str:
    starts = accumulate((len(wish.payload) for wish in wishes), initial=1)
    return numbered(_submit(wish, start) for wish, start in zip(wishes, starts, strict=False))


def _submit(wish: Submit, start: int) -> Sequence[Any]:
    return (
        wish.submission_id,
        wish.gateway,
        wish.caller,
        wish.key,
        wish.digest.hex(),
        start,
        len(wish.payload),
        to_builtins(wish.contract),
    )


def ids_text(ids: Sequence[str]) -> str:
    return _json(list(ids))


def end_values(end: AttemptEnd) -> Sequence[Value]:
    return (
        end.submission_id,
        end.number,
        end.outcome,
        end.status,
        _fitting(end.error),
        int(end.counts),
        end.pause_microseconds,
    )


def explanation_text(submission_ids: Sequence[str], error: str) -> str:
    return _json({"error": _fitting(error), "submissions": list(submission_ids)})


def rules_text(rules: CutRules) -> str:
    return _set_ones(
        {
            "interval": rules.interval_microseconds,
            "factors": rules.factors,
            "contract": to_builtins(rules.contract),
        }
    )


def piece_values(piece: Piece) -> Sequence[Value]:
    """With the id that its submission would get."""
    return (*astuple(piece), new_id())


def seal_values(seal: Seal) -> Sequence[Value]:
    return (seal.submission_id, seal.digest.hex())


def _fitting(error: str | None) -> str | None:
    """SQL Server counts half of a character beyond the first 65,536 as one."""
    return error and error.encode("utf-16-le", "replace")[: 2 * ERROR_MAX].decode("utf-16-le", "ignore")


def _set_ones(given: dict[str, Any]) -> str:
    return _json({name: value for name, value in given.items() if value is not None})


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def openings(lines: Lines, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
    """A wish without a line was opened at the instant of the line without a position."""
    answers: list[Opened | None] = [None] * len(wishes)
    closings: dict[int, list[Closing]] = {}
    common: datetime | None = None
    for line in lines:
        if line.position is None:
            common = line.opened_at
        elif line.outcome == "closing":
            closings.setdefault(line.position, []).append(
                Closing(line.session_id, line.lapse_reason, line.opened_at),
            )
        else:
            answers[line.position] = _opening(line, wishes[line.position], limits)
    found = _created_or(answers, wishes, limits, common)
    for position, closed in closings.items():
        found[position] = replace(found[position], closings=closed)
    return found


def _created_or(
    answers: Sequence[Opened | None], wishes: Sequence[Open], limits: Limits, opened_at: datetime | None
) -> list[Opened]:
    if opened_at is None:
        return [answer or Opened(Outcome.AGAIN) for answer in answers]
    span = span_of(limits, opened_at)
    return [
        answer or Opened(Outcome.CREATED, opened(wish, limits, opened_at, span))
        for answer, wish in zip(answers, wishes, strict=True)
    ]


def _opening(line: Row[Any], wish: Open, limits: Limits) -> Opened:
    match line.outcome:
        case "created":
            return Opened(Outcome.CREATED, opened(wish, limits, line.opened_at))
        case "lapsed":
            closing = Closing(line.session_id, line.lapse_reason, line.deadline_at)
            return Opened(Outcome.CREATED, opened(wish, limits, line.opened_at), [closing])
        case "existing":
            return Opened(Outcome.EXISTING, _old(line, wish))
        case "upgraded":
            return Opened(Outcome.UPGRADED, _upgraded(line, wish, limits))
    return Opened(Outcome(line.outcome))


def _upgraded(line: Row[Any], wish: Open, limits: Limits) -> Session:
    inherited = Limits(limits.term, line.lease_microseconds, line.idle_microseconds, line.heartbeat_microseconds)
    new = opened(wish, own_limits(wish, inherited), line.opened_at)
    return replace(new, previous_session_id=line.session_id)


def _old(line: Row[Any], wish: Open) -> Session:
    implied = {"capacity_id": wish.capacity_id, "user_object_id": wish.user_object_id}
    found = {each.name: getattr(line, each.name) for each in OLD_SESSION}
    return sessions.session_from_values({"closed_at": None, "close_reason": None, **implied, **found})


def kept(lines: Lines, session_ids: Sequence[str]) -> Sequence[Kept]:
    answers = [Kept(Found.UNKNOWN)] * len(session_ids)
    for line in lines:
        closing = Closing(session_ids[line.position], line.close_reason, line.deadline_at) if line.recorded else None
        answers[line.position] = Kept(
            Found(line.found), line.state, line.deadline_at, line.heartbeat_microseconds, line.close_reason, closing
        )
    return answers


def ended(lines: Lines, count: int) -> Sequence[Ended]:
    answers = [Ended(Found.UNKNOWN)] * count
    for line in lines:
        held = line.closed_at is None
        answers[line.position] = (
            Ended(Found.HELD) if held else Ended(Found.OVER, sessions.session_from_row(line), line.recorded)
        )
    return answers


def swept(lines: Lines) -> Swept:
    closings = [Closing(line.session_id, line.reason, line.ended_at) for line in lines if line.session_id is not None]
    return Swept(closings, sum(line.looked_at or 0 for line in lines))


def attached(lines: Lines, count: int) -> Sequence[Attached]:
    answers = [Attached(Found.UNKNOWN)] * count
    for line in lines:
        session = sessions.session_from_row(line)
        closing = Closing(session.session_id, session.lapse_reason, session.deadline_at) if line.recorded else None
        answers[line.position] = Attached(Found(line.found), session, line.attached, line.now, closing)
    return answers


def streams_updated(lines: Lines, count: int) -> Sequence[StreamUpdated]:
    answers = [StreamUpdated(Found.UNKNOWN)] * count
    for line in lines:
        session = sessions.session_from_row(line)
        answers[line.position] = StreamUpdated(Found(line.found), session, line.now, line.recorded)
    return answers


def lease(line: Row[Any]) -> Lease:
    return leases.lease_from_values(line._mapping, line.now)  # noqa: SLF001 - the public way to a row's names


def acquired(line: Row[Any]) -> Acquired:
    return Acquired(lease(line), line.taken, line.reclaimed)


def job(line: Row[Any]) -> Job:
    return leases.job_from_values(line._mapping)  # noqa: SLF001 - the public way to a row's names


def begun(line: Row[Any], job_name: str, holder: str) -> Begun:
    found = BeginFound(line.found)
    if found is not BeginFound.BEGUN:
        return Begun(found)
    name = JOB_LOCK + job_name
    return Begun(
        found,
        fence=Fence(name, holder, line.epoch),
        started_at=line.started_at,
        expires_at=line.expires_at,
        tick_at=line.tick_at,
        lock_timeout_microseconds=line.lock_timeout_microseconds,
        failures_in_a_row=line.failures_in_a_row,
        reclaimed=line.reclaimed_epoch and Fence(name, line.reclaimed_holder, line.reclaimed_epoch),
    )


def accepted(lines: Lines) -> Sequence[Accepted]:
    in_order = sorted(lines, key=lambda line: line.position)
    return [Accepted(line.submission_id, line.state, line.same, line.new) for line in in_order]


def begun_attempts(lines: Lines) -> BegunAttempts:
    return BegunAttempts(lines[0].now, [_begun_attempt(line) for line in lines])


def _begun_attempt(line: Row[Any]) -> BegunAttempt:
    found = BeginAttemptFound(line.found)
    return BegunAttempt(line.submission_id, found, line.number, line.failures, line.next_attempt_at)
