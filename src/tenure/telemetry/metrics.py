"""The metrics of `GET /metrics`: the families, and their text in Prometheus' format.

Each worker counts with plain integers (`counters.py`). When a worker is scraped, it asks its siblings for their series,
and renders the series of all workers, each with the slot of its worker as the label `worker`. A worker that does not
answer within a second has `tenure_worker_up` 0 and no other series; the scrape does not fail.

Families with `of_installation` describe the database. Only the worker in slot 0 has them (`alerts/installation.py`),
and they have no label `worker`: otherwise each sum over workers would count the installation several times.

Tenure needs only the text format of Prometheus, and does not use the library `prometheus_client`. The counters of that
library need a lock and an object per series, its multi-process mode leaves files behind, and its registry cannot render
the series of another process.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from tenure import __version__
from tenure.telemetry.siblings import Siblings

FIGURE = "metrics"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
Value = float | Sequence[float]
"""A number, or for a histogram: the count of each bucket, the count above the last edge, and the sum."""
Series = Mapping[str, Mapping[Labels, Value]]
"""The series of one worker: by the name of the family, and by the values of its labels."""


class Family(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Labels = ()
    edges: Sequence[float] = ()
    of_installation: bool = False


HTTP_EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.0)
"""In seconds. The last edge is 2, because a request that the database does not answer gets 503 within two seconds."""
STORE_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.7, 30.0)
"""In seconds. The last edges are the time limits of a short call, 1.7, and of a long one, 30."""
BATCH_EDGES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
JOB_EDGES = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""In seconds. The last edge is 300, because an alert is raised if a job holds its lock for longer."""

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("tenure_build_info", "gauge", "Always 1. The label is the version of the worker.", ("version",)),
        Family("tenure_worker_up", "gauge", "Whether the worker answered this scrape within a second."),
        Family(
            "tenure_sessions_opened_total",
            "counter",
            "Open requests that were answered with a session.",
            ("status", "kind"),
        ),
        Family(
            "tenure_sessions_refused_total",
            "counter",
            "Open requests that were refused: no free seat, or another tenant.",
            ("reason",),
        ),
        Family("tenure_sessions_closed_total", "counter", "Ends of sessions that were recorded.", ("reason",)),
        Family("tenure_sessions_active", "gauge", "Live sessions in the database.", ("kind",), of_installation=True),
        Family("tenure_sessions_heartbeat_total", "counter", "Heartbeats that renewed a session."),
        Family("tenure_sessions_heartbeat_late_total", "counter", "Heartbeats for sessions that had ended."),
        Family("tenure_sessions_lease_expired_total", "counter", "Sessions whose lease expired."),
        Family(
            "tenure_seats",
            "gauge",
            "Seats of all capacities that have a limit: the sum of the limits, and how many are taken.",
            ("state",),
            of_installation=True,
        ),
        Family("tenure_job_runs_total", "counter", "Runs of jobs whose outcome was recorded.", ("job", "outcome")),
        Family("tenure_job_duration_seconds", "histogram", "Duration of runs.", ("job",), JOB_EDGES),
        Family(
            "tenure_job_failures_in_a_row",
            "gauge",
            "Failed runs since the last success.",
            ("job",),
            of_installation=True,
        ),
        Family(
            "tenure_job_lock_held_seconds",
            "gauge",
            "For how long the lock of the job has been held; 0 if it is free.",
            ("job",),
            of_installation=True,
        ),
        Family(
            "tenure_lease_contention_total",
            "counter",
            "Attempts to acquire a lease or a job lock that another instance acquired first.",
            ("lease",),
        ),
        Family(
            "tenure_leases_reclaimed_total",
            "counter",
            "Leases and job locks acquired after their last holder had let them expire.",
            ("lease",),
        ),
        Family("tenure_leader", "gauge", "Whether this worker holds the lease and trusts it.", ("lease",)),
        Family("tenure_leader_acquired_total", "counter", "Acquisitions of leadership.", ("lease",)),
        Family(
            "tenure_usage_lag_seconds",
            "gauge",
            "Age of the oldest instant whose usage is not delivered.",
            of_installation=True,
        ),
        Family(
            "tenure_usage_failures_in_a_row",
            "gauge",
            "Highest number of failed attempts in a row of a chunk of usage that is not delivered.",
            of_installation=True,
        ),
        Family(
            "tenure_usage_chunks_withheld",
            "gauge",
            "Chunks of usage that are withheld.",
            of_installation=True,
        ),
        Family(
            "tenure_clock_behind_seconds",
            "gauge",
            "How far the clock of the database is behind the last cut; 0 if it is not.",
            of_installation=True,
        ),
        Family(
            "tenure_submission_attempts_total",
            "counter",
            "Attempts to deliver a submission whose outcome was recorded.",
            ("gateway", "outcome"),
        ),
        Family(
            "tenure_submissions_pending",
            "gauge",
            "Submissions that wait to be delivered.",
            ("gateway",),
            of_installation=True,
        ),
        Family("tenure_alerts_active", "gauge", "Active alerts of the job `watch`.", ("alert",), of_installation=True),
        Family(
            "tenure_installation_age_seconds",
            "gauge",
            "Age of the metrics that describe the whole installation.",
            of_installation=True,
        ),
        Family("tenure_store_batch_size", "histogram", "Requests in one transaction.", ("operation",), BATCH_EDGES),
        Family(
            "tenure_store_seconds",
            "histogram",
            "Duration of store operations, retries included.",
            ("operation",),
            STORE_EDGES,
        ),
        Family(
            "tenure_store_retries_total",
            "counter",
            "Tries of store operations that failed with an error that is usually retried.",
            ("cause",),
        ),
        Family(
            "tenure_http_request_seconds",
            "histogram",
            "Duration of requests, from the head of the request to the answer.",
            ("route", "status"),
            HTTP_EDGES,
        ),
        Family(
            "tenure_http_refused_total",
            "counter",
            "Requests, connections and streams that a limit refused.",
            ("limit",),
        ),
        Family("tenure_streams_open", "gauge", "Open streams."),
        Family("tenure_stream_received_bytes_total", "counter", "Bytes of messages that streams received."),
        Family("tenure_stream_sent_bytes_total", "counter", "Bytes of messages that handlers sent."),
        Family("tenure_stream_received_messages_total", "counter", "Messages that streams received."),
        Family("tenure_stream_sent_messages_total", "counter", "Messages that handlers sent."),
        Family(
            "tenure_stream_results_total",
            "counter",
            "Partial and final texts and errors that handlers sent.",
            ("result",),
        ),
        Family(
            "tenure_stream_audio_seconds_total",
            "counter",
            "Duration of the binary messages that streams received, taken as audio of 16 kHz and 16 bits.",
        ),
    )
}

WORKER = "worker"


class Exposition:
    """Renders the series of all workers of the process group."""

    def __init__(self, siblings: Siblings) -> None:
        self._siblings = siblings

    async def text(self) -> bytes:
        figures = await self._siblings.ask_slots(FIGURE)
        parts = {slot: None if figure is None else decode(figure) for slot, figure in sorted(figures.items())}
        return render(parts)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, list[tuple[list[str], float | list[float]]]]).decode


def encode(series: Series) -> bytes:
    # Lists of pairs, because most formats allow no list as the key of a mapping.
    return _encode({name: [(list(labels), value) for labels, value in each.items()] for name, each in series.items()})


def decode(figure: bytes) -> Series:
    return {name: {tuple(labels): value for labels, value in pairs} for name, pairs in _decode(figure).items()}


def render(parts: Mapping[int, Series | None]) -> bytes:
    """Return the text of all series. `parts` has the series of each worker by slot, or None if it did not answer."""
    up: Series = {"tenure_worker_up": {(): 1.0}, "tenure_build_info": {(__version__,): 1.0}}
    down: Series = {"tenure_worker_up": {(): 0.0}}
    workers = {slot: down if series is None else {**series, **up} for slot, series in parts.items()}
    lines: list[str] = []
    for family in FAMILIES.values():
        series = [line for slot, each in workers.items() for line in _family_lines(family, slot, each)]
        if series:
            lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *series)
    return "\n".join([*lines, ""]).encode()


def _family_lines(family: Family, slot: int, series: Series) -> Iterable[str]:
    worker = "" if family.of_installation else f'{WORKER}="{slot}"'
    for values, value in sorted(series.get(family.name, {}).items()):
        pairs = [f'{name}="{_escaped(text)}"' for name, text in zip(family.labels, values, strict=True)]
        labels = ",".join([*pairs, worker] if worker else pairs)
        if isinstance(value, Sequence):
            yield from _histogram_lines(family, labels, value)
        else:
            yield f"{family.name}{{{labels}}} {_number(value)}" if labels else f"{family.name} {_number(value)}"


def _histogram_lines(family: Family, labels: str, value: Sequence[float]) -> Iterable[str]:
    # Keep this loop cheap: a scrape may have twenty thousand of these lines.
    total, beginning = 0, f'{family.name}_bucket{{{labels},le="'
    for edge, count in zip(_EDGES[family.name], value, strict=False):
        total += int(count)
        yield f'{beginning}{edge}"}} {total}'
    yield f"{family.name}_sum{{{labels}}} {value[-1]:.9g}"
    yield f"{family.name}_count{{{labels}}} {total}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


_EDGES = {name: [*map(_number, family.edges), "+Inf"] for name, family in FAMILIES.items()}
