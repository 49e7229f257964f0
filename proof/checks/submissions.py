"""Submissions: each accepted submission is delivered and counted once, and every request has a recorded attempt."""

from collections import Counter, defaultdict
from itertools import pairwise

from proof.checks.outcome import Findings, Outcome
from proof.history import History
from proof.plan import Plan
from proof.tables import Row, Tables

FIRST_ATTEMPT_MICROSECONDS = 25_000_000
"""The longest time between the acceptance of a submission and its first attempt: longer than any fault lasts, and
shorter than a minute. Once a minute, the executor compares its schedule with the changes of the last ten minutes, so a
longer limit would not notice that the intake missed a submission.
"""


def check(history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    stored = {row["submission_id"]: row for row in tables.submissions}
    attempts: defaultdict[str, list[Row]] = defaultdict(list)
    for attempt in sorted(tables.submission_attempts, key=lambda row: row["number"]):
        attempts[attempt["submission_id"]].append(attempt)
    ledger = {row["key"]: row for row in tables.ledgers["orders"]["deliveries"]}
    for submission_id in history.accepted:
        state = stored[submission_id]["state"] if submission_id in stored else "missing"
        findings.expect(state == "delivered", f"submission {submission_id} was accepted and is {state}")
        findings.expect(submission_id in ledger, f"submission {submission_id} was accepted and did not arrive")
    for key in ledger:
        findings.expect(key in stored, f"the receiver has {key}, which no client submitted")
    for row in tables.submissions:
        _attempts(history, row, attempts[row["submission_id"]], findings)
    _receivers(history, tables, stored, attempts, findings)
    return findings.outcome()


def _attempts(history: History, submission: Row, attempts: list[Row], findings: Findings) -> None:
    name = submission["submission_id"]
    numbers = [attempt["number"] for attempt in attempts]
    findings.expect(
        numbers == list(range(1, submission["attempts"] + 1)), f"submission {name} has the attempts {numbers}"
    )
    for one, following in pairwise(attempts):
        findings.expect(
            one["ended_at"] is not None
            and (
                following["started_at"] >= one["ended_at"]
                or history.is_disturbed(following["started_at"], one["ended_at"])
            ),
            f"attempts {one['number']} and {following['number']} of submission {name} overlap",
        )
    delivered = Counter(attempt["outcome"] for attempt in attempts)["delivered"]
    findings.expect(delivered <= 1, f"submission {name} was delivered by {delivered} attempts")
    if attempts and submission["gateway"] == "orders":
        waited = attempts[0]["started_at"] - submission["created_at"]
        findings.expect(
            waited <= FIRST_ATTEMPT_MICROSECONDS, f"submission {name} waited for {waited / 1e6:.1f} s until it was sent"
        )


def _receivers(
    history: History, tables: Tables, stored: dict[str, Row], attempts: dict[str, list[Row]], findings: Findings
) -> None:
    by_key = {row["delivery_key"]: row["submission_id"] for row in stored.values()}
    for name, ledger in tables.ledgers.items():
        (totals,) = ledger["totals"]
        findings.expect(
            not totals["conflicts"], f"receiver {name} got {totals['conflicts']} repeated keys with other bytes"
        )
        findings.expect(not totals["refused"], f"receiver {name} refused {totals['refused']} requests")
        for delivery in ledger["deliveries"]:
            begun = attempts.get(by_key.get(delivery["key"], ""), [])
            findings.expect(
                begun
                and (
                    begun[0]["started_at"] <= delivery["received_at"]
                    or history.is_disturbed(begun[0]["started_at"], delivery["received_at"])
                ),
                f"receiver {name} got {delivery['key']} at {delivery['received_at']}, before an attempt was recorded",
            )
            findings.expect(
                delivery["times_seen"] <= len(begun),
                f"receiver {name} got {delivery['key']} {delivery['times_seen']} times, with {len(begun)} attempts",
            )
