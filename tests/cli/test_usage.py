"""`tenure usage` against a running instance and against servers that are not Tenure, and `tenure usage send`."""

import asyncio
import csv
import re
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from decimal import Decimal
from itertools import product
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from tenure.cli.output import time_cell
from tenure.cli.service import PAGE
from tenure.cli.usage import _window_delivered_cell
from tenure_client.models import UsageWindow
from tests.cli.conftest import Result, Tenure
from tests.support.audit_log import entries
from tests.support.databases import Database, sqlite_store
from tests.support.instances import RunningInstance, kill_all
from tests.support.open_requests import NOON
from tests.support.usage import CONTRACT, chunk_all, cut, insert_sessions, install, minute, session_between

TENANTS = ["0190b0a0-0000-7000-8000-0000000000a1", "0190b0a0-0000-7000-8000-0000000000a2"]
CAPACITY = "0190b0a0-0000-7000-8000-0000000000c1"
MANY = PAGE + 3
"""More sessions than fit on a page."""
SPAN = ("--from", "2041-03-01T13:00:00+01:00", "--to", "2041-03-01T12:02:00Z")


@pytest.fixture(scope="module")
async def address(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of an instance with two windows. The first was cut with a gateway and contains all sessions, the
    second was cut without a gateway.
    """
    folder = tmp_path_factory.mktemp("usage")
    path = folder / "tenure.db"
    shutil.copyfile(sqlite_template, path)
    database = Database(f"sqlite:///{path}", *sqlite_store(path))
    await database.clock.set(NOON)
    await install(database, NOON)
    of_one = [session_between(minute(0, 10), minute(0, 20), tenant_object_id=TENANTS[0]) for _ in range(MANY - 1)]
    of_other = session_between(minute(0, 30), minute(1, 50), tenant_object_id=TENANTS[1], capacity_id=CAPACITY, kind=3)
    await insert_sessions(database, [*of_one, of_other])
    await cut(database, minute(1), contract=CONTRACT)
    await cut(database, minute(2), factors=(1_000_000, 2_500_000, 3_000_000))
    await chunk_all(database)
    await database.close()
    instance = RunningInstance(database.url, folder, TENURE_JOBS__EMIT_USAGE__PAUSED="true")
    try:
        yield instance.wait_until_ready().address
    finally:
        kill_all([instance])


def api(address: str, path: str) -> str:
    """The body of a response of the service."""
    with urlopen(f"{address}{path}") as answer:
        return str(answer.read().decode())


# Output.


def test_usage_prints_total_and_span(tenure: Tenure, address: str) -> None:
    assert tenure("usage", "--url", address, *SPAN) == Result(
        0,
        f"   usage  sessions\n0.002101       {MANY}\n",
        "from 2041-03-01T12:00:00Z to 2041-03-01T12:02:00Z, final until 2041-03-01T12:02:00Z\n",
    )


def test_default_span_is_thirty_days_before_end(tenure: Tenure, address: str) -> None:
    assert tenure("usage", "--url", address).err.startswith("from 2041-01-30T12:02:00Z to 2041-03-01T12:02:00Z,")


def test_groups_are_printed_as_table_with_the_largest_first(tenure: Tenure, address: str) -> None:
    result = tenure("usage", "--url", address, *SPAN, "--group-by", "tenant")
    assert result.out.splitlines() == [
        "tenant                                   usage  sessions",
        f"{TENANTS[0]}  0.002008       {MANY - 1}",
        f"{TENANTS[1]}  0.000093         1",
    ]
    assert result.err.startswith("0.002101 in 2 groups, from ")


def test_csv_has_exact_amounts_of_all_pages(tenure: Tenure, address: str) -> None:
    result = tenure("usage", "--url", address, *SPAN, "--group-by", "session", "--csv")
    head, *rows = list(csv.reader(result.out.splitlines()))
    assert (head, len(rows)) == (["sessionId", "usage", "sessions"], MANY)
    assert sum(Decimal(row[1]) for row in rows) == Decimal("0.002101")
    windows = list(csv.reader(tenure("usage", "--url", address, "--windows", "--csv").out.splitlines()))
    assert windows[0] == ["windowId", "startAt", "endAt", "sessions", "usage", "deliveredAt"]
    assert windows[2][:4] == ["1", "2041-03-01T12:00:00.123456Z", "2041-03-01T12:01:00.000000Z", str(MANY)]


def test_filter_is_sent_to_service(tenure: Tenure, address: str) -> None:
    for flags in (
        ["--tenant", TENANTS[1]],
        ["--capacity", CAPACITY],
        ["--tenant", TENANTS[1], "--capacity", CAPACITY],
        ["--from", "2041-03-01T12:01:00Z"],
    ):
        table = tenure("usage", "--url", address, "--group-by", "tenant", *flags).out
        assert (TENANTS[0] in table, TENANTS[1] in table) == (False, True), flags
    nothing = tenure("usage", "--url", address, "--group-by", "kind", "--user", CAPACITY)
    assert (nothing.out, nothing.err.splitlines()[0]) == ("", "no usage")


def test_json_output_equals_service_response(tenure: Tenure, address: str) -> None:
    """In the JSON, usage is a number with all its digits."""
    result = tenure("usage", "--url", address, *SPAN, "--group-by", "tenant", "--json")
    query = "from=2041-03-01T12:00:00Z&to=2041-03-01T12:02:00Z&groupBy=tenant"
    assert result == Result(0, api(address, f"/usage?{query}") + "\n", "")


def test_json_output_of_windows_equals_service_response(tenure: Tenure, address: str) -> None:
    for flags, path in ((["--windows"], "/usage/windows"), (["--window", "1"], "/usage/windows/1")):
        assert tenure("usage", "--url", address, *flags, "--json") == Result(0, api(address, path) + "\n", "")


def test_json_output_contains_all_pages(tenure: Tenure, address: str) -> None:
    result = tenure("usage", "--url", address, *SPAN, "--group-by", "session", "--json")
    usage = msgspec.json.Decoder(float_hook=Decimal).decode(result.out)
    keys = [group["sessionId"] for group in usage["groups"]]
    assert (len(keys), keys, usage["count"], usage["nextCursor"]) == (MANY, sorted(set(keys)), MANY, None)
    assert sum(group["usage"] for group in usage["groups"]) == Decimal("0.002101")


def test_windows_are_printed_as_table(tenure: Tenure, address: str) -> None:
    head, newest, oldest = tenure("usage", "--url", address, "--windows").out.splitlines()
    assert head.split() == ["window", "start", "end", "factors", "sessions", "usage", "delivered"]
    assert newest.split()[0] == "2"
    assert re.match(
        r" +1  2041-03-01T12:00:00Z \(in \d+ days\)  2041-03-01T12:01:00Z \(in \d+ days\)  1:1 2:2 3:3 ", oldest
    )
    assert oldest.split()[-3:] == [str(MANY), "0.002043", "no"]


def test_window_without_sessions_has_nothing_to_send() -> None:
    empty = UsageWindow(
        window_id=1,
        start_at=NOON,
        end_at=minute(1),
        factors={},
        sessions=0,
        usage=Decimal(0),
        delivered_at=minute(2),
        delivery="nothing",
    )
    delivered = msgspec.structs.replace(empty, sessions=1, delivery="delivered")
    assert [_window_delivered_cell(window, minute(3)).text for window in (empty, delivered)] == [
        "nothing to send",
        time_cell(minute(2), minute(3)).text,
    ]


def test_windows_with_span_filter_or_groups_are_rejected(tenure: Tenure) -> None:
    error = "tenure: windows: cannot be combined with a span, a filter or --group-by\n"
    others = (["--from", "2041-03-01"], ["--tenant", CAPACITY], ["--group-by", "kind"])
    for windows, flags in product((["--windows"], ["--window", "1"]), others):
        assert tenure("usage", *windows, *flags) == Result(2, "", error), (windows, flags)


def test_date_without_time_is_midnight_utc(tenure: Tenure, address: str) -> None:
    result = tenure("usage", "--url", address, "--from", "2041-03-01", "--to", "2041-03-01T12:02:00+00:00")
    assert result.err.startswith("from 2041-03-01T00:00:00Z to 2041-03-01T12:02:00Z,")


def test_window_is_printed_with_its_chunks(tenure: Tenure, address: str) -> None:
    (chunk,) = msgspec.json.decode(api(address, "/usage/windows/1"))["chunks"]
    lines = tenure("usage", "--url", address, "--window", "1").out.splitlines()
    assert lines[:7] == [
        "window     1",
        "start      2041-03-01T12:00:00.123456Z",
        "end        2041-03-01T12:01:00.000000Z",
        "factors    1:1 2:2 3:3",
        f"sessions   {MANY}",
        "usage      0.002043",
        "delivered  no",
    ]
    assert lines[8].split() == ["chunk", "submission", "sessions", "usage", "delivered", "receipt", "digest"]
    assert lines[9].split() == ["1", chunk["submissionId"], str(MANY), "0.002043", "no", "no", "-"]


def test_version_and_slash_at_the_end_of_the_url_are_accepted(tenure: Tenure, address: str) -> None:
    windows = tenure("usage", "--url", address, "--windows", "--json")
    assert tenure("usage", "--url", f"{address}/v1/", "--windows", "--json") == windows


# Errors.


def test_service_error_is_printed_in_one_line_with_code_and_request_id(tenure: Tenure, address: str) -> None:
    for flags, code, error in (
        (["--window", "99"], 4, "window 99 does not exist (NOT_FOUND, request "),
        (["--window", "-1"], 4, "window -1 does not exist (NOT_FOUND, request "),
        (["--group-by", "day"], 1, "groupBy: must be tenant, capacity, user, kind, session (INVALID, request "),
        (["--tenant", "x"], 1, "tenant: must be a UUID (INVALID, request "),
        (["--from", "2041-03-01T12:02:00Z", "--to", "2041-03-01T12:01:00Z"], 1, "from: must be before to (INVALID, "),
    ):
        result = tenure("usage", "--url", address, *flags)
        assert (result.code, result.out, result.err.count("\n")) == (code, "", 1), flags
        assert result.err.startswith(f"tenure: {error}"), flags


def test_invalid_instant_exits_with_2(tenure: Tenure) -> None:
    rule = "must be an instant with an offset, such as 2026-01-02T03:04:05Z, or a day"
    for flag, value in product(("--from", "--to"), ("yesterday", "2041-03-01T12:00:00", "2041-02-30", "")):
        assert tenure("usage", flag, value) == Result(2, "", f"tenure: {flag[2:]}: {rule}\n"), (flag, value)


def test_wrong_prefix_prints_error(tenure: Tenure, address: str) -> None:
    result = tenure("usage", "--url", f"{address}/api/v3")
    assert result.err.startswith("tenure: no resource has this address (NOT_FOUND, request ")


def test_invalid_url_exits_with_2(tenure: Tenure) -> None:
    error = "tenure: url: must be a valid http:// or https:// URL, such as https://tenure.example/prefix\n"
    for url in (
        "127.0.0.1:8080",
        "ftp://127.0.0.1",
        "file:///etc/passwd",
        "",
        "http://[",
        "http://a b",
        "http://a:b",
        "http://user:secret@a",
    ):
        assert tenure("usage", "--url", url) == Result(2, "", error), url


def test_malformed_key_is_refused_and_not_printed(tenure: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Result(2, "", "tenure: key: must be an API key, as `tenure keys create` prints it, or a token\n")
    assert tenure("usage", "--url", "http://127.0.0.1:9", "--key", "tk_1") == refused
    monkeypatch.setenv("TENURE_KEY", "tk_1")
    assert tenure("usage", "--url", "http://127.0.0.1:9") == refused


def test_url_is_read_from_variable(tenure: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_URL", "http://127.0.0.1:9/from-variable")
    assert tenure("usage").err.startswith("tenure: http://127.0.0.1:9/from-variable cannot be reached: ")


def test_unreachable_service_prints_one_line_error(tenure: Tenure) -> None:
    result = tenure("usage", "--url", "http://127.0.0.1:9")
    assert (result.code, result.out, result.err.count("\n")) == (5, "", 1)
    assert result.err == (
        "tenure: http://127.0.0.1:9 cannot be reached: Connection refused; is it running (`tenure serve`)? "
        "Another address: --url or TENURE_URL\n"
    )


# Servers that are not Tenure.


class FakeServer:
    """Responds to every request with the same bytes, and records the requests."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with closing(connection):
                    self.requests.append(connection.recv(65_536))
                    connection.sendall(self._answer)


StartServer = Callable[[bytes], FakeServer]


@pytest.fixture
def fake_server() -> Iterator[StartServer]:
    made: list[FakeServer] = []

    def make(answer: bytes) -> FakeServer:
        made.append(FakeServer(answer))
        return made[-1]

    yield make
    for each in made:
        each.close()


def response(status: str, body: bytes = b"", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


NOT_TENURE = {
    "page": response("200 OK", b"<!doctype html>"),
    "other object": response("200 OK", b"{}"),
    "list": response("200 OK", b"[]"),
    "invalid UTF-8": response("200 OK", b'{"groups": "\xff"}'),
    "page of an error": response("404 Not Found", b"<h1>no\nsuch page</h1>"),
    "redirect": response("302 Found", b"", "Location: http://127.0.0.1:9/"),
}


def test_response_that_is_not_from_tenure_prints_one_line(tenure: Tenure, fake_server: StartServer) -> None:
    for kind, answer in NOT_TENURE.items():
        url = fake_server(answer).address
        for flags in ([], ["--windows"], ["--window", "1"]):
            result = tenure("usage", "--url", url, *flags)
            assert (result.code, result.out, result.err.count("\n")) == (1, "", 1), (kind, flags)
            assert result.err.startswith(f"tenure: {url} did not return a valid Tenure response: "), (kind, flags)


def test_broken_connection_and_failing_proxy_exit_with_5(tenure: Tenure, fake_server: StartServer) -> None:
    for answer, error in (
        (b"", "cannot be reached: "),
        (b"220 mail.example ESMTP\r\n", "cannot be reached: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "cannot be reached: "),
        (response("502 Bad Gateway", b"<h1>no</h1>"), "answered 502"),
    ):
        result = tenure("usage", "--url", fake_server(answer).address)
        assert (result.code, result.out, result.err.count("\n")) == (5, "", 1), answer
        assert error in result.err, answer


# Windows that were cut while no gateway was configured.


@pytest.fixture
async def unsent(database: Database) -> Database:
    """A database with two unsent windows, of which one is empty."""
    await install(database, NOON)
    await insert_sessions(database, [session_between(minute(0, 10), minute(0, 20))])
    for number in (1, 2):
        await cut(database, minute(number))
    await chunk_all(database)
    return database


@pytest.fixture
def with_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_GATEWAYS__USAGES__URL", "http://127.0.0.1:9/")


FROM_NOON = ("--from", NOON.isoformat())


@pytest.mark.usefixtures("with_gateway")
async def test_usage_send_submits_unsent_windows_once(tenure: Tenure, unsent: Database) -> None:
    command = ("usage", "send", *FROM_NOON, "--database", unsent.url)
    assert await asyncio.to_thread(tenure, *command, "--to", minute(1).isoformat()) == Result(
        0, "handed over windows: 1, chunks: 1\n", ""
    )
    as_json = await asyncio.to_thread(tenure, *command, "--json")
    assert as_json == Result(0, '{"windows":1,"chunks":0,"complete":true}\n', "")
    assert await asyncio.to_thread(tenure, *command) == Result(0, "handed over windows: 0, chunks: 0\n", "")
    audit = await asyncio.to_thread(tenure, "audit", "--database", unsent.url)
    assert (audit.code, audit.out.splitlines()[-1]) == (0, "no faults")


@pytest.mark.usefixtures("with_gateway")
async def test_usage_send_leaves_one_audit_entry(tenure: Tenure, unsent: Database) -> None:
    for _ in range(2):
        await asyncio.to_thread(tenure, "usage", "send", "--from", "2026-01-01", "--database", unsent.url)
    (entry,) = await entries(unsent.store)
    assert (entry.action, entry.target) == ("usage.windows_sent", "windows")
    assert entry.subject.startswith("cli:")
    assert entry.detail == "from 2026-01-01T00:00:00.000000Z"


@pytest.mark.usefixtures("with_gateway")
async def test_usage_send_exits_with_1_while_windows_are_not_divided(tenure: Tenure, unsent: Database) -> None:
    await cut(unsent, minute(3))
    result = await asyncio.to_thread(tenure, "usage", "send", *FROM_NOON, "--database", unsent.url)
    assert (result.code, result.out) == (1, "handed over windows: 2, chunks: 1\n")
    assert "not divided yet" in result.err


def test_usage_send_without_gateway_exits_with_2(tenure: Tenure) -> None:
    result = tenure("usage", "send", *FROM_NOON)
    assert result == Result(2, "", "tenure: gateways.usages: must be configured to send usage\n")


@pytest.mark.usefixtures("with_gateway")
def test_usage_send_refuses_invalid_flags(tenure: Tenure) -> None:
    for flags, message in (
        (("send", "--from", "yesterday"), "from: must be an instant with an offset"),
        (("send", *FROM_NOON, "--to", "12:00"), "to: must be an instant with an offset"),
        ((*FROM_NOON, "send"), "usage send: write the flags after send"),
        (("send", *FROM_NOON, "--database", "sqlite:///missing.db"), "database: file missing.db does not exist"),
    ):
        result = tenure("usage", *flags)
        assert (result.code, result.out) == (2, ""), flags
        assert message in result.err, flags
