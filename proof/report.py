"""The report of a run: its operations, faults and recovery times, how many facts were compared, and every finding.

The numbers are counts and durations. A report without findings does not name the machine, so it can be published. A
finding can contain instants, in microseconds since 1970, and the name of a lease holder, which begins with the name of
the host.
"""

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import msgspec

from proof.picture import draw
from proof.run import Run

SERVED = range(200, 500)


class Recovery(msgspec.Struct):
    """One kind of fault: how often it was injected, and the seconds from its end until requests succeeded again."""

    faults: int
    median_seconds: float | None
    slowest_seconds: float | None


class Report(msgspec.Struct):
    seed: int
    engine: str
    instances: int
    proxy: bool
    seconds: float
    settled_in_seconds: float
    """The seconds from the end of the load until everything was delivered, recorded and read."""
    requests: int
    answered: int
    operations: dict[str, int]
    """The number of operations by client and action."""
    median_milliseconds: float
    p99_milliseconds: float
    faults: dict[str, Recovery]
    skipped: dict[str, str]
    """The kinds of faults that could not be injected, and why."""
    tasks_per_core: float
    """The mean number of runnable tasks per core during the run. The checks extend a limit on time if the mean around
    this time is above `history.CROWDED`."""
    takeovers: Recovery
    """Leases that expired and were acquired again: how often, and after how many seconds. Expiries near a step of the
    database's clock are not counted."""
    sessions: int
    streams: int
    submissions: int
    usage_windows: int
    events: int
    checks: dict[str, int]
    """How many facts each check has compared."""
    findings: list[str]


def report_of(run: Run) -> Report:
    history, tables, plan = run.history, run.tables, run.plan
    answered = [operation for operation in history.operations if operation.status]
    took = [operation.seconds * 1000 for operation in answered if operation.status in SERVED] or [0.0]
    last = max((operation.returned_at for operation in history.operations), default=0)
    return Report(
        seed=plan.seed,
        engine=plan.engine,
        instances=plan.instances,
        proxy=run.proxy,
        seconds=plan.seconds,
        settled_in_seconds=round(max(history.ended_at, last) / 1e6 - history.began_at / 1e6 - plan.seconds, 1),
        requests=len(history.operations),
        answered=len(answered),
        operations=dict(sorted(Counter(f"{each.client}: {each.action}" for each in history.operations).items())),
        median_milliseconds=round(median(took), 1),
        p99_milliseconds=round(quantiles(took, n=100)[98] if len(took) > 1 else took[0], 1),
        faults=_recoveries(run),
        skipped=dict(sorted(history.skipped.items())),
        tasks_per_core=round(mean([each.tasks_per_core for each in history.crowding] or [0.0]), 1),
        takeovers=_takeovers(run),
        sessions=len(tables.sessions),
        streams=len(history.streams),
        submissions=len(history.accepted),
        usage_windows=len(tables.usage_windows),
        events=2 * len(tables.sessions),
        checks={name: outcome.checked for name, outcome in run.outcomes.items()},
        findings=run.findings,
    )


def _recoveries(run: Run) -> dict[str, Recovery]:
    took: defaultdict[str, list[float]] = defaultdict(list)
    counts = Counter(fault.kind for fault in run.history.faults)
    for fault in run.history.faults:
        if fault.recovered_at:
            took[fault.kind].append((fault.recovered_at - fault.healed_at) / 1e6)
    return {kind: _recovery(count, took[kind]) for kind, count in sorted(counts.items())}


def _takeovers(run: Run) -> Recovery:
    terms = sorted(run.tables.lease_history, key=lambda row: (row["name"], row["epoch"]))
    gaps = [
        (following["acquired_at"] - one["ended_at"]) / 1e6
        for one, following in pairwise(terms)
        if one["name"] == following["name"]
        and one["how"] == "expired"
        and not run.history.is_disturbed(one["ended_at"], following["acquired_at"])
    ]
    return _recovery(len(gaps), gaps)


def _recovery(count: int, took: list[float]) -> Recovery:
    return Recovery(count, round(median(took), 2) if took else None, round(max(took), 2) if took else None)


def text_of(report: Report) -> str:
    """The report for people, in Markdown."""
    verdict = "every promise held" if not report.findings else f"findings: {len(report.findings)}"
    front = "HAProxy" if report.proxy else "no proxy (HAProxy is not installed): clients choose an instance"
    lines = [
        f"# Seed {report.seed} on {report.engine}: {verdict}",
        "",
        f"{report.instances} instances, {front}.",
        "",
        f"{report.seconds:g} s of load and faults, settled {report.settled_in_seconds:g} s later.",
        "",
        f"{report.requests} requests, {report.answered} of them answered, p50 {report.median_milliseconds:g} ms.",
        "",
        f"On average, {report.tasks_per_core:g} tasks wanted each core of the machine.",
        "",
        _contents(report),
        "",
        *_table("check", "facts compared", report.checks.items()),
        *_table(
            "fault | times | median recovery (s)",
            "slowest (s)",
            (
                (f"{kind} | {each.faults} | {_seconds(each.median_seconds)}", _seconds(each.slowest_seconds))
                for kind, each in [
                    *report.faults.items(),
                    ("(a lease expired, until the next holder)", report.takeovers),
                ]
            ),
        ),
        *(f"Not injected: `{kind}`, because {reason}.\n" for kind, reason in report.skipped.items()),
        *_table("client and action", "requests", report.operations.items()),
    ]
    lines += ["## Findings", "", *(f"- {finding}" for finding in report.findings)] if report.findings else []
    return "\n".join(lines) + "\n"


def _contents(report: Report) -> str:
    counts = (("sessions", report.sessions), ("streams", report.streams), ("submissions", report.submissions))
    more = (("usage windows", report.usage_windows), ("events", report.events))
    return ", ".join(f"{count} {name}" for name, count in (*counts, *more)) + "."


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _table(first: str, last: str, rows: Any) -> list[str]:
    columns = first.count("|") + 2
    return [f"| {first} | {last} |", "|" + "---|" * columns, *(f"| {name} | {value} |" for name, value in rows), ""]


def write_report(run: Run, folder: Path) -> None:
    """Writes `report.json`, `report.md` and `run.svg`. If there are findings, also the logs and the history."""
    folder.mkdir(parents=True, exist_ok=True)
    report = report_of(run)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    (folder / "report.md").write_text(text_of(report), encoding="utf-8")
    (folder / "run.svg").write_text(draw(run), encoding="utf-8")
    if report.findings:
        (folder / "instances.log").write_text(run.logs, encoding="utf-8")
        (folder / "history.json").write_bytes(msgspec.json.encode(run.history))
