"""The belief of the Python client: it never outlives the session, and hears of an end by others within one lease."""

from proof.checks.outcome import Findings, Outcome
from proof.history import History
from proof.plan import Plan
from proof.tables import Tables

LAPSES = ("EXPIRED", "LEASE_EXPIRED", "IDLE_TIMEOUT")


def check(history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    sessions = tables.by_session()
    for belief in history.beliefs:
        session = sessions.get(belief.session_id)
        if session is None:
            findings.add(f"the client held session {belief.session_id}, which is not in the table")
            continue
        ended_at = tables.ended_at(session)
        # An end by others reaches the client with its next heartbeat; at the latest its lease has run out by then.
        allowed = 0 if session["close_reason"] in (None, *LAPSES) else int(belief.lease_seconds * 1e6)
        findings.expect(
            belief.believed_at < ended_at + allowed or belief.looks == 0,
            f"the client believed in session {belief.session_id} at {belief.believed_at}, "
            f"{(belief.believed_at - ended_at) / 1e6:.3f} s after its end ({session['close_reason']})",
        )
    return findings.outcome()
