"""The telemetry seam: events reach their subscribers, and nothing else logs or counts."""

import ast
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from tenure.domain.sessions import OpenOutcome, StreamCounters
from tenure.telemetry.counters import Counters
from tenure.telemetry.events import (
    HttpFailed,
    InstanceDraining,
    JobClockBehind,
    JobFailed,
    LeaderLost,
    LeaseContended,
    PayloadWithheld,
    SessionClosed,
    SessionOpened,
    StreamReceived,
    StreamSent,
    Telemetry,
    UsageEmitted,
    all_events,
)
from tenure.telemetry.logs import log_events
from tests.support.open_requests import NOON
from tests.support.source import syntax_trees
from tests.support.usage import lived

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ERROR = ValueError("broken")


def test_event_reaches_subscribers_of_its_type_in_order() -> None:
    telemetry, seen = Telemetry(), []
    telemetry.subscribe(LeaseContended, lambda event: seen.append(("first", event.lease)))
    telemetry.subscribe(LeaseContended, lambda event: seen.append(("second", event.lease)))
    telemetry.subscribe(InstanceDraining, lambda event: seen.append(("other", event.reason)))
    telemetry.report(LeaseContended("lead"))
    assert seen == [("first", "lead"), ("second", "lead")]


def test_event_names_are_unique() -> None:
    names = [kind.name for kind in all_events()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (InstanceDraining("SIGTERM"), {"event": "instance.draining", "log_level": "info", "reason": "SIGTERM"}),
        (
            JobClockBehind("prune", AT, AT),
            {
                "event": "job.clock_behind",
                "log_level": "error",
                "job": "prune",
                "now": "2026-01-02T03:04:05.000000Z",
                "next_run_at": "2026-01-02T03:04:05.000000Z",
            },
        ),
        (UsageEmitted(2, AT, sent=False), {"event": "usage.emitted", "log_level": "info", "windows": 2, "sent": False}),
        (
            JobFailed("prune", 7, "broken", ERROR),
            {"event": "job.failed", "log_level": "warning", "error": "broken", "exc_info": ERROR},
        ),
        (HttpFailed(ERROR), {"event": "http.failed", "log_level": "error", "exc_info": ERROR}),
        (LeaderLost("lead", "us", 7, AT, "released"), {"event": "leader_lost", "log_level": "info"}),
        (LeaderLost("lead", "us", 7, AT, "failed", "broken"), {"event": "leader_lost", "log_level": "warning"}),
        (SessionClosed("one", "EVICTED", AT), {"event": "session.evicted", "log_level": "info", "state": "closed"}),
        (PayloadWithheld("usage", "one", "broken"), {"event": "usage.withheld", "log_level": "error"}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else None,
)
def test_log_line_has_name_level_and_fields_of_event(event: object, line: dict[str, object]) -> None:
    telemetry = log_events(Telemetry())
    with capture_logs() as logs:
        telemetry.report(event)  # type: ignore[arg-type]
    (logged,) = logs
    assert line.items() <= logged.items()


def test_fields_without_value_are_left_out_of_log_line() -> None:
    telemetry = log_events(Telemetry())
    with capture_logs() as logs:
        telemetry.report(UsageEmitted(2, AT, sent=False))
    assert "lag_seconds" not in logs[0]


@pytest.mark.parametrize("event", [LeaseContended("lead"), SessionClosed("one", "STOPPED", AT)])
def test_event_without_level_is_not_logged(event: object) -> None:
    telemetry = log_events(Telemetry())
    with capture_logs() as logs:
        telemetry.report(event)  # type: ignore[arg-type]
    assert logs == []


def test_counters_follow_events() -> None:
    telemetry = Telemetry()
    counters = Counters(telemetry)
    session = lived(NOON, NOON, closed=False)
    for outcome in (OpenOutcome.CREATED, OpenOutcome.UPGRADED, OpenOutcome.EXISTING, OpenOutcome.EXISTING):
        telemetry.report(SessionOpened(outcome, session))
    telemetry.report(SessionClosed("one", "EVICTED", AT))
    telemetry.report(StreamReceived(320, 10))
    for kind in (None, "partials_sent", "errors_sent"):
        telemetry.report(StreamSent(kind))
    opened = {outcome: count for (outcome, _), count in counters.opened.items()}
    assert opened == {OpenOutcome.CREATED: 1, OpenOutcome.UPGRADED: 1, OpenOutcome.EXISTING: 2}
    assert counters.closed == {"UPGRADED": 1, "EVICTED": 1}
    streamed = StreamCounters(*(counters.streamed[name] for name in StreamCounters.__struct_fields__))
    assert streamed == StreamCounters(320, 1, 3, 1, 0, 1, 10)


def test_only_telemetry_writes_logs() -> None:
    """Except the receiver, which is a separate program."""
    found = [
        str(path)
        for path, tree in syntax_trees().items()
        if path.parts[0] not in ("telemetry", "receiver")
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name in ("structlog", "logging") for name in _modules(node))
    ]
    assert found == []


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def test_every_event_is_reported_by_some_module() -> None:
    used = {
        node.id
        for path, tree in syntax_trees().items()
        if path.name not in ("events.py", "counters.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
    }
    assert sorted(kind.__name__ for kind in all_events() if kind.__name__ not in used) == []
