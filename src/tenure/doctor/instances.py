"""Checks of the instances: whether they run, lead and finish their jobs, and the conditions of alerts."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from tenure.clock import MICROSECOND
from tenure.doctor.findings import Code, Finding, Severity, broken, warning
from tenure.doctor.patient import Patient
from tenure.domain.alerts import AlertName, Condition, conditions_of
from tenure.domain.instances import Instance
from tenure.domain.jobs import Job
from tenure.domain.leases import JOB_LOCK

OVERDUE = timedelta(minutes=1)
"""A job is overdue if more than its interval plus its lock timeout plus this time has passed both since it was due and
since its last run began."""
PLACES_LISTED = 5
PRUNE = "prune"
PRUNE_QUIET = timedelta(days=1)


async def check_running(patient: Patient) -> Sequence[Finding]:
    if await patient.is_running():
        return []
    seen = "no instance runs: the ends of sessions are not recorded, and no usage is sent"
    return [warning(Code.NOT_RUNNING, seen, patient.command("serve"))]


async def check_leases(patient: Patient) -> Sequence[Finding]:
    if not await patient.is_running():
        return []
    now = await patient.now()
    timing = patient.settings.leases
    patience = timedelta(seconds=timing.duration_seconds + timing.acquire_seconds)
    leases = {lease.name: lease for lease in await patient.leases()}
    findings = []
    for name in patient.lease_names:
        lease = leases.get(name)
        if lease is not None and (lease.held or now - lease.expires_at < patience):
            continue
        since = "so far" if lease is None else f"since {_time(lease.expires_at)}"
        seen = f"instances run, but none has held lease {name} {since}"
        mend = patient.command("serve")
        others = {instance.executor_lease for instance in await patient.instances()}
        if name == timing.executor_lease and others and name not in others:
            # `tenure serve` with these settings refuses to start while the other instances run: do not suggest it.
            seen = f"the running instances use lease {', '.join(sorted(others))}, and these settings name lease {name}"
            mend = f"TENURE_LEASES__EXECUTOR_LEASE={shlex.quote(min(others))} {patient.command('doctor')}"
        findings.append(broken(Code.LEASE_UNHELD, seen, mend, name))
    return findings


async def check_versions(patient: Patient) -> Sequence[Finding]:
    """Several versions are normal during an upgrade. After the upgrade, they show that an instance was left out."""
    instances = await patient.instances()
    versions = sorted({instance.version for instance in instances}, key=_numbers)
    if len(versions) < 2:  # noqa: PLR2004
        return []
    newest = versions[-1]
    old = [instance for instance in instances if instance.version != newest]
    seen = f"instances run versions {', '.join(versions)}; not the newest: {_places(old)}"
    upgrade = shlex.quote(f"pip install --upgrade tenure=={newest} && systemctl restart tenure")
    return [warning(Code.VERSIONS_DIFFER, seen, f"ssh {shlex.quote(old[0].host)} {upgrade}", newest)]


async def check_executor_leases(patient: Patient) -> Sequence[Finding]:
    """An instance refuses to start beside instances with another executor lease. But if the database refuses writes
    while the instance starts, the instance cannot compare the leases, and may run although they differ.
    """
    instances = await patient.instances()
    names = Counter(instance.executor_lease for instance in instances)
    if len(names) < 2:  # noqa: PLR2004
        return []
    usual = names.most_common()[0][0]
    other = next(instance for instance in instances if instance.executor_lease != usual)
    listed = ", ".join(f"{name} (instances: {count})" for name, count in names.most_common(PLACES_LISTED))
    seen = (
        f"instances send the same submissions under several leases: {listed}; "
        f"an instance on {other.host} uses {other.executor_lease}"
    )
    return [broken(Code.EXECUTOR_LEASES_DIFFER, seen, f"ssh {shlex.quote(other.host)} systemctl stop tenure", usual)]


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _places(instances: Sequence[Instance]) -> str:
    counts = Counter(f"{instance.version} on {instance.host}" for instance in instances)
    listed = [f"{count} with {place}" for place, count in counts.most_common(PLACES_LISTED)]
    return ", ".join([*listed, *(["…"] if len(counts) > PLACES_LISTED else [])])


async def check_jobs(patient: Patient) -> Sequence[Finding]:
    now, running = await patient.now(), await patient.is_running()
    findings: list[Finding] = []
    for job in await patient.jobs():
        if job.paused:
            findings.append(
                warning(Code.JOB_PAUSED, f"job {job.name} is paused", f"tenure jobs resume {job.name}", job.name)
            )
        elif running and _is_overdue(job, now):
            seen = f"job {job.name} was due at {_time(job.next_run_at)}"
            findings.append(broken(Code.JOB_OVERDUE, seen, f"tenure jobs run {job.name}", job.name))
    return findings


def _is_overdue(job: Job, now: datetime) -> bool:
    # A failing job runs late because it is retried after its tick; the condition `job-failing` reports it. While a run
    # is in progress, `next_run_at` stays in the past, so count from the start of the run; the condition `job-lock-held`
    # reports a run that takes too long.
    allowed = (job.interval_microseconds + job.lock_timeout_microseconds) * MICROSECOND + OVERDUE
    since = max(job.next_run_at, job.last_start_at or job.next_run_at)
    return job.failures_in_a_row == 0 and now - since > allowed


async def check_pruning(patient: Patient) -> Sequence[Finding]:
    """Only the job `prune` deletes old entries of the audit log, closed sessions, runs and deliveries."""
    job = next((job for job in await patient.jobs() if job.name == PRUNE), None)
    if job is None:
        return []
    interval = job.interval_microseconds * MICROSECOND
    since = job.last_success_at or job.last_start_at or job.next_run_at
    quiet = await patient.now() - since
    if quiet <= PRUNE_QUIET + interval:
        return []
    seen = f"days since old rows, such as those of the audit log, were last deleted: {quiet.days}"
    return [warning(Code.PRUNE_NOT_RUNNING, seen, "tenure jobs resume prune && tenure jobs run prune", PRUNE)]


async def check_conditions(patient: Patient) -> Sequence[Finding]:
    """Derives the alerts that the job `watch` would raise, so that they are found even if `watch` does not run."""
    observed = await patient.store.read_observations(patient.lease_names)
    running = await patient.is_running()
    return [
        _finding(condition)
        for condition in conditions_of(observed)
        # While no instance runs, usage lags. The finding `not-running` already reports the cause.
        if running or condition.alert is not AlertName.USAGE_LAGGING
    ]


_BROKEN = (
    AlertName.JOB_FAILING,
    AlertName.USAGE_FAILING,
    AlertName.USAGE_LAGGING,
    AlertName.CHUNK_WITHHELD,
    AlertName.CLOCK_BEHIND,
)
_PENDING = "tenure submissions list --gateway usages --state pending"
_MEND = {
    AlertName.JOB_LOCK_HELD: "tenure jobs runs {job}",
    AlertName.JOB_FAILING: "tenure jobs runs {job}",
    AlertName.LOCK_RECLAIMED: "tenure leases history {subject}",
    AlertName.LEADERSHIP_FLAPPING: "tenure leases history {subject}",
    AlertName.USAGE_FAILING: _PENDING,
    AlertName.USAGE_LAGGING: _PENDING,
    AlertName.CHUNK_WITHHELD: "tenure audit",
    AlertName.LAPSES_EXCEED_OPENINGS: "tenure sessions list --close-reason LEASE_EXPIRED",
    AlertName.CLOCK_BEHIND: "chronyc makestep",
}


def _finding(condition: Condition) -> Finding:
    subject = condition.subject or ""
    return Finding(
        code=Code(condition.alert.value),
        severity=Severity.BROKEN if condition.alert in _BROKEN else Severity.WARNING,
        subject=condition.subject,
        seen=condition.detail,
        mend=_MEND[condition.alert].format(subject=subject, job=subject.removeprefix(JOB_LOCK)),
    )


def _time(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%d %H:%M:%S UTC")
