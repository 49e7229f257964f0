"""Streams: a stream that was stopped has counted every message, and the session table says the same.

When a stream ends, an instance saves the end of the session and then the last counts. It tries each save three times.
If the end cannot be saved, the session ends when its lease expires. If only the counts cannot be saved, the session
lacks these counts (docs/streams.md). The check accepts both cases only near a fault of the database.
"""

from proof.checks.outcome import Findings, Outcome
from proof.history import History
from proof.plan import Plan
from proof.tables import Tables

AWAY = ("disk-full", "fail-over")
MARGIN_MICROSECONDS = 5_000_000
"""The tries to record an end take about two seconds, and the lease then expires within three."""


def check(history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    sessions = tables.by_session()
    for stream in history.streams:
        session = sessions.get(stream.session_id)
        findings.expect(session, f"session {stream.session_id} had a stream, and is not in the table")
        if session is None or not stream.stopped:
            continue
        saved, was_away = session["stream_chunks"], _is_near_fault(history, session["closed_at"])
        findings.expect(
            stream.sent == stream.echoed == stream.counted
            and (saved == stream.sent or (saved < stream.sent and was_away)),
            f"session {stream.session_id}: {stream.sent} messages were sent, {stream.echoed} were echoed, the server "
            f"counted {stream.counted}, and the table has {saved}",
        )
        findings.expect(
            session["close_reason"] == "STOPPED" or (session["close_reason"] == "LEASE_EXPIRED" and was_away),
            f"the stream of session {stream.session_id} was stopped, and the session is {session['close_reason']}",
        )
    return findings.outcome()


def _is_near_fault(history: History, at: int | None) -> bool:
    """Whether the session ended at `at`, during or near a fault that made the database unavailable to an instance."""
    if at is None:
        return False
    faults = [fault for fault in history.faults if "database" in fault.kind or fault.kind in AWAY]
    return any(fault.overlaps(at, at, MARGIN_MICROSECONDS) for fault in faults)
