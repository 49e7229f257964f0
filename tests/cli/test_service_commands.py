"""Commands that call a service. Most tests of this module share one real instance per engine."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Result, Tenure
from tests.cli.terminals import Terminal, on_terminal
from tests.support.certificates import certificate_files
from tests.support.databases import PostgresServer
from tests.support.instances import RunningInstance, kill_all

PARKED = '{"parked": {"url": "http://127.0.0.1:9/", "schedule": [3600], "max_attempts": 1000}}'
"""A gateway that is unreachable. A failed attempt is retried only after an hour, so its submissions stay pending."""
TENANT = "0190b0a0-0000-7000-8000-0000000000a1"


def running(database: str, folder: Path) -> Iterator[str]:
    instance = RunningInstance(database, folder, TENURE_GATEWAYS=PARKED)
    try:
        yield instance.wait_until_ready().address
    finally:
        kill_all([instance])


@pytest.fixture(scope="module")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sqlite")
    yield from running(f"sqlite:///{folder / 'tenure.db'}", folder)


@pytest.fixture(scope="module")
async def postgresql_database(postgres: PostgresServer, template: str) -> str:
    return postgres.url(await postgres.create_database(template))


@pytest.fixture(scope="module")
def postgresql_url(postgresql_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from running(postgresql_database, tmp_path_factory.mktemp("postgresql"))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    address: str = request.getfixturevalue(f"{request.param}_url")
    monkeypatch.setenv("TENURE_URL", address)
    return address


@pytest.fixture
def any_url(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of one instance, for tests that do not depend on the engine."""
    monkeypatch.setenv("TENURE_URL", sqlite_url)
    return sqlite_url


@pytest.fixture
def capacity() -> str:
    return str(uuid.uuid4())


def opened(tenure: Tenure, capacity: str, *flags: str, user: str | None = None) -> str:
    """Opens a session and returns its id."""
    who = ("--user", user or str(uuid.uuid4()), "--tenant", TENANT, "--capacity", capacity)
    return str(ok_json(tenure, "sessions", "open", *who, *flags)["sessionId"])


def ok(tenure: Tenure, *arguments: str) -> Result:
    result = tenure(*arguments)
    assert result.code == 0, result
    return result


def ok_json(tenure: Tenure, *arguments: str) -> Any:
    return json.loads(ok(tenure, *arguments, "--json").out)


def rows(text: str) -> list[list[str]]:
    """The words of each line of a table."""
    return [line.split() for line in text.splitlines()]


# Sessions and capacities.


@pytest.mark.usefixtures("url")
def test_sessions_are_opened_listed_shown_and_ended(tenure: Tenure, capacity: str) -> None:
    user = str(uuid.uuid4())
    first = opened(tenure, capacity, "--kind", "2", "--lease", "600", user=user)
    again = tenure("sessions", "open", "--user", user, "--tenant", TENANT, "--capacity", capacity, "--kind", "2")
    assert (again.code, again.err) == (0, "already open\n")
    second = opened(tenure, capacity)
    listed = ok(tenure, "sessions", "list", "--capacity", capacity).out
    assert [line[:2] for line in rows(listed)[1:]] == [[second, "created"], [first, "created"]]
    assert "standard" in listed
    shown = ok(tenure, "sessions", "show", first).out
    assert f"user            {user}\n" in shown
    assert "heartbeat       every 50 s\n" in shown
    ended = ok(tenure, "sessions", "end", first, second, "--yes")
    assert ended.out == f"{first} ended: TERMINATED\n{second} ended: TERMINATED\n"
    assert ok(tenure, "sessions", "end", first, "--yes").out == f"{first} had already ended: TERMINATED\n"
    assert tenure("sessions", "list", "--capacity", capacity) == Result(0, "", "no sessions match\n")
    reasons = ok_json(tenure, "sessions", "list", "--ended", "--capacity", capacity)["sessions"]
    assert [session["closeReason"] for session in reasons] == ["TERMINATED", "TERMINATED"]
    assert "reason          TERMINATED\n" in ok(tenure, "sessions", "show", first).out


@pytest.mark.usefixtures("url")
def test_end_of_matching_sessions_asks_for_confirmation_with_their_count(tenure: Tenure, capacity: str) -> None:
    kept = opened(tenure, capacity, "--kind", "3")
    ended = [opened(tenure, capacity, "--kind", "2") for _ in range(3)]
    command = ("sessions", "end", "--capacity", capacity, "--kind", "2")
    asked = tenure(*command)
    assert (asked.code, asked.out) == (2, "")
    assert asked.err.startswith("tenure: End 3 live sessions? Their users lose them at once. ")
    assert tenure(*command, "--yes") == Result(0, "ended 3\n", "")
    assert tenure(*command, "--yes") == Result(0, "", "no live session matches\n")
    assert ok_json(tenure, *command, "--yes")["totalEnded"] == 0
    assert [line[0] for line in rows(ok(tenure, "sessions", "list", "--capacity", capacity).out)[1:]] == [kept]
    reasons = {ok_json(tenure, "sessions", "show", session)["closeReason"] for session in ended}
    assert reasons == {"TERMINATED"}
    (entry,) = [each for each in ok_json(tenure, "audit-log")["entries"] if capacity in (each["detail"] or "")]
    assert (entry["action"], entry["changes"]) == ("session.ended", 3)
    for flags in ((), (kept, "--kind", "3"), ("--all", "--kind", "3")):
        assert tenure("sessions", "end", *flags, "--yes").code == 2, flags


@pytest.mark.usefixtures("url")
def test_open_on_full_capacity_prints_one_line(tenure: Tenure, capacity: str) -> None:
    ok(tenure, "capacities", "set", capacity, "--seats", "1")
    opened(tenure, capacity)
    who = ("--user", str(uuid.uuid4()), "--tenant", TENANT, "--capacity", capacity)
    for flags in ((), ("--hold",)):
        refused = tenure("sessions", "open", *who, *flags)
        assert (refused.code, refused.out) == (1, "")
        hint = f"; see `tenure explain --capacity {capacity}`"
        assert refused.err.startswith(f"tenure: all seats of this capacity are taken{hint} (SESSION_LIMIT, request ")


@pytest.mark.usefixtures("url")
def test_capacity_keeps_settings_whose_flags_are_not_given(tenure: Tenure, capacity: str) -> None:
    ok(tenure, "capacities", "set", capacity, "--seats", "3", "--tenant", TENANT)
    changed = ok_json(tenure, "capacities", "set", capacity, "--when-full", "evictOldest", "--yes")
    assert (changed["maxSessions"], changed["whenFull"], changed["tenantObjectId"]) == (3, "evictOldest", TENANT)
    changed = ok_json(tenure, "capacities", "set", capacity, "--seats", "none", "--tenant", "any")
    assert (changed["maxSessions"], changed["whenFull"], changed["tenantObjectId"]) == (None, "evictOldest", None)
    ok(tenure, "capacities", "set", capacity, "--seats", "2")
    session = opened(tenure, capacity)
    shown = ok(tenure, "capacities", "show", capacity).out
    assert "seats taken  1 of 2\n" in shown
    assert session in shown
    (line,) = [line for line in rows(ok(tenure, "capacities", "list", "--all").out) if line[0] == capacity]
    assert line[1:4] == ["1", "2", "1"]


@pytest.mark.usefixtures("any_url")
def test_flags_limit_and_all_decide_how_many_rows_are_listed(tenure: Tenure, capacity: str) -> None:
    ids = [opened(tenure, capacity) for _ in range(3)][::-1]
    two = tenure("sessions", "list", "--capacity", capacity, "--limit", "2")
    assert [line[0] for line in rows(two.out)[1:]] == ids[:2]
    assert two.err == "the first 2 of 3; more with --limit 20 or --all\n"
    page = ok_json(tenure, "sessions", "list", "--capacity", capacity, "--limit", "2")
    assert [session["sessionId"] for session in page["sessions"]] == ids[:2]
    assert (page["count"], page["nextCursor"] is None) == (2, False)
    everything = ok_json(tenure, "sessions", "list", "--capacity", capacity, "--all")
    assert [session["sessionId"] for session in everything["sessions"]] == ids
    assert (everything["count"], everything["nextCursor"]) == (3, None)
    for command in (("sessions", "list"), ("jobs", "runs", "prune"), ("events",)):
        assert tenure(*command, "--limit", "0") == Result(2, "", "tenure: limit: must be at least 1\n"), command


@pytest.mark.usefixtures("url")
def test_sessions_are_listed_by_deadline(tenure: Tenure, capacity: str) -> None:
    long, short = opened(tenure, capacity, "--lease", "600"), opened(tenure, capacity, "--lease", "300")
    never = opened(tenure, capacity)
    listed = ok(tenure, "sessions", "list", "--capacity", capacity, "--order", "lapse").out
    assert [line[0] for line in rows(listed)[1:]] == [short, long, never]
    shown = (
        ok(tenure, "capacities", "set", capacity, "--seats", "5").out + ok(tenure, "capacities", "show", capacity).out
    )
    assert shown.index(short) < shown.index(long) < shown.index(never)
    assert tenure("sessions", "list", "--order", "oldest").code == 2


# Jobs, leases and submissions.


@pytest.mark.usefixtures("url")
def test_jobs_are_paused_resumed_and_run(tenure: Tenure) -> None:
    assert ok(tenure, "jobs", "pause", "prune", "--yes").out == "prune is paused\n"
    assert [line[1] for line in rows(ok(tenure, "jobs", "list").out) if line[0] == "prune"] == ["paused"]
    assert ok(tenure, "jobs", "resume", "prune").out == "prune is resumed\n"
    assert ok(tenure, "jobs", "run", "prune").out == "prune runs now\n"
    deadline = time.monotonic() + 20
    while "succeeded" not in (shown := ok(tenure, "jobs", "runs", "prune").out) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert rows(shown)[0][:3] == ["started", "took", "outcome"]
    assert "succeeded" in shown
    missing = tenure("jobs", "run", "nothing")
    assert (missing.code, missing.out) == (4, "")


@pytest.mark.usefixtures("url")
def test_lease_is_resigned(tenure: Tenure) -> None:
    (before,) = [
        lease for lease in ok_json(tenure, "leases", "list")["leases"] if lease["name"] == "submission-executor"
    ]
    ended = ok(tenure, "leases", "resign", "submission-executor", "--yes").out
    assert ended == f"submission-executor of {before['holder']} (epoch {before['epoch']}) has ended\n"
    assert "submission-executor" in rows(ok(tenure, "leases", "list").out)[1][0]
    terms = ok_json(tenure, "leases", "history", "submission-executor")["terms"]
    assert ("resigned", before["epoch"]) in [(term["how"], term["epoch"]) for term in terms]
    assert "resigned" in ok(tenure, "leases", "history").out
    assert tenure("leases", "history", "--to", "2020-01-01") == Result(0, "", "no terms\n")
    assert tenure("leases", "history", "submission-executor", "--to", "2020-01-01").code == 2


def submitted(url: str) -> str:
    """Submits to the parked gateway and returns the id."""
    from tenure_client import Client  # noqa: PLC0415

    with Client(url) as client:
        return client.submissions.submit("parked", {"n": 1}).submission_id


def test_submissions_are_listed_shown_retried_and_cancelled(tenure: Tenure, url: str) -> None:
    one, other = submitted(url), submitted(url)
    listed = rows(ok(tenure, "submissions", "list", "--gateway", "parked").out)
    assert [line[:3] for line in listed[1:3]] == [[other, "parked", "pending"], [one, "parked", "pending"]]
    request_id = ok_json(tenure, "submissions", "show", one)["requestId"]
    assert listed[2][3] == request_id
    shown = ok(tenure, "submissions", "show", one).out
    assert shown.split()[:8] == ["submission", one, "gateway", "parked", "state", "pending", "request", request_id]
    assert ok(tenure, "submissions", "cancel", one, "--yes").out == f"{one} is cancelled\n"
    assert ok(tenure, "submissions", "retry", one).out == f"{one} is pending\n"
    assert tenure("submissions", "cancel", "--gateway", "parked", "--yes").err == "cancelled 2\n"
    assert ok_json(tenure, "submissions", "retry", "--state", "cancelled", "--yes")["count"] == 2
    assert rows(ok(tenure, "submissions", "counts").out)[:2] == [
        ["gateway", "pending", "failed", "delivered", "cancelled"],
        ["parked", "2", "0", "0", "0"],
    ]
    ok(tenure, "submissions", "cancel", "--all", "--yes")
    for flags in ((), (one, "--gateway", "parked")):
        refused = tenure("submissions", "retry", *flags)
        assert (refused.code, "give ids, or --gateway" in refused.err) == (2, True), flags


# The whole installation.


@pytest.mark.usefixtures("url")
def test_status_shows_every_part(tenure: Tenure, capacity: str) -> None:
    opened(tenure, capacity, "--kind", "3")
    shown = ok(tenure, "status").out
    parts = [
        "service",
        "you",
        "sessions",
        "per",
        "seats",
        "usage",
        "instances",
        "leaders",
        "jobs",
        "gateways",
        "alerts",
    ]
    assert [line.split()[0] for line in shown.splitlines()] == parts
    assert "premium" in shown
    assert "submission-executor" in shown
    status = ok_json(tenure, "status")
    assert status["ready"] is True
    assert status["sessions"]["activeSessions"] >= 1
    assert {"health", "caller", "jobs", "leases", "alerts", "instances", "activity"} <= set(status)


def test_status_shows_only_figures_that_the_key_may_read(tenure: Tenure, tmp_path: Path) -> None:
    database = ("--database", f"sqlite:///{tmp_path / 'tenure.db'}")
    keys = {
        "client": tenure("keys", "create", "--name", "a", "--role", "client", *database).out.strip(),
        "tenant": tenure(
            "keys", "create", "--name", "b", "--role", "reader", "--tenant", TENANT, *database
        ).out.strip(),
    }
    shown: dict[str, list[str]] = {}
    for address in running(database[1], tmp_path):
        for name, key in keys.items():
            for command in ("status", "top"):
                result = ok(tenure, command, "--url", address, "--key", key)
                shown[f"{command} {name}"] = [line.split()[0] for line in result.out.splitlines() if line]
                missing_right = {"client": "the role reader or operator", "tenant": "a key without a tenant"}[name]
                assert (missing_right in result.err) is (command == "status")
        denied = tenure("jobs", "list", "--url", address, "--key", keys["client"])
        assert (denied.code, "FORBIDDEN" in denied.err) == (6, True)
        missing = tenure("jobs", "list", "--url", address)
        assert (missing.code, "set TENURE_KEY" in missing.err) == (6, True)
    assert shown == {
        "status client": ["service", "you"],
        "top client": ["service", "you"],
        "status tenant": ["service", "you", "sessions"],
        "top tenant": ["service", "you", "sessions"],
    }


@pytest.mark.usefixtures("url")
def test_instances_are_listed(tenure: Tenure) -> None:
    (instance,) = ok_json(tenure, "instances")["instances"]
    (row,) = rows(ok(tenure, "instances").out)[1:]
    assert row[:2] == [instance["instance"], "alive"]


@pytest.mark.usefixtures("url")
def test_events_are_printed_once_and_continue_after_cursor(tenure: Tenure, capacity: str) -> None:
    start = cursor_of(tenure("events", "--limit", "1000"))
    session = opened(tenure, capacity)
    ok(tenure, "sessions", "end", session, "--yes")
    deadline = time.monotonic() + 10
    found: list[dict[str, Any]] = []
    while len(found) < 2 and time.monotonic() < deadline:
        found = [json.loads(line) for line in ok(tenure, "events", "--after", start, "--json").out.splitlines()]
    assert [(event["type"], event["sessionId"]) for event in found] == [
        ("session.opened", session),
        ("session.closed", session),
    ]
    (closed,) = rows(ok(tenure, "events", "--after", start, "--type", "closed").out)
    assert closed[1:3] + closed[-1:] == ["closed", session, "TERMINATED"]


def cursor_of(result: Result) -> str:
    return result.err.rpartition("--after ")[2].strip()


@pytest.mark.usefixtures("url")
def test_audit_log_shows_changes_of_a_target(tenure: Tenure, capacity: str) -> None:
    ok(tenure, "capacities", "set", capacity, "--seats", "7")
    (entry,) = ok_json(tenure, "audit-log", "--target", capacity)["entries"]
    assert (entry["action"], entry["changes"]) == ("capacity.changed", 1)
    assert "maxSessions=7" in ok(tenure, "audit-log", "--target", capacity).out
    assert tenure("audit-log", "--to", "2020-01-01") == Result(0, "", "no entries\n")


@pytest.mark.usefixtures("url")
def test_alerts_are_listed(tenure: Tenure) -> None:
    assert ok_json(tenure, "alerts")["count"] == len(ok_json(tenure, "alerts")["alerts"])
    assert tenure("alerts", "--name", "clock-behind") == Result(0, "", "no active alerts\n")


# Behaviour that all commands share.


@pytest.mark.usefixtures("any_url")
def test_destructive_commands_need_yes_without_a_terminal(tenure: Tenure, capacity: str) -> None:
    session = opened(tenure, capacity)
    for command in (
        ("sessions", "end", session),
        ("sessions", "end", "--all"),
        ("jobs", "pause", "prune"),
        ("leases", "resign", "submission-executor"),
        ("submissions", "cancel", "--all"),
        ("submissions", "retry", "--all"),
        ("capacities", "set", capacity, "--when-full", "evictOldest"),
    ):
        refused = tenure(*command)
        assert (refused.code, refused.out) == (2, ""), command
        assert "repeat the command with --yes" in refused.err, command
    assert "created" in ok(tenure, "sessions", "show", session).out


def test_destructive_command_asks_on_a_terminal(tenure: Tenure, any_url: str, capacity: str) -> None:
    session = opened(tenure, capacity)
    for answer, code, text in (
        ("n", 1, "nothing was done"),
        ("", 1, "nothing was done"),
        ("y", 0, "ended: TERMINATED"),
    ):
        with Terminal("sessions", "end", session, TENURE_URL=any_url) as terminal:
            terminal.read_until(f"End session {session}? [y/N] ")
            terminal.type(f"{answer}\n")
            assert (terminal.end(), text in terminal.shown) == (code, True), terminal.shown


def test_ctrl_c_at_the_question_cancels_the_command(tenure: Tenure, any_url: str, capacity: str) -> None:
    session = opened(tenure, capacity)
    with Terminal("sessions", "end", session, TENURE_URL=any_url) as terminal:
        terminal.read_until("[y/N] ")
        terminal.process.send_signal(signal.SIGINT)
        assert (terminal.end(), "Traceback" in terminal.shown) == (130, False)
    assert ok_json(tenure, "sessions", "show", session)["isActive"]


def test_tables_fit_the_terminal_and_are_coloured_there_only(tenure: Tenure, any_url: str, capacity: str) -> None:
    session = opened(tenure, capacity, "--lease", "600")
    wide = ok(tenure, "sessions", "list", "--capacity", capacity).out
    assert capacity in wide
    assert "\x1b" not in wide
    command = ("sessions", "list", "--capacity", capacity)
    code, shown = on_terminal(*command, columns=80, TENURE_URL=any_url, NO_COLOR="1")
    assert (code, session in shown, " min" in shown, "\x1b" in shown) == (0, True, True, False), shown
    assert max(map(len, shown.splitlines())) <= 80
    _, coloured = on_terminal(*command, columns=80, TENURE_URL=any_url, NO_COLOR="")
    assert "\x1b[36mcreated\x1b[0m" in coloured
    ok(tenure, "sessions", "end", session, "--yes")
    _, ended = on_terminal(*command, "--ended", columns=95, TENURE_URL=any_url, NO_COLOR="1")
    assert (session in ended, "TERMINATED" in ended, "started" in ended) == (True, True, False), ended


def test_json_is_indented_on_a_terminal(any_url: str) -> None:
    code, shown = on_terminal("jobs", "list", "--json", TENURE_URL=any_url)
    assert code == 0
    assert shown.startswith('{\n  "jobs": [\n    {\n      "name": ')
    assert json.loads(shown)["count"] >= 4


def process(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tenure", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        **more,
    )


@pytest.mark.usefixtures("any_url")
def test_events_follow_prints_lines_of_json_until_ctrl_c(tenure: Tenure, capacity: str) -> None:
    followed = process("events", "--follow", "--json", "--after", cursor_of(tenure("events", "--limit", "1000")))
    try:
        session = opened(tenure, capacity)
        assert followed.stdout is not None
        line = json.loads(followed.stdout.readline())
        while line["sessionId"] != session:
            line = json.loads(followed.stdout.readline())
        assert line["type"] == "session.opened"
        followed.send_signal(signal.SIGINT)
        _, errors = followed.communicate(timeout=20)
    finally:
        followed.kill()
    assert followed.returncode == 130
    assert "Traceback" not in errors
    assert "continue with --after " in errors


@pytest.mark.usefixtures("any_url")
def test_sessions_open_hold_lasts_until_ctrl_c_or_end_of_session(tenure: Tenure, capacity: str) -> None:
    command = ("sessions", "open", "--tenant", TENANT, "--capacity", capacity, "--lease", "5", "--hold", "--json")
    held, other = (process(*command, "--user", str(uuid.uuid4())) for _ in range(2))
    try:
        session, ended = (json.loads(each.stdout.readline())["sessionId"] for each in (held, other) if each.stdout)
        ok(tenure, "sessions", "end", ended, "--yes")
        _, errors = other.communicate(timeout=20)
        assert (other.returncode, f"tenure: session {ended} is lost: TERMINATED" in errors) == (1, True), errors
        held.send_signal(signal.SIGINT)
        _, errors = held.communicate(timeout=20)
        assert (held.returncode, errors) == (130, "held; ctrl-C ends it\n")
        assert not ok_json(tenure, "sessions", "show", session)["isActive"]
    finally:
        held.kill()
        other.kill()


@pytest.mark.usefixtures("any_url")
def test_closed_pipe_causes_no_traceback(tenure: Tenure, capacity: str) -> None:
    opened(tenure, capacity)
    listing = process("sessions", "list", "--all", "--json")
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.close()
    assert listing.wait(20) == 141
    assert listing.stderr.read() == ""
    listing.stderr.close()


@pytest.mark.usefixtures("any_url")
def test_printed_text_cannot_control_the_terminal(tenure: Tenure) -> None:
    missing = tenure("jobs", "run", "\x1b[31mred")
    assert (missing.code, "\x1b" in missing.err) == (4, False)


def test_certificates_are_verified(tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = certificate_files(tmp_path)
    files.write("one")
    instance = RunningInstance(f"sqlite:///{tmp_path / 'tenure.db'}", tmp_path, *files.flags)
    try:
        address = instance.wait_until_ready().address
        refused = tenure("jobs", "list", "--url", address)
        assert (refused.code, refused.out, refused.err.count("\n")) == (5, "", 1)
        assert "CERTIFICATE_VERIFY_FAILED" in refused.err
        monkeypatch.setenv("SSL_CERT_FILE", str(files.certificate))
        assert "expire-sessions" in ok(tenure, "jobs", "list", "--url", address).out
    finally:
        kill_all([instance])


def test_mistyped_commands_and_flags_get_suggestions(tenure: Tenure) -> None:
    for arguments, suggestion in (
        (("sesions", "list"), "Did you mean 'sessions'"),
        (("sessions", "lst"), "Did you mean 'list'"),
        (("sessions", "list", "--tennant", "x"), "--tenant"),
        (("--context", "prod", "status"), "Write --context after the command"),
    ):
        result = tenure(*arguments)
        assert (result.code, suggestion in result.err) == (2, True), result
