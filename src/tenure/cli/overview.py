"""The overview of the whole installation in `tenure status` and `tenure top`, read with a few requests.

A part that the service refuses to the caller, because of the caller's role or because the caller is bound to one
tenant, is None here, and is omitted on the screen.
"""

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tenure.cli.output import Cell, Value, clean, duration_text, host_now, relative_text
from tenure.cli.service import Service
from tenure.cli.sessions import KINDS
from tenure.domain.submissions import USAGES

if TYPE_CHECKING:
    from tenure_client.models import (
        Activity,
        Alert,
        Caller,
        Health,
        Instance,
        Job,
        Lease,
        Readiness,
        SessionMetrics,
        SubmissionCount,
    )

T = TypeVar("T")

LISTED = 100
"""At most this many leases, jobs, active alerts and instances are read. A healthy installation has fewer of each."""
LATE_SECONDS = 15 * 60
"""A usage lag above this is shown as bad. The alert `usage-lagging` begins at the same lag by default."""
SHOWN = 3
ALWAYS_SHOWN = ("opened", "heartbeats", "lapsed")

_SERIES = re.compile(r"([a-z_]+)(?:\{(.*?)\})? (\S+)").fullmatch
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"').findall


class Metrics:
    """The values of `GET /metrics`."""

    def __init__(self, text: str) -> None:
        self._series: dict[str, list[tuple[dict[str, str], float]]] = {}
        for line in text.splitlines():
            found = None if line.startswith("#") else _SERIES(line)
            if found:
                labels = dict(_LABEL(found[2] or ""))
                self._series.setdefault(found[1], []).append((labels, float(found[3])))

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of all series of a metric that have these labels; None if no series has them."""
        values = [value for has, value in self._series.get(name, []) if labels.items() <= has.items()]
        return sum(values) if values else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sum of a metric for each value of one of its labels."""
        sums: dict[str, float] = {}
        for labels, value in self._series.get(name, []):
            sums[labels.get(label, "")] = sums.get(labels.get(label, ""), 0.0) + value
        return sums


class Overview(NamedTuple):
    at: datetime
    url: str
    caller: "Caller | None"
    health: "Health | None"
    readiness: "Readiness | None"
    not_ready: str | None
    """Why the instance is not ready; None if it is ready."""
    sessions: "SessionMetrics | None"
    metrics: Metrics | None
    leases: "list[Lease] | None"
    jobs: "list[Job] | None"
    alerts: "list[Alert] | None"
    submissions: "list[SubmissionCount] | None"
    instances: "list[Instance] | None"
    activity: "Activity | None"
    raw: dict[str, bytes]
    """The JSON responses as the service sent them, by the name of the part, such as `jobs`."""


def read_overview(service: Service) -> Overview:
    """Read all parts. Raise the client's error if the service does not answer, or refuses with another status than 403
    and 404. The readiness probe may also answer 503: then `not_ready` is set.
    """
    client, raw = service.client, {}

    def part(name: str, call: Callable[[], T], *, keep: bool = True) -> T | None:
        from tenure_client.errors import Forbidden, NotFound  # noqa: PLC0415

        try:
            found = call()
        except (Forbidden, NotFound):
            return None
        if keep:
            raw[name] = service.raw()
        return found

    readiness, not_ready = _readiness(service)
    if readiness is not None:
        raw["readiness"] = service.raw()
    metrics = part("metrics", client.metrics, keep=False)
    leases = part("leases", lambda: client.leases.list(limit=LISTED).first())
    jobs = part("jobs", lambda: client.jobs.list(limit=LISTED).first())
    alerts = part("alerts", lambda: client.alerts.list(state="active", limit=LISTED).first())
    submissions = part("submissions", client.submissions.counts)
    instances = part("instances", lambda: client.instances.list(limit=LISTED).first())
    caller = part("caller", client.me)
    return Overview(
        at=host_now() if caller is None else caller.now,
        url=service.url,
        caller=caller,
        health=part("health", client.health),
        readiness=readiness,
        not_ready=not_ready,
        sessions=part("sessions", client.sessions.metrics),
        metrics=None if metrics is None else Metrics(metrics),
        leases=None if leases is None else leases.leases,
        jobs=None if jobs is None else jobs.jobs,
        alerts=None if alerts is None else alerts.alerts,
        submissions=None if submissions is None else submissions.counts,
        instances=None if instances is None else instances.instances,
        activity=part("activity", client.activity),
        raw=raw,
    )


def _readiness(service: Service) -> "tuple[Readiness | None, str | None]":
    from tenure_client.errors import Unavailable  # noqa: PLC0415

    try:
        return service.client.ready(), None
    except Unavailable as error:
        return None, error.detail


# The lines that both commands show.


def overview_fields(overview: Overview) -> dict[str, Value]:
    """Return one line per part of the installation, the most important first."""
    fields: dict[str, Value] = {"service": _service_cell(overview)}
    if overview.caller is not None:
        fields["you"] = _caller_text(overview.caller)
    if overview.sessions is not None:
        fields["sessions"] = _sessions_text(overview.sessions)
    if overview.activity is not None and (rates := rates_of(overview.activity)):
        fields["per second"] = ", ".join(
            f"{rate:,.1f} {name}" for name, rate in rates.items() if name in ALWAYS_SHOWN or round(rate, 1)
        )
    if overview.metrics is not None:
        fields["seats"] = _seats_cell(overview.metrics)
        fields["usage"] = _usage_cell(overview.metrics)
    if overview.instances is not None:
        fields["instances"] = _instances_cell(overview.instances)
    if overview.leases is not None:
        fields["leaders"] = _leaders_cell([lease for lease in overview.leases if not is_job_lock(lease)], overview.at)
    if overview.jobs is not None:
        fields["jobs"] = _jobs_cell(overview.jobs)
    if overview.metrics is not None:
        fields["gateways"] = _gateways_cell(overview.metrics, overview.submissions or [])
    if overview.alerts is not None:
        fields["alerts"] = _alerts_cell(overview.alerts, overview.at)
    return fields


def _service_cell(overview: Overview) -> Cell:
    version = "" if overview.health is None else f", version {clean(overview.health.version)}"
    if overview.not_ready is not None:
        return Cell(f"{overview.url}{version}, not ready: {clean(overview.not_ready)}", style="bad")
    return Cell(f"{overview.url}{version}, ready", style="good")


def _caller_text(caller: "Caller") -> str:
    if caller.anonymous:
        return "anonymous: no key exists yet, so none is needed"
    bound = "" if caller.tenant_object_id is None else f", of tenant {caller.tenant_object_id}"
    return f"{caller.name}, {caller.role}{bound}"


def _sessions_text(sessions: "SessionMetrics") -> str:
    kinds = [f"{count:,} {KINDS.get(int(kind), kind)}" for kind, count in sessions.active_by_kind.items() if count]
    return f"{sessions.active_sessions:,} live{': ' if kinds else ''}{', '.join(kinds)}"


def rates_of(activity: "Activity") -> dict[str, float]:
    """Estimate the events per second in the last minute. Return an empty dictionary until two minutes are counted.

    The service counts by the minute. So the events of the last 60 seconds are estimated as those of the current minute,
    plus the share of the previous minute that lies within the last 60 seconds.
    """
    last, before = activity.points[-1:], activity.points[-2:-1]
    if not last or not before:
        return {}
    now_, then = last[0], before[0]
    rest = 1 - min((activity.to - now_.at).total_seconds() / activity.step_seconds, 1.0)
    counts = {
        "opened": (now_.opened + now_.upgraded, then.opened + then.upgraded),
        "refused": (now_.refused, then.refused),
        "heartbeats": (now_.heartbeats, then.heartbeats),
        "late": (now_.late_heartbeats, then.late_heartbeats),
        "lapsed": (now_.lapsed, then.lapsed),
        "ended": (sum(now_.closed.values()) - now_.lapsed, sum(then.closed.values()) - then.lapsed),
    }
    return {name: (new + old * rest) / activity.step_seconds for name, (new, old) in counts.items()}


def _instances_cell(instances: "list[Instance]") -> Cell:
    alive = [each for each in instances if each.alive]
    died = [each.instance for each in instances if not each.alive and each.stopped_at is None]
    versions = sorted({clean(each.version) for each in alive})
    parts = [f"{len(alive)} alive"]
    parts += [f"of different versions: {', '.join(versions)}"] if len(versions) > 1 else []
    parts += [f"died in the last day: {_some(died)}"] if died else []
    return Cell(", ".join(parts), style="warn" if len(versions) > 1 or died else None)


def _seats_cell(metrics: Metrics) -> Cell:
    seats = metrics.by("tenure_seats", "state")
    limit, taken = seats.get("limit"), seats.get("taken")
    age = metrics.value("tenure_installation_age_seconds")
    if limit is None or taken is None or age is None:
        return Cell("unknown", style="dim")
    # Show the age: the service counts the seats every ten seconds or less often, so the count lacks recent changes.
    counted = f"as of {duration_text(round(age))} ago"
    if not limit:
        return Cell(f"no capacity has a limit, {counted}")
    text = f"{taken:,.0f} of {limit:,.0f} taken ({taken / limit:.0%}), {counted}"
    return Cell(text, style="warn" if taken >= limit else None)


def _usage_cell(metrics: Metrics) -> Cell:
    lag = metrics.value("tenure_usage_lag_seconds")
    if lag is None:
        return Cell("unknown", style="dim")
    if USAGES not in metrics.by("tenure_submissions_pending", "gateway"):
        # Do not show the lag: without a gateway no window waits for its delivery, so the lag always stays small.
        return Cell(f"not sent: no [gateways.{USAGES}] is configured", style="warn")
    failures = metrics.value("tenure_usage_failures_in_a_row") or 0
    failing = f", failures in a row: {failures:.0f}" if failures else ""
    text = f"delivered up to {duration_text(round(lag))} ago{failing}"
    return Cell(text, style="bad" if lag > LATE_SECONDS else "warn" if failures else None)


def _leaders_cell(leases: "list[Lease]", at: datetime) -> Cell:
    if not leases:
        return Cell("none", style="warn")
    texts = [
        f"{lease.name}: {lease.holder}, since {duration_text((at - lease.acquired_at).total_seconds())}"
        if lease.held
        else f"{lease.name}: not held"
        for lease in leases
    ]
    return Cell(_some(texts, "; "), style=None if all(lease.held for lease in leases) else "warn")


def is_job_lock(lease: "Lease") -> bool:
    """Whether the lease is the lock of a job. Job locks are not shown among the leaders: a job has its lock only during
    a run.
    """
    return lease.name.startswith("job:")


def _jobs_cell(jobs: "list[Job]") -> Cell:
    failing = [f"{job.name} ({job.failures_in_a_row} in a row)" for job in jobs if job.failures_in_a_row]
    paused = [job.name for job in jobs if job.paused]
    parts = [f"{len(jobs) - len(failing) - len(paused)} ok"]
    parts += [f"failing: {_some(failing)}"] if failing else []
    parts += [f"paused: {_some(paused)}"] if paused else []
    return Cell(", ".join(parts), style="bad" if failing else "warn" if paused else None)


def _gateways_cell(metrics: Metrics, submissions: "list[SubmissionCount]") -> Cell:
    if metrics.value("tenure_submissions_pending") is None:
        return Cell("unknown", style="dim")
    # `other` stands for all gateways that are not configured on the instance. It is shown only if submissions wait.
    waiting = {
        name: count
        for name, count in metrics.by("tenure_submissions_pending", "gateway").items()
        if count or name != "other"
    }
    failed = {each.gateway: f"{each.count:,} failed" for each in submissions if each.state == "failed"}
    texts = [
        f"{name}: {count:,.0f} waiting{f', {failed[name]}' if name in failed else ''}"
        for name, count in waiting.items()
    ]
    texts += [f"{name}: {count}" for name, count in failed.items() if name not in waiting]
    return Cell("; ".join(texts) or "none configured", style="warn" if failed else None)


def _alerts_cell(alerts: "list[Alert]", at: datetime) -> Cell:
    if not alerts:
        return Cell("none", style="good")
    texts = [f"{alert.name} since {relative_text(alert.raised_at, at)}: {clean(alert.detail)}" for alert in alerts]
    return Cell(f"{len(alerts)} active: {_some(texts, '; ')}", style="bad")


def _some(texts: list[str], gap: str = ", ") -> str:
    more = f"{gap}and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return gap.join(texts[:SHOWN]) + more
