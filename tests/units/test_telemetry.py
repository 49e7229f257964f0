"""Telemetry: code reports events, and only the subscribers in `telemetry/` write logs and update counters."""

import ast
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tenure.domain.deadlines import closed_session_of
from tenure.domain.jobs import RunOutcome
from tenure.domain.sessions import OpenOutcome, StreamCounters
from tenure.telemetry.counters import Counters
from tenure.telemetry.events import (
    HttpFailed,
    InstanceDraining,
    JobClockBehind,
    JobFailed,
    JobFinished,
    JobPostponed,
    JobStarted,
    LeaderLost,
    LeaseContended,
    PayloadWithheld,
    RequestAnswered,
    SessionClosed,
    SessionOpened,
    StoreUnavailable,
    StreamReceived,
    StreamSent,
    Telemetry,
    UsageEmitted,
    all_events,
)
from tenure.telemetry.logs import log_events
from tenure.telemetry.siblings import Siblings
from tests.support.open_requests import NOON
from tests.support.source import syntax_trees
from tests.support.usage import session_between

ROOT = Path(__file__).parents[2]
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ERROR = ValueError("broken")
WHOSE = ("user", "tenant", "capacity")


def test_event_reaches_subscribers_of_its_type_in_order() -> None:
    telemetry, seen = Telemetry(), []
    telemetry.subscribe(LeaseContended, lambda event: seen.append(("first", event.lease)))
    telemetry.subscribe(LeaseContended, lambda event: seen.append(("second", event.lease)))
    telemetry.subscribe(InstanceDraining, lambda event: seen.append(("other", event.reason)))
    telemetry.report(LeaseContended("lead"))
    assert seen == [("first", "lead"), ("second", "lead")]


def test_every_logged_event_is_in_a_test() -> None:
    """Each logged event occurs in some file of the tests, by its class or its name. `test_documents.py` checks that
    each logged event is documented.
    """
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "clients").rglob("test_*.py")]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in files)
    logged = [kind for kind in all_events() if kind.level is not None]
    assert [kind.name for kind in logged if kind.__name__ not in texts and f'{kind.name}"' not in texts] == []


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
        (
            UsageEmitted(2, 3, AT, sent=False),
            {"event": "usage.emitted", "log_level": "info", "windows": 2, "chunks": 3, "sent": False},
        ),
        (
            JobFailed("prune", 7, "broken", ERROR, 1.5, {"sessions": 2}),
            {"event": "job.failed", "log_level": "warning", "error": "broken", "exc_info": ERROR, "seconds": 1.5},
        ),
        (
            JobFinished("prune", 7, RunOutcome.SUCCEEDED, 1.5, {"sessions": 2}),
            {"event": "job.finished", "log_level": "info", "seconds": 1.5, "counts": {"sessions": 2}},
        ),
        (HttpFailed(ERROR), {"event": "http.failed", "log_level": "error", "exc_info": ERROR}),
        (LeaderLost("lead", "us", 7, AT, "released"), {"event": "leader_lost", "log_level": "info"}),
        (LeaderLost("lead", "us", 7, AT, "resigned"), {"event": "leader_lost", "log_level": "info"}),
        (LeaderLost("lead", "us", 7, AT, "failed", "broken"), {"event": "leader_lost", "log_level": "warning"}),
        (LeaderLost("lead", "us", 7, AT, "lost"), {"event": "leader_lost", "log_level": "warning"}),
        (LeaderLost("lead", "us", 7, AT, "expired"), {"event": "leader_lost", "log_level": "warning"}),
        (LeaderLost("lead", "us", 7, AT, "database"), {"event": "leader_lost", "log_level": "warning"}),
        (
            SessionClosed("one", "EVICTED", AT, *WHOSE),
            {
                "event": "session.evicted",
                "log_level": "info",
                "user": "user",
                "tenant": "tenant",
                "capacity": "capacity",
            },
        ),
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
        telemetry.report(UsageEmitted(2, 3, AT, sent=False))
    assert "lag_seconds" not in logs[0]


@pytest.mark.parametrize(
    "event",
    [
        LeaseContended("lead"),
        SessionClosed("one", "STOPPED", AT, *WHOSE),
        JobFinished("prune", 7, RunOutcome.SUCCEEDED, 1.5, {}),
        JobFinished("prune", 7, RunOutcome.FAILED, 1.5, {"sessions": 2}),
    ],
)
def test_event_is_not_logged_with_default_settings(event: object) -> None:
    telemetry = log_events(Telemetry())
    with capture_logs() as logs:
        telemetry.report(event)  # type: ignore[arg-type]
    assert logs == []


def lines(telemetry: Telemetry, *events: object) -> list[tuple[str, str]]:
    with capture_logs() as logs:
        for event in events:
            telemetry.report(event)  # type: ignore[arg-type]
    return [(line["event"], line["log_level"]) for line in logs]


def test_events_below_the_level_are_not_logged() -> None:
    events = (
        JobStarted("prune", 7),
        JobFinished("prune", 7, RunOutcome.SUCCEEDED, 1.5, {}),
        InstanceDraining("SIGTERM"),
        LeaderLost("lead", "us", 7, AT, "expired"),
        HttpFailed(ERROR),
    )
    expected = [
        ("job.started", "debug"),
        ("job.finished", "debug"),
        ("instance.draining", "info"),
        ("leader_lost", "warning"),
        ("http.failed", "error"),
    ]
    for first, level in ((0, "debug"), (2, "info"), (3, "warning"), (4, "error")):
        assert lines(log_events(Telemetry(), level), *events) == expected[first:]  # type: ignore[arg-type]


def test_session_events_have_their_own_log_level() -> None:
    session = session_between(NOON, NOON, closed=False)
    events = (
        SessionOpened(OpenOutcome.CREATED, session),
        SessionOpened(OpenOutcome.EXISTING, session),
        SessionOpened(OpenOutcome.UPGRADED, session),
        SessionClosed("one", "STOPPED", AT, *WHOSE),
        SessionClosed("one", "LEASE_EXPIRED", AT, *WHOSE),
    )
    lapse = [("session.lease_expired", "info")]
    requested = ["session.opened", "session.upgraded", "session.closed"]
    for level, sessions, expected in (
        ("info", "off", []),
        ("debug", "off", []),
        ("info", "debug", lapse),
        ("debug", "debug", [(name, "debug") for name in requested] + lapse),
        ("info", "info", [(name, "info") for name in requested] + lapse),
        ("warning", "info", []),
    ):
        assert lines(log_events(Telemetry(), level, sessions), *events) == expected, (level, sessions)  # type: ignore[arg-type]


def test_line_of_session_shows_its_user_and_why_it_ended() -> None:
    session = session_between(NOON, NOON, closed=True)
    telemetry = log_events(Telemetry(), "info", "info")
    with capture_logs() as logs:
        telemetry.report(SessionOpened(OpenOutcome.CREATED, session))
        telemetry.report(SessionClosed.of(closed_session_of(session)))
    whose = {"user": session.user_object_id, "tenant": session.tenant_object_id, "capacity": session.capacity_id}
    for line in logs:
        assert {"session_id": session.session_id, **whose}.items() <= line.items()
    assert logs[1]["reason"] == session.close_reason


def test_access_log_has_one_line_per_request_if_it_is_on() -> None:
    event = RequestAnswered("GET /sessions", 200, 0.0123456, "GET", "req-1", "anonymous")
    assert lines(log_events(Telemetry()), event) == []
    with capture_logs() as logs:
        log_events(Telemetry(), access=True).report(event)
    (line,) = logs
    assert line == {
        "event": "http.request",
        "log_level": "info",
        "method": "GET",
        "route": "GET /sessions",
        "status": 200,
        "seconds": 0.012346,
        "request_id": "req-1",
        "subject": "anonymous",
    }


LIBRARY_LOG = """
import logging
from tenure.telemetry.logs import configure_logs
configure_logs({level!r})
logging.getLogger("asyncpg.pool").info("hidden")
logging.getLogger("asyncpg.pool").warning("the connection %s is lost", 7)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("uvicorn.error").exception("broken")
"""


def test_library_log_lines_have_the_format_of_event_log_lines() -> None:
    shown = {}
    for level in ("debug", "error"):
        script = LIBRARY_LOG.format(level=level)
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        shown[level] = [json.loads(line) for line in result.stderr.splitlines()]
    warning, error = shown["debug"]
    assert (warning["event"], warning["level"], warning["logger"]) == (
        "the connection 7 is lost",
        "warning",
        "asyncpg.pool",
    )
    assert (error["event"], error["level"], error["logger"]) == ("broken", "error", "uvicorn.error")
    assert error["exception"][0]["exc_type"] == "ZeroDivisionError"
    assert [line["event"] for line in shown["error"]] == ["broken"]


UNWRITABLE_LOG = """
import sys
from tenure.telemetry.events import InstanceReady, Telemetry
from tenure.telemetry.logs import configure_logs, log_events
configure_logs()
telemetry = log_events(Telemetry())
telemetry.report(InstanceReady())
sys.stderr.close()
telemetry.report(InstanceReady())
print("continues")
"""


def test_log_that_cannot_be_written_does_not_stop_the_service() -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", UNWRITABLE_LOG], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert result.stdout == b"continues\n"


async def test_counters_count_reported_events() -> None:
    telemetry = Telemetry()
    counters = Counters(telemetry, Siblings())
    session = session_between(NOON, NOON, closed=False)
    for outcome in (OpenOutcome.CREATED, OpenOutcome.UPGRADED, OpenOutcome.EXISTING, OpenOutcome.EXISTING):
        telemetry.report(SessionOpened(outcome, session))
    telemetry.report(SessionClosed("one", "EVICTED", AT, *WHOSE))
    telemetry.report(StreamReceived(320, 10))
    for kind in (None, "partials_sent", "errors_sent"):
        telemetry.report(StreamSent(kind))
    totals = (await counters.of_group()).totals
    opened = {outcome: count for (outcome, _), count in totals.opened.items()}
    assert opened == {OpenOutcome.CREATED: 1, OpenOutcome.UPGRADED: 1, OpenOutcome.EXISTING: 2}
    assert totals.closed == {"UPGRADED": 1, "EVICTED": 1}
    streamed = StreamCounters(*(totals.streamed[name] for name in StreamCounters.__struct_fields__))
    assert streamed == StreamCounters(320, 1, 3, 1, 0, 1, 10)


def test_only_telemetry_writes_logs() -> None:
    """The receiver is an exception, because it is a separate program."""
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


def test_repeating_event_is_logged_once_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next line has the number of suppressed events. The limit applies separately to events that differ in their
    subject or cause.
    """
    now = 100.0
    monkeypatch.setattr("tenure.telemetry.logs.monotonic", lambda: now)
    telemetry = log_events(Telemetry())
    with capture_logs() as logs:
        for error in ("first", "second", "third"):
            telemetry.report(StoreUnavailable("disk_full", error))
        telemetry.report(StoreUnavailable("read_only", "other cause"))
        telemetry.report(JobPostponed("prune", "refused"))
        telemetry.report(JobPostponed("emit-usage", "other job"))
        telemetry.report(JobPostponed("prune", "refused"))
        now += 1.0
        telemetry.report(StoreUnavailable("disk_full", "fourth"))
    shown = [(line.get("error"), line.get("suppressed")) for line in logs]
    assert shown == [("first", None), ("other cause", None), ("refused", None), ("other job", None), ("fourth", 2)]


def test_ends_of_sessions_are_logged_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.telemetry.logs.monotonic", lambda: 100.0)
    telemetry = log_events(Telemetry())
    with capture_logs() as logs:
        for session_id in ("one", "two", "three"):
            telemetry.report(SessionClosed(session_id, "EXPIRED", AT, *WHOSE))
    assert [line["session_id"] for line in logs] == ["one", "two", "three"]
