"""Runs the checks in order, each within CHECK_SECONDS, and collects their findings.

The first checks decide whether the others make sense: without a database, or with an old schema, every later check that
reads the database would fail for the same reason. In such a case, these later checks are skipped. The checks run one
after the other: the doctor must not add to the load of a database in trouble.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum

import msgspec

from tenure.clock import monotonic
from tenure.doctor.access import check_first_key, check_keys
from tenure.doctor.database import (
    check_clock,
    check_connections,
    check_file,
    check_pooler,
    check_schema,
    check_tables,
    check_writable,
)
from tenure.doctor.deliveries import check_gateways, check_submissions, check_usage_gateway
from tenure.doctor.findings import Code, Finding, Severity, warning
from tenure.doctor.instances import (
    check_conditions,
    check_executor_leases,
    check_jobs,
    check_leases,
    check_pruning,
    check_running,
    check_versions,
)
from tenure.doctor.patient import Patient
from tenure.errors import DatabaseUnavailable

CHECK_SECONDS = 5.0

Check = Callable[[Patient], Awaitable[Sequence[Finding]]]

FIRST: dict[str, Check] = {"file": check_file, "pooler": check_pooler, "schema": check_schema}
"""If one of these checks fails, times out, or finds that the database cannot be used, the later ones and all of REST
are skipped."""
REST: dict[str, Check] = {
    "writable": check_writable,
    "clock": check_clock,
    "connections": check_connections,
    "tables": check_tables,
    "running": check_running,
    "leases": check_leases,
    "versions": check_versions,
    "executor leases": check_executor_leases,
    "jobs": check_jobs,
    "pruning": check_pruning,
    "conditions": check_conditions,
    "usage gateway": check_usage_gateway,
    "submissions": check_submissions,
    "first key": check_first_key,
    "keys": check_keys,
}
ANYWAY: dict[str, Check] = {"gateways": check_gateways}
"""These checks need no database, so they always run."""


class Outcome(StrEnum):
    PASSED = "passed"
    FOUND = "found"
    SKIPPED = "skipped"
    FAILED = "failed"
    TIMED_OUT = "timed-out"


class CheckResult(msgspec.Struct, frozen=True):
    check: str
    outcome: Outcome
    seconds: float
    findings: Sequence[Finding] = ()


class Report(msgspec.Struct, frozen=True):
    results: Sequence[CheckResult]

    @property
    def findings(self) -> Sequence[Finding]:
        """All findings, those of severity `broken` first."""
        every = [finding for result in self.results for finding in result.findings]
        return sorted(every, key=lambda finding: finding.severity is not Severity.BROKEN)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def is_hanging(self) -> bool:
        """Whether a check may still be running in a thread, which Python cannot stop."""
        return any(result.outcome is Outcome.TIMED_OUT for result in self.results)


async def examine(patient: Patient) -> Report:
    results = []
    stopped = False
    for name, check in FIRST.items():
        results.append(_skipped(name) if stopped else await _run(name, check, patient))
        stopped = stopped or _prevents_others(results[-1])
    for name, check in REST.items():
        results.append(_skipped(name) if stopped else await _run(name, check, patient))
    for name, check in ANYWAY.items():
        results.append(await _run(name, check, patient))
    return Report(results)


def _skipped(name: str) -> CheckResult:
    return CheckResult(name, Outcome.SKIPPED, 0.0)


def _prevents_others(result: CheckResult) -> bool:
    if result.outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
        return True
    codes = {finding.code for finding in result.findings if finding.severity is Severity.BROKEN}
    # A database with one of these three problems can still be read.
    return bool(codes - {Code.DISK_FULL, Code.FILE_NOT_WRITABLE, Code.DISK_READ_ONLY})


async def _run(name: str, check: Check, patient: Patient) -> CheckResult:
    began = monotonic()
    # A task that is late is cancelled but not awaited: it may wait for a thread that never ends.
    task = asyncio.ensure_future(check(patient))
    await asyncio.wait({task}, timeout=CHECK_SECONDS)
    seconds = monotonic() - began
    again = patient.command("doctor")
    if not task.done():
        task.cancel()
        found = warning(Code.CHECK_TIMED_OUT, f"check {name} did not end within {CHECK_SECONDS:g} seconds", again, name)
        return CheckResult(name, Outcome.TIMED_OUT, seconds, [found])
    error = task.exception()
    if error is not None:
        found = warning(Code.CHECK_FAILED, f"check {name} failed: {_text(error)}", again, name)
        return CheckResult(name, Outcome.FAILED, seconds, [found])
    return CheckResult(name, Outcome.FOUND if task.result() else Outcome.PASSED, seconds, task.result())


def _text(error: BaseException) -> str:
    if isinstance(error, DatabaseUnavailable):
        return error.detail
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
