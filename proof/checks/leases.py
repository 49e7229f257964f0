"""Leases and fences: one holder at a time, epochs that only increase, and no write of a holder outside its epoch."""

from collections import defaultdict
from itertools import pairwise

from proof.checks.outcome import Findings, Outcome
from proof.history import History, Sighting
from proof.plan import Plan
from proof.tables import Row, Tables

EXECUTOR = "submission-executor"


def check(history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    _sightings(history.sightings, findings)
    _epochs(history, tables, findings)
    _runs(history, tables, findings)
    _attempts(history, tables, findings)
    return findings.outcome()


def _sightings(sightings: list[Sighting], findings: Findings) -> None:
    """Checks the leases that readers saw: one holder per epoch, and epochs that never decrease."""
    holders: dict[tuple[str, int], str] = {}
    by_name: defaultdict[str, list[Sighting]] = defaultdict(list)
    for seen in sightings:
        holder = holders.setdefault((seen.name, seen.epoch), seen.holder)
        findings.expect(
            holder == seen.holder, f"epoch {seen.epoch} of {seen.name} was held by {holder} and by {seen.holder}"
        )
        by_name[seen.name].append(seen)
    for name, seen_ones in by_name.items():
        highest = 0
        waiting = sorted(seen_ones, key=lambda each: each.seen_at)
        place = 0
        for seen in sorted(seen_ones, key=lambda each: each.asked_at):
            while place < len(waiting) and waiting[place].seen_at < seen.asked_at:
                highest = max(highest, waiting[place].epoch)
                place += 1
            findings.expect(seen.epoch >= highest, f"{name} was in epoch {seen.epoch} after it was in epoch {highest}")


def _epochs(history: History, tables: Tables, findings: Findings) -> None:
    by_name: defaultdict[str, list[Row]] = defaultdict(list)
    for term in sorted(tables.lease_history, key=lambda row: row["epoch"]):
        by_name[term["name"]].append(term)
    current = {row["name"]: row["epoch"] for row in tables.leases}
    for name, terms in by_name.items():
        findings.expect(
            terms[-1]["epoch"] == current.get(name),
            f"{name} is in epoch {current.get(name)}, but its history ends with another epoch",
        )
        for one, following in pairwise(terms):
            findings.expect(
                following["epoch"] == one["epoch"] + 1, f"{name}: epoch {following['epoch']} follows {one['epoch']}"
            )
            findings.expect(
                one["ended_at"] is not None
                and (
                    following["acquired_at"] >= one["ended_at"]
                    or history.is_disturbed(following["acquired_at"], one["ended_at"])
                ),
                f"{name}: {following['holder']} acquired epoch {following['epoch']} at {following['acquired_at']}, "
                f"before the end of epoch {one['epoch']} at {one['ended_at']}",
            )


def _runs(history: History, tables: Tables, findings: Findings) -> None:
    by_job: defaultdict[str, list[Row]] = defaultdict(list)
    for run in sorted(tables.job_runs, key=lambda row: row["epoch"]):
        by_job[run["job"]].append(run)
    for job, runs in by_job.items():
        for one, following in pairwise(runs):
            findings.expect(
                one["ended_at"] is None
                or following["started_at"] >= one["ended_at"]
                or history.is_disturbed(following["started_at"], one["ended_at"]),
                f"two runs of job {job} overlap: epochs {one['epoch']} and {following['epoch']}",
            )


def _attempts(history: History, tables: Tables, findings: Findings) -> None:
    """Checks that each attempt begins, and that its holder records the outcome, in the term of this holder. The outcome
    `unknown` is recorded by a later holder.

    Attempts from a time in which the clock of the database was wrong are not checked: the order of their instants may
    differ from the order of the writes.
    """
    terms = {row["epoch"]: row for row in tables.lease_history if row["name"] == EXECUTOR}
    for attempt in tables.submission_attempts:
        name = f"attempt {attempt['number']} of submission {attempt['submission_id']} in epoch {attempt['epoch']}"
        term = terms.get(attempt["epoch"])
        if term is None or term["holder"] != attempt["holder"]:
            findings.add(f"{name} was made by {attempt['holder']}, who did not hold that epoch")
            continue
        ended_at = term["ended_at"]
        if history.is_disturbed(term["acquired_at"], ended_at, attempt["started_at"], attempt["ended_at"]):
            continue
        findings.expect(
            attempt["started_at"] >= term["acquired_at"] and (ended_at is None or attempt["started_at"] < ended_at),
            f"{name} began at {attempt['started_at']}, outside of its epoch, which ended at {ended_at}",
        )
        if attempt["outcome"] in ("delivered", "failed", "abandoned"):
            findings.expect(
                ended_at is None or attempt["ended_at"] <= ended_at,
                f"{name} was recorded at {attempt['ended_at']}, after the end of its epoch at {ended_at}",
            )
