"""One live session per key: the history of every key is linearisable, and agrees with the session table.

The search (`linearisability`) uses only the responses that clients got. The comparison with the table also finds rows
that overlap, and acknowledged sessions and ends that are missing.
"""

from collections import defaultdict
from itertools import pairwise
from math import inf

from proof.checks.linearisability import Call, Verdict
from proof.checks.linearisability import check as search
from proof.checks.outcome import Findings, Outcome
from proof.history import History, Key, Operation
from proof.plan import LEASE_SECONDS, Plan
from proof.tables import Tables, instant

OPENED = (200, 201)
NOT_FOUND, GONE, UNAVAILABLE = 404, 410, 500
LEASE = LEASE_SECONDS * 1e6


def check(history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    for key, operations in _by_key(history, "user").items():
        calls = [call for operation in operations for call in _calls(operation)]
        timeless = history.is_disturbed(*(at for one in operations for at in (one.called_at, one.returned_at)))
        result = search(calls, LEASE, timeless=timeless)
        what = "is not linearisable" if result.verdict is Verdict.BAD else "could not be decided within the limit"
        stuck = "; ".join(_text(call) for call in result.stuck[:4])
        findings.expect(
            result.verdict is Verdict.GOOD,
            f"the history of user {key[1]} {what}: {result.placed} of {len(calls)} calls fit, and none of these fits "
            f"next: {stuck}",
        )
    _compare(history, tables, findings)
    return findings.outcome()


def _by_key(history: History, client: str) -> dict[Key, list[Operation]]:
    found: defaultdict[Key, list[Operation]] = defaultdict(list)
    for operation in history.operations:
        if operation.client == client:
            found[operation.key].append(operation)
    return found


def _calls(operation: Operation) -> list[Call]:
    """The operation as a list with one call. The list is empty if the request was refused and so had no effect."""
    if not operation.status or operation.status >= UNAVAILABLE:
        return [Call(operation.action, operation.called_at, inf, "unknown", operation.session_id, operation.kind)]
    times, answer = (operation.called_at, operation.returned_at), operation.answer
    if operation.action == "heartbeat" and operation.status == GONE:
        return [Call("heartbeat", *times, "over", operation.session_id)]
    if operation.status not in OPENED:
        return []
    if operation.action == "heartbeat":
        deadline = instant(answer["leaseExpiresAt"])
        return [Call("heartbeat", *times, "renewed", operation.session_id, 0, deadline - LEASE, deadline)]
    if operation.action == "end":
        return [Call("end", *times, "ended", operation.session_id, 0, instant(answer["sessionEndUtc"]))]
    deadline, status = instant(answer["leaseExpiresAt"]), answer["status"]
    started = None if status == "existing" else instant(answer["sessionStartUtc"])
    previous = answer["previousSessionId"] or ""
    return [Call("open", *times, status, answer["sessionId"], operation.kind, started, deadline, previous)]


def _text(call: Call) -> str:
    return f"{call.action} {call.session_id} → {call.result} (from {call.called_at:.0f} to {call.returned_at:.0f})"


def _compare(history: History, tables: Tables, findings: Findings) -> None:
    sessions = tables.by_session()
    for operation in history.operations:
        if operation.status in OPENED and operation.action in ("open", "end") and operation.client != "intruder":
            session = sessions.get(operation.answer["sessionId"])
            findings.expect(
                session, f"session {operation.answer['sessionId']} was acknowledged, and is not in the table"
            )
            if session is None:
                continue
            if operation.action == "open":
                started_at = instant(operation.answer["sessionStartUtc"])
                findings.expect(
                    session["started_at"] == started_at,
                    f"session {session['session_id']} began at {session['started_at']}, and {started_at} was answered",
                )
            elif operation.answer["isActive"] is False:
                ended_at = instant(operation.answer["sessionEndUtc"])
                findings.expect(
                    session["closed_at"] == ended_at and session["close_reason"] == operation.answer["closeReason"],
                    f"session {session['session_id']} ended at {session['closed_at']} ({session['close_reason']}), and "
                    f"{ended_at} ({operation.answer['closeReason']}) was answered",
                )
        elif operation.status == NOT_FOUND and operation.client in ("user", "seats", "operator"):
            findings.add(f"{operation.action} of session {operation.session_id}, which was acknowledged, got 404")
    by_key: defaultdict[Key, list[tuple[int, int, str]]] = defaultdict(list)
    for session in tables.sessions:
        span = (session["started_at"], tables.ended_at(session), session["session_id"])
        by_key[session["capacity_id"], session["user_object_id"]].append(span)
    for spans in by_key.values():
        for one, following in pairwise(sorted(spans)):
            findings.expect(
                following[0] >= one[1], f"session {following[2]} began before session {one[2]} of the same key ended"
            )
