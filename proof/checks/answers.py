"""Answers: no response is late or missing unless a fault explains it, none is a 500, and the ensemble settles in time.

A deadlock of the database counts as a finding too. PostgreSQL resolves it with an error, but its cause is always a
transaction that takes locks in the wrong order.
"""

from proof.checks.outcome import Findings, Outcome
from proof.history import TIMEOUT, Fault, History, Operation
from proof.plan import Plan
from proof.tables import Tables

INTERNAL = 500
LATE_MICROSECONDS = 6_000_000
"""An instance answers within this time, even if its database is unavailable. If other work crowds the machine, the
limit grows (`History.slowdown`)."""
MARGIN_MICROSECONDS = 3_000_000
"""A SILENT fault explains late answers to requests that begin up to this long after its end."""
QUIET_MICROSECONDS = 8_000_000
"""Any fault explains failed requests that begin up to this long after its end."""
SILENT = ("pause", "client-link-stall", "client-link-drop", "client-link-slow", "database-freeze")
"""Faults during which an instance cannot answer in time, or its answer cannot arrive in time."""


def check(history: History, _tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    silent = [fault for fault in history.faults if fault.kind in SILENT]
    for operation in history.operations:
        if operation.called_at < history.began_at:
            continue  # the ensemble was starting
        name = f"{operation.action} of {operation.client} at {operation.called_at} ({operation.via})"
        span = (operation.called_at, operation.returned_at)
        findings.expect(operation.status != INTERNAL, f"{name} got 500: {operation.answer}")
        if _is_late(operation, history):
            what = operation.failure or f"status {operation.status}"
            findings.expect(
                _explained(silent, *span, MARGIN_MICROSECONDS), f"{name} took {operation.seconds:.1f} s: {what}"
            )
        elif operation.failure or operation.status > INTERNAL:
            findings.expect(
                _explained(history.faults, *span, QUIET_MICROSECONDS),
                f"{name} failed far from any fault: {operation.failure or operation.answer}",
            )
    findings.expect(not history.deadlocks, f"the database has resolved {history.deadlocks} deadlocks")
    for what in history.unsettled:
        findings.add(what)
    return findings.outcome()


def _is_late(operation: Operation, history: History) -> bool:
    took = operation.returned_at - operation.called_at
    if took <= LATE_MICROSECONDS and operation.failure != TIMEOUT:
        return False
    slowdown = history.slowdown(operation.called_at, operation.returned_at)
    return slowdown == 1 or took > LATE_MICROSECONDS * slowdown


def _explained(faults: list[Fault], start: int, end: int, margin: int) -> bool:
    return any(fault.overlaps(start, end, margin) for fault in faults)
