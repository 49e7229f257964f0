"""No session outlives its deadline, no acknowledged heartbeat is lost, and no heartbeat renews an ended session."""

from proof.checks.outcome import Findings, Outcome
from proof.history import History
from proof.plan import Plan
from proof.tables import Tables, instant

OK, GONE = 200, 410
LAPSES = ("EXPIRED", "LEASE_EXPIRED", "IDLE_TIMEOUT")
RECORDED_MICROSECONDS = 10_000_000
"""How long after its deadline the end of a session may stay unrecorded, once all faults are healed."""


def check(history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    for session in tables.sessions:
        name, deadline, closed_at = session["session_id"], session["deadline_at"], session["closed_at"]
        if closed_at is None:
            findings.expect(
                deadline > history.ended_at - RECORDED_MICROSECONDS,
                f"the lapse of session {name} at {deadline} was not recorded by {history.ended_at}",
            )
            continue
        findings.expect(closed_at <= deadline, f"session {name} ended at {closed_at}, after its deadline {deadline}")
        if session["close_reason"] in LAPSES:
            findings.expect(closed_at == deadline, f"session {name} lapsed at {closed_at}, not at {deadline}")
    _heartbeats(history, tables, findings)
    return findings.outcome()


def _heartbeats(history: History, tables: Tables, findings: Findings) -> None:
    sessions = tables.by_session()
    for operation in history.operations:
        session = sessions.get(operation.session_id)
        if operation.action != "heartbeat" or session is None:
            continue
        name, ended_at = session["session_id"], tables.ended_at(session)
        if operation.status == OK:
            promised = instant(operation.answer["leaseExpiresAt"])
            findings.expect(
                session["deadline_at"] >= promised,
                f"session {name} was promised until {promised}, and its deadline is {session['deadline_at']}",
            )
            findings.expect(
                operation.called_at < ended_at or history.is_disturbed(operation.called_at, ended_at),
                f"session {name} was renewed at {operation.called_at}, after {ended_at}",
            )
        elif operation.status == GONE:
            findings.expect(
                operation.returned_at >= ended_at or history.is_disturbed(operation.returned_at, ended_at),
                f"session {name} was reported as over at {operation.returned_at}, before its end {ended_at}",
            )
