"""Each counter counts its event, and the exported text has the Prometheus format."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tenure.alerts import installation
from tenure.alerts.installation import InstallationReader
from tenure.domain.jobs import RunOutcome
from tenure.domain.sessions import OpenOutcome
from tenure.domain.submissions import AttemptOutcome
from tenure.errors import DatabaseUnavailable
from tenure.store.retries import Cause
from tenure.telemetry.counters import Counters
from tenure.telemetry.events import (
    AttemptEnded,
    Event,
    HeartbeatsAnswered,
    JobFinished,
    JobReclaimed,
    LeaderAcquired,
    LeaseContended,
    OpenRefused,
    RequestAnswered,
    RequestsRefused,
    SessionClosed,
    SessionOpened,
    StoreCalled,
    StoreRetried,
    StreamReceived,
    StreamSent,
    Telemetry,
)
from tenure.telemetry.metrics import FAMILIES, HTTP_EDGES, Labels, Value, decode, encode, render
from tenure.telemetry.siblings import Siblings
from tests.support.open_requests import NOON
from tests.support.processes import eventually
from tests.support.usage import session_between

SESSION = session_between(NOON, NOON, closed=False, kind=2)
WHOSE = ("user", "tenant", "capacity")
MOVES: Mapping[str, tuple[Event, Labels]] = {
    "tenure_sessions_refused_total": (OpenRefused(OpenOutcome.SESSION_LIMIT), ("session-limit",)),
    "tenure_sessions_opened_total": (SessionOpened(OpenOutcome.CREATED, SESSION), ("created", "2")),
    "tenure_sessions_closed_total": (SessionClosed("one", "STOPPED", NOON, *WHOSE), ("STOPPED",)),
    "tenure_sessions_lease_expired_total": (SessionClosed("one", "LEASE_EXPIRED", NOON, *WHOSE), ()),
    "tenure_sessions_heartbeat_total": (HeartbeatsAnswered(1, 0), ()),
    "tenure_sessions_heartbeat_late_total": (HeartbeatsAnswered(0, 1), ()),
    "tenure_job_runs_total": (JobFinished("prune", 7, RunOutcome.FAILED, 0.5, {}), ("prune", "failed")),
    "tenure_job_duration_seconds": (JobFinished("prune", 7, RunOutcome.FAILED, 0.5, {}), ("prune",)),
    "tenure_lease_contention_total": (LeaseContended("lead"), ("lead",)),
    "tenure_leases_reclaimed_total": (JobReclaimed("prune", "other", 6), ("job:prune",)),
    "tenure_leader_acquired_total": (LeaderAcquired("lead", "us", 7, NOON, False), ("lead",)),
    "tenure_submission_attempts_total": (AttemptEnded("crm", "s-1", 1, AttemptOutcome.UNKNOWN), ("crm", "unknown")),
    "tenure_store_batch_size": (StoreCalled("heartbeat", 0.1, 64), ("heartbeat",)),
    "tenure_store_seconds": (StoreCalled("get_session", 0.1, None), ("get_session",)),
    "tenure_store_retries_total": (StoreRetried(Cause.DEADLOCK.value), ("deadlock",)),
    "tenure_http_request_seconds": (RequestAnswered("GET /jobs", 200, 0.1, "GET"), ("GET /jobs", "200")),
    "tenure_http_refused_total": (RequestsRefused("max_headers", 1), ("max_headers",)),
    "tenure_stream_received_bytes_total": (StreamReceived(1, 0), ()),
    "tenure_stream_sent_bytes_total": (StreamSent(None, 1), ()),
    "tenure_stream_received_messages_total": (StreamReceived(1, 0), ()),
    "tenure_stream_sent_messages_total": (StreamSent(None, 1), ()),
    "tenure_stream_results_total": (StreamSent("finals_sent", 1), ("final",)),
    "tenure_stream_audio_seconds_total": (StreamReceived(32_000, 1000), ()),
}
"""For each counter and histogram: an event that adds one to it, and the labels of the series."""


def counted() -> tuple[Telemetry, Counters]:
    telemetry = Telemetry()
    return telemetry, Counters(telemetry, Siblings())


def count_of(value: Value) -> float:
    return sum(value[:-1]) if not isinstance(value, float | int) else value


def test_event_adds_one_to_its_counter_or_histogram() -> None:
    assert set(MOVES) == {family.name for family in FAMILIES.values() if family.kind != "gauge"}
    for name, (event, labels) in MOVES.items():
        telemetry, counters = counted()
        before = {key: count_of(value) for key, value in counters.series()[name].items()}
        for _ in range(3):
            telemetry.report(event)
        after = {key: count_of(value) for key, value in counters.series()[name].items()}
        assert after == {**before, labels: 3}, name
        assert len(FAMILIES[name].labels) == len(labels), name


def test_reclaimed_leadership_is_counted() -> None:
    telemetry, counters = counted()
    telemetry.report(LeaderAcquired("lead", "us", 7, NOON, True))
    assert counters.series()["tenure_leases_reclaimed_total"] == {("lead",): 1}


def test_series_of_expected_names_begin_at_zero() -> None:
    """Prometheus cannot see the first increase of a series that begins with 1."""
    _, counters = counted()
    counters.expect(jobs=["prune"], leases=["lead"], gateways=["crm"])
    series = counters.series()
    assert series["tenure_leases_reclaimed_total"] == {("lead",): 0, ("job:prune",): 0}
    assert series["tenure_job_runs_total"] == {("prune", outcome.value): 0 for outcome in RunOutcome}
    assert set(series["tenure_submission_attempts_total"]) == {("crm", outcome.value) for outcome in AttemptOutcome}
    assert sum(map(count_of, series["tenure_sessions_opened_total"].values())) == 0
    assert len(series["tenure_sessions_opened_total"]) == 9


def test_buckets_include_their_upper_bound() -> None:
    telemetry, counters = counted()
    for seconds in (0.0, 0.005, 0.0050001, 2.0, 2.1):
        telemetry.report(RequestAnswered("GET /jobs", 200, seconds, "GET"))
    text = render({0: counters.series()}).decode()
    labels = 'route="GET /jobs",status="200",worker="0"'
    buckets = re.findall(rf"tenure_http_request_seconds_bucket{{{re.escape(labels)},le=\"(.*?)\"}} (\d+)", text)
    assert buckets[:2] + buckets[-2:] == [("0.005", "2"), ("0.01", "3"), ("2", "4"), ("+Inf", "5")]
    assert len(buckets) == len(HTTP_EDGES) + 1
    assert f"tenure_http_request_seconds_sum{{{labels}}} 4.1100001" in text
    assert f"tenure_http_request_seconds_count{{{labels}}} 5" in text


def test_text_has_the_series_of_each_worker_and_those_of_the_installation_once() -> None:
    first = {"tenure_streams_open": {(): 2}, "tenure_sessions_active": {("1",): 7.0, ("2",): 0.5}}
    text = render({0: decode(encode(first)), 1: {"tenure_streams_open": {(): 3}}, 2: None}).decode()
    assert re.findall(r"^tenure_worker_up.*", text, re.MULTILINE) == [
        'tenure_worker_up{worker="0"} 1',
        'tenure_worker_up{worker="1"} 1',
        'tenure_worker_up{worker="2"} 0',
    ]
    assert text.count("# TYPE tenure_streams_open gauge\n") == 1
    assert 'tenure_streams_open{worker="0"} 2\ntenure_streams_open{worker="1"} 3\n' in text
    assert 'tenure_sessions_active{kind="1"} 7\ntenure_sessions_active{kind="2"} 0.5\n' in text
    assert text.endswith("\n")


def test_label_values_are_escaped() -> None:
    text = render({0: {"tenure_leader": {('a"b\\c\nd',): 1}}}).decode()
    assert r'tenure_leader{lease="a\"b\\c\nd",worker="0"} 1' in text


class CountedStore:
    """Counts how often the values of the installation are read."""

    def __init__(self) -> None:
        self.reads = 0

    async def read_gauges(self, _gateways: Sequence[str]) -> object:
        self.reads += 1
        raise DatabaseUnavailable("no values are needed")


async def test_installation_reader_pauses_without_scrapes_and_resumes_after_a_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installation, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(installation, "IDLE_RATIO", 0)
    monkeypatch.setattr(installation, "UNUSED_SECONDS", 0.2)
    store: Any = CountedStore()
    reader = InstallationReader(store, list, [], Telemetry())
    running = asyncio.create_task(reader.run())
    try:
        await eventually(lambda: store.reads > 3, 10, "the metrics are read after the start")
        await asyncio.sleep(0.5)
        unused = store.reads
        await asyncio.sleep(0.1)
        assert store.reads == unused
        reader.series()
        await eventually(lambda: store.reads > unused, 10, "the metrics are read again after a scrape")
    finally:
        running.cancel()
