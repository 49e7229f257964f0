"""Seats: never more live sessions than seats, and no open request is refused if a seat was free during the whole
request.

A seat is free from the deadline of its session on. If a request ended the session before its deadline, the seat is free
as soon as the end is committed: at the latest when the answer to that request arrives.
"""

from bisect import bisect_right
from itertools import accumulate

from proof.checks.outcome import Findings, Outcome
from proof.history import History
from proof.plan import Plan
from proof.tables import Tables

OK, LIMITED = 200, 429
LAPSES = ("EXPIRED", "LEASE_EXPIRED", "IDLE_TIMEOUT")
COMMITTED_MICROSECONDS = 5_000_000
"""An end without an answer is committed within this time: no write may take longer."""


def check(history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    answered = {
        operation.session_id: operation.returned_at
        for operation in history.operations
        if operation.action == "end" and operation.status == OK
    }
    for capacity in tables.capacities:
        seats, capacity_id = capacity["max_sessions"], capacity["capacity_id"]
        if seats is None:
            continue
        times, taken = _taken(tables, capacity_id, None)
        for at, count in zip(times, taken, strict=True):
            findings.expect(count <= seats, f"capacity {capacity_id} at {at}: live sessions: {count}, seats: {seats}")
        times, taken = _taken(tables, capacity_id, answered)
        for operation in history.operations:
            if operation.status != LIMITED or operation.key[0] != capacity_id:
                continue
            if history.is_disturbed(operation.called_at, operation.returned_at):
                continue  # the clock that decided which seats were free cannot be compared with that of the client
            findings.expect(
                capacity["when_full"] == "reject",
                f"an open on capacity {capacity_id}, which evicts, was refused at {operation.called_at}",
            )
            first = max(bisect_right(times, operation.called_at) - 1, 0)
            last = bisect_right(times, operation.returned_at)
            most = max(taken[first:last], default=0)
            findings.expect(
                most >= seats,
                f"an open on capacity {capacity_id} was refused at {operation.called_at}, although at most {most} of "
                f"{seats} seats were taken until the answer",
            )
    return findings.outcome()


def _taken(tables: Tables, capacity_id: str, answered: dict[str, int] | None) -> tuple[list[int], list[int]]:
    """The instants at which the number of taken seats changes, and the number from each instant on.

    `answered`: for each session that a request ended, when the response to the request arrived; the seat counts as
    taken until then. If None, a seat is free as soon as its session has ended.
    """
    changes: dict[int, int] = {}
    for session in tables.sessions:
        if session["capacity_id"] == capacity_id:
            ended_at = tables.ended_at(session)
            if answered is not None and session["close_reason"] not in (None, *LAPSES):
                late = answered.get(session["session_id"], ended_at + COMMITTED_MICROSECONDS)
                ended_at = max(ended_at, min(late, session["deadline_at"]))
            for at, change in ((session["started_at"], 1), (ended_at, -1)):
                changes[at] = changes.get(at, 0) + change
    times = sorted(changes)
    return times, list(accumulate(changes[at] for at in times))
