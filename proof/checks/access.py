"""Access: no API key exceeds its rights, a revoked API key stops working, and valid API keys of other clients are never
refused.
"""

from proof.checks.outcome import Findings, Outcome
from proof.history import History
from proof.plan import GRACE_SECONDS, Plan
from proof.tables import Tables

OK_STATUSES = range(200, 300)
UNAUTHENTICATED, GONE = 401, 410
REVOKED_MICROSECONDS = int((max(2.0, GRACE_SECONDS) + 0.5) * 1e6)
"""A revoked API key stops working within two seconds. On an instance that cannot reach the database, the key works
until the grace ends. The check allows the longer of these two times plus half a second, and more while the machine is
crowded.
"""
BOUND = ("tenant client", "tenant reader")
"""The API keys of the intruders. Each is bound to one tenant."""


def check(history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    tenants = {key["name"]: key["tenant_object_id"] for key in tables.keys}
    own = {label: tenants[label.replace(" ", "-")] for label in BOUND}
    revoked = {life.label: life.revoked_at for life in history.key_lives if life.revoked_at}
    for operation in history.operations:
        label, name = operation.credential, f"{operation.action} with key {operation.credential}"
        succeeded = operation.status in OK_STATUSES
        if operation.client == "intruder":
            if operation.action == "list":
                seen = set(operation.answer["tenants"]) if succeeded else set()
                findings.expect(seen <= {own[label]}, f"{name} showed sessions or events of the tenants {sorted(seen)}")
            else:
                # 410 would reveal that a session of another tenant has existed, so this status is a violation too.
                shown = succeeded or operation.status == GONE
                findings.expect(not shown, f"{name} {operation.session_id} got {operation.status}: {operation.answer}")
        elif operation.client == "key user":
            revoked_at = revoked.get(label, operation.called_at)
            since = operation.called_at - revoked_at
            findings.expect(
                not succeeded
                or since < REVOKED_MICROSECONDS
                or since < REVOKED_MICROSECONDS * history.slowdown(revoked_at, operation.called_at),
                f"{name} worked at {operation.via}, {since / 1e6:.1f} s after the key was revoked",
            )
        else:
            findings.expect(operation.status != UNAUTHENTICATED, f"{name} got 401: {operation.answer}")
    return findings.outcome()
