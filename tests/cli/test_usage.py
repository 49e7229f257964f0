"""`tenure usage` against a running instance, and against servers that are not Tenure."""

import asyncio
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

from tenure.cli.usage import PAGE
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
    """The address of an instance with two windows: one with many sessions and a gateway, one without a gateway."""
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
        "   usage  sessions\n"
        f"0.002101       {MANY}\n"
        "\n"
        "from 2041-03-01T12:00:00.000000Z to 2041-03-01T12:02:00.000000Z, final until 2041-03-01T12:02:00.000000Z\n",
        "",
    )


def test_default_span_is_thirty_days_before_end(tenure: Tenure, address: str) -> None:
    foot = tenure("usage", "--url", address).out.splitlines()[-1]
    assert foot.startswith("from 2041-01-30T12:02:00.000000Z to 2041-03-01T12:02:00.000000Z,")


def test_groups_are_printed_as_table(tenure: Tenure, address: str) -> None:
    assert tenure("usage", "--url", address, *SPAN, "--group-by", "tenant").out.splitlines()[:3] == [
        "tenantObjectId                           usage  sessions",
        f"{TENANTS[0]}  0.002008       {MANY - 1}",
        f"{TENANTS[1]}  0.000093         1",
    ]


def test_filter_is_sent_to_service(tenure: Tenure, address: str) -> None:
    for flags in (
        ["--tenant", TENANTS[1]],
        ["--capacity", CAPACITY],
        ["--tenant", TENANTS[1], "--capacity", CAPACITY],
        ["--from", "2041-03-01T12:01:00Z"],
    ):
        table = tenure("usage", "--url", address, "--group-by", "tenant", *flags).out
        assert (TENANTS[0] in table, TENANTS[1] in table) == (False, True), flags


def test_user_filter_is_sent_to_service(tenure: Tenure, address: str) -> None:
    assert tenure("usage", "--url", address, "--group-by", "kind", "--user", CAPACITY).out.startswith(
        "no data\n\nfrom "
    )


def test_json_output_equals_service_response(tenure: Tenure, address: str) -> None:
    """All digits are kept, and usage is a number."""
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


def test_table_contains_all_pages(tenure: Tenure, address: str) -> None:
    lines = tenure("usage", "--url", address, *SPAN, "--group-by", "session").out.splitlines()
    assert len(lines) == 1 + MANY + 2


def test_windows_are_printed_as_table(tenure: Tenure, address: str) -> None:
    assert tenure("usage", "--url", address, "--windows").out == (
        "windowId  startAt                      endAt                        factors        sessions     usage  "
        "deliveredAt\n"
        "       2  2041-03-01T12:01:00.000000Z  2041-03-01T12:02:00.000000Z  1:1 2:2.5 3:3         1  0.000058  "
        "          -\n"
        f"       1  2041-03-01T12:00:00.123456Z  2041-03-01T12:01:00.000000Z  1:1 2:2 3:3         {MANY}  0.002043  "
        "          -\n"
    )


def test_windows_with_span_filter_or_groups_are_rejected(tenure: Tenure) -> None:
    error = "tenure: windows: cannot be combined with a span, a filter or --group-by\n"
    others = (["--from", "2041-03-01"], ["--tenant", CAPACITY], ["--group-by", "kind"])
    for windows, flags in product((["--windows"], ["--window", "1"]), others):
        assert tenure("usage", *windows, *flags) == Result(2, "", error), (windows, flags)


def test_date_without_time_is_midnight_utc(tenure: Tenure, address: str) -> None:
    output = tenure("usage", "--url", address, "--from", "2041-03-01", "--to", "2041-03-01T12:02:00+00:00").out
    assert output.splitlines()[-1].startswith("from 2041-03-01T00:00:00.000000Z to 2041-03-01T12:02:00.000000Z,")


def test_window_is_printed_with_its_chunks(tenure: Tenure, address: str) -> None:
    (chunk,) = msgspec.json.decode(api(address, "/usage/windows/1"))["chunks"]
    assert tenure("usage", "--url", address, "--window", "1").out == (
        "windowId     1\n"
        "startAt      2041-03-01T12:00:00.123456Z\n"
        "endAt        2041-03-01T12:01:00.000000Z\n"
        "factors      1:1 2:2 3:3\n"
        f"sessions     {MANY}\n"
        "usage        0.002043\n"
        "deliveredAt  -\n"
        "\n"
        "chunk  submissionId                          sessions     usage  digest  deliveredAt  receipt\n"
        f"    1  {chunk['submissionId']}       {MANY}  0.002043       -            -  False\n"
    )


def test_url_with_trailing_slash_is_accepted(tenure: Tenure, address: str) -> None:
    assert tenure("usage", "--url", f"{address}/v1/", "--windows") == tenure("usage", "--url", address, "--windows")


# Errors.


def test_service_error_is_printed_in_one_line(tenure: Tenure, address: str) -> None:
    for flags, error in (
        (["--window", "99"], "window 99 does not exist"),
        (["--window", "-1"], "window -1 does not exist"),
        (["--group-by", "day"], "groupBy: must be tenant, capacity, user, kind, session"),
        (["--tenant", "x"], "tenant: must be a UUID"),
        (["--from", "2041-03-01T12:02:00Z", "--to", "2041-03-01T12:01:00Z"], "from: must lie before to"),
    ):
        assert tenure("usage", "--url", address, *flags) == Result(1, "", f"tenure: {error}\n"), flags


def test_invalid_instant_exits_with_2(tenure: Tenure) -> None:
    rule = "must be an instant with an offset, such as 2026-01-02T03:04:05Z, or a day"
    for flag, value in product(("--from", "--to"), ("yesterday", "2041-03-01T12:00:00", "2041-02-30", "")):
        assert tenure("usage", flag, value) == Result(2, "", f"tenure: {flag[2:]}: {rule}\n"), (flag, value)


def test_wrong_prefix_prints_error(tenure: Tenure, address: str) -> None:
    assert tenure("usage", "--url", f"{address}/api/v3") == Result(1, "", "tenure: no resource has this address\n")


def test_invalid_url_exits_with_2(tenure: Tenure) -> None:
    error = "tenure: url: must be a valid http:// or https:// URL\n"
    for url in (
        "127.0.0.1:8080",
        "ftp://127.0.0.1",
        "file:///etc/passwd",
        "",
        "http://[",
        "http://a b",
        "http://a:b",
    ):
        assert tenure("usage", "--url", url) == Result(2, "", error), url


def test_malformed_key_is_refused_and_not_printed(tenure: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Result(2, "", "tenure: key: must be an API key, as `tenure keys create` prints it\n")
    assert tenure("usage", "--url", "http://127.0.0.1:9", "--key", "tk_1") == refused
    monkeypatch.setenv("TENURE_KEY", "tk_1")
    assert tenure("usage", "--url", "http://127.0.0.1:9") == refused


def test_url_is_read_from_variable(tenure: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_URL", "http://127.0.0.1:9/from-variable")
    assert tenure("usage").err.startswith("tenure: http://127.0.0.1:9/from-variable cannot be reached: ")


def test_unreachable_service_prints_one_line_error(tenure: Tenure) -> None:
    result = tenure("usage", "--url", "http://127.0.0.1:9")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert result.err.startswith("tenure: http://127.0.0.1:9 cannot be reached: ")


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
    "number": response("200 OK", b"7"),
    "invalid UTF-8": response("200 OK", b'{"groups": "\xff"}'),
    "incomplete response": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
    "not HTTP": b"220 mail.example ESMTP\r\n",
}


@pytest.mark.parametrize("kind", NOT_TENURE)
def test_response_that_is_not_from_tenure_prints_error(tenure: Tenure, fake_server: StartServer, kind: str) -> None:
    url = fake_server(NOT_TENURE[kind]).address
    for flags in ([], ["--windows"], ["--window", "1"]):
        result = tenure("usage", "--url", url, *flags)
        assert result == Result(1, "", f"tenure: {url} did not return a valid Tenure response\n"), flags


def test_error_response_without_detail_prints_status(tenure: Tenure, fake_server: StartServer) -> None:
    for body in (b"", b"<h1>no</h1>", b"[]", b"{}", b'{"detail": '):
        url = fake_server(response("502 Bad Gateway", body)).address
        assert tenure("usage", "--url", url) == Result(1, "", "tenure: the service responded with status 502\n"), body


def test_dropped_connection_prints_one_line_error(tenure: Tenure, fake_server: StartServer) -> None:
    url = fake_server(b"").address
    result = tenure("usage", "--url", url)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert result.err.startswith(f"tenure: {url} cannot be reached: ")


# Windows that were cut without a gateway.


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
async def test_usage_send_hands_over_unsent_windows_once(tenure: Tenure, unsent: Database) -> None:
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
