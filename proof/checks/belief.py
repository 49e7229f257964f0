"""The Python client never treats a lapsed session as live. If a request has ended the session before its deadline, the
client may still treat the session as live for up to one lease.
"""

from proof.checks.outcome import Findings, Outcome
from proof.history import STEP_MARGIN, History
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
        # If a request ends the session, the client learns of the end from the answer to its next heartbeat. If it gets
        # no answer, it treats the session as lost when the lease runs out.
        allowed = 0 if session["close_reason"] in (None, *LAPSES) else int(belief.lease_seconds * 1e6)
        limit = ended_at + allowed
        if history.is_disturbed(ended_at):
            # A step forward of the clock ends sessions at once. A client cannot know this before the lease of its
            # session runs out.
            near = [step.forward_at for step in history.steps if step.forward_at < belief.believed_at]
            limit = max([limit, *(at + STEP_MARGIN for at in near)])
        findings.expect(
            belief.believed_at < limit or belief.looks == 0,
            f"the client treated session {belief.session_id} as live at {belief.believed_at}, "
            f"{(belief.believed_at - ended_at) / 1e6:.3f} s after its end ({session['close_reason']})",
        )
    return findings.outcome()
