"""Streams: a stream that was stopped has counted every message, and the session table says the same."""

from proof.checks.outcome import Findings, Outcome
from proof.history import History
from proof.plan import Plan
from proof.tables import Tables


def check(history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    sessions = tables.by_session()
    for stream in history.streams:
        session = sessions.get(stream.session_id)
        findings.expect(session, f"session {stream.session_id} had a stream, and is not in the table")
        if session is None or not stream.stopped:
            continue
        findings.expect(
            stream.sent == stream.echoed == stream.counted == session["stream_chunks"],
            f"session {stream.session_id}: {stream.sent} messages were sent, {stream.echoed} came back, the server "
            f"counted {stream.counted}, and the table has {session['stream_chunks']}",
        )
        findings.expect(
            session["close_reason"] == "STOPPED",
            f"the stream of session {stream.session_id} was stopped, and the session is {session['close_reason']}",
        )
    return findings.outcome()
