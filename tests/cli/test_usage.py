"""`tenure usage`, asked of a running instance, and of what is none."""

import shutil
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import msgspec
import pytest

from tenure.cli.main import main
from tenure.cli.usage import PAGE
from tests.support.databases import Database, sqlite_store
from tests.support.instances import RunningInstance
from tests.support.usage import CONTRACT, chunk_all, cut, install, lived, minute, put_sessions
from tests.support.wishes import NOON

TENANTS = ["0190b0a0-0000-7000-8000-0000000000a1", "0190b0a0-0000-7000-8000-0000000000a2"]
CAPACITY = "0190b0a0-0000-7000-8000-0000000000c1"
MANY = PAGE + 3
"""Sessions, more than fit on a page."""
SPAN = ("--from", "2041-03-01T13:00:00+01:00", "--to", "2041-03-01T12:02:00Z")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def tenure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command as a process would, in this one."""

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["tenure", *arguments])
        monkeypatch.setattr("tenure.cli.main.configure_logs", lambda: None)
        with pytest.raises(SystemExit) as ended:
            main()
        return Ran(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
async def address(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Of an instance with two windows: one to be sent, in which many lived, and one without a gateway."""
    folder = tmp_path_factory.mktemp("usage")
    path = folder / "tenure.db"
    shutil.copyfile(sqlite_template, path)
    database = Database(f"sqlite:///{path}", *sqlite_store(path))
    await database.clock.set(NOON)
    await install(database, NOON)
    of_one = [lived(minute(0, 10), minute(0, 20), tenant_object_id=TENANTS[0]) for _ in range(MANY - 1)]
    of_other = lived(minute(0, 30), minute(1, 50), tenant_object_id=TENANTS[1], capacity_id=CAPACITY, kind=3)
    await put_sessions(database, [*of_one, of_other])
    await cut(database, minute(1), contract=CONTRACT)
    await cut(database, minute(2), factors=(1_000_000, 2_500_000, 3_000_000))
    await chunk_all(database)
    await database.close()
    instance = RunningInstance(database.url, folder, TENURE_JOBS__EMIT_USAGE__PAUSED="true")
    try:
        yield instance.wait_until_ready().address
    finally:
        instance.stop()


def api(address: str, path: str) -> str:
    """What the service itself answers."""
    with urlopen(f"{address}{path}") as answer:
        return str(answer.read().decode())


# What it prints.


def test_shows_one_sum_and_its_span(tenure: Callable[..., Ran], address: str) -> None:
    assert tenure("usage", "--url", address, *SPAN) == Ran(
        0,
        "   usage  sessions\n"
        f"0.002101       {MANY}\n"
        "\n"
        "from 2041-03-01T12:00:00.000000Z to 2041-03-01T12:02:00.000000Z, final until 2041-03-01T12:02:00.000000Z\n",
        "",
    )


def test_without_a_span_it_is_the_thirty_days_before_the_last_instant(tenure: Callable[..., Ran], address: str) -> None:
    foot = tenure("usage", "--url", address).out.splitlines()[-1]
    assert foot.startswith("from 2041-01-30T12:02:00.000000Z to 2041-03-01T12:02:00.000000Z,")


def test_shows_groups_as_a_table(tenure: Callable[..., Ran], address: str) -> None:
    assert tenure("usage", "--url", address, *SPAN, "--group-by", "tenant").out.splitlines()[:3] == [
        "tenantObjectId                           usage  sessions",
        f"{TENANTS[0]}  0.002008       {MANY - 1}",
        f"{TENANTS[1]}  0.000093         1",
    ]


@pytest.mark.parametrize(
    "flags",
    [
        ["--tenant", TENANTS[1]],
        ["--capacity", CAPACITY],
        ["--tenant", TENANTS[1], "--capacity", CAPACITY],
        ["--from", "2041-03-01T12:01:00Z"],
    ],
    ids=str,
)
def test_a_filter_is_passed_on(tenure: Callable[..., Ran], address: str, flags: Sequence[str]) -> None:
    table = tenure("usage", "--url", address, "--group-by", "tenant", *flags).out
    assert (TENANTS[0] in table, TENANTS[1] in table) == (False, True)


def test_a_user_is_passed_on(tenure: Callable[..., Ran], address: str) -> None:
    assert tenure("usage", "--url", address, "--group-by", "kind", "--user", CAPACITY).out.startswith(
        "nothing\n\nfrom "
    )


def test_json_is_what_the_service_answers(tenure: Callable[..., Ran], address: str) -> None:
    """To the last digit, and as numbers."""
    ran = tenure("usage", "--url", address, *SPAN, "--group-by", "tenant", "--json")
    query = "from=2041-03-01T12:00:00Z&to=2041-03-01T12:02:00Z&groupBy=tenant"
    assert ran == Ran(0, api(address, f"/usage?{query}") + "\n", "")


@pytest.mark.parametrize(("flags", "path"), [(["--windows"], ""), (["--window", "1"], "/1")])
def test_json_of_windows_is_what_the_service_answers(
    tenure: Callable[..., Ran], address: str, flags: Sequence[str], path: str
) -> None:
    ran = tenure("usage", "--url", address, *flags, "--json")
    assert ran == Ran(0, api(address, f"/usage/windows{path}") + "\n", "")


def test_goes_through_all_pages(tenure: Callable[..., Ran], address: str) -> None:
    ran = tenure("usage", "--url", address, *SPAN, "--group-by", "session", "--json")
    told = msgspec.json.Decoder(float_hook=Decimal).decode(ran.out)
    keys = [group["sessionId"] for group in told["groups"]]
    assert (len(keys), keys, told["count"], told["nextCursor"]) == (MANY, sorted(set(keys)), MANY, None)
    assert sum(group["usage"] for group in told["groups"]) == Decimal("0.002101")


def test_a_table_has_all_pages_too(tenure: Callable[..., Ran], address: str) -> None:
    lines = tenure("usage", "--url", address, *SPAN, "--group-by", "session").out.splitlines()
    assert len(lines) == 1 + MANY + 2


def test_shows_windows(tenure: Callable[..., Ran], address: str) -> None:
    assert tenure("usage", "--url", address, "--windows").out == (
        "windowId  startAt                      endAt                        factors        sessions     usage  "
        "deliveredAt\n"
        "       2  2041-03-01T12:01:00.000000Z  2041-03-01T12:02:00.000000Z  1:1 2:2.5 3:3         1  0.000058  "
        "          -\n"
        f"       1  2041-03-01T12:00:00.123456Z  2041-03-01T12:01:00.000000Z  1:1 2:2 3:3         {MANY}  0.002043  "
        "          -\n"
    )


@pytest.mark.parametrize("flags", [["--from", "2041-03-01"], ["--tenant", CAPACITY], ["--group-by", "kind"]])
@pytest.mark.parametrize("shown", [["--windows"], ["--window", "1"]])
def test_windows_are_shown_as_they_are(tenure: Callable[..., Ran], shown: Sequence[str], flags: Sequence[str]) -> None:
    words = "tenure: windows: are shown as they were billed, without a span, a filter or groups\n"
    assert tenure("usage", *shown, *flags) == Ran(2, "", words)


def test_a_day_begins_at_midnight_in_utc(tenure: Callable[..., Ran], address: str) -> None:
    shown = tenure("usage", "--url", address, "--from", "2041-03-01", "--to", "2041-03-01T12:02:00+00:00").out
    assert shown.splitlines()[-1].startswith("from 2041-03-01T00:00:00.000000Z to 2041-03-01T12:02:00.000000Z,")


def test_shows_a_window_and_its_chunks(tenure: Callable[..., Ran], address: str) -> None:
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
        "chunk  submissionId                          sessions     usage  digest  deliveredAt\n"
        f"    1  {chunk['submissionId']}       {MANY}  0.002043       -            -\n"
    )


def test_an_address_may_end_with_a_slash(tenure: Callable[..., Ran], address: str) -> None:
    assert tenure("usage", "--url", f"{address}/v1/", "--windows") == tenure("usage", "--url", address, "--windows")


# What is refused.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--window", "99"], "there is no window 99"),
        (["--window", "-1"], "there is no window -1"),
        (["--group-by", "day"], "groupBy: must be tenant, capacity, user, kind, session"),
        (["--tenant", "x"], "tenant: must be a UUID"),
        (["--from", "2041-03-01T12:02:00Z", "--to", "2041-03-01T12:01:00Z"], "from: must lie before to"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_what_the_service_refuses_is_told_in_one_line(
    tenure: Callable[..., Ran], address: str, flags: Sequence[str], words: str
) -> None:
    assert tenure("usage", "--url", address, *flags) == Ran(1, "", f"tenure: {words}\n")


@pytest.mark.parametrize("flag", ["--from", "--to"])
@pytest.mark.parametrize("words", ["yesterday", "2041-03-01T12:00:00", "2041-02-30", ""])
def test_what_is_no_instant_is_a_wrong_setting(tenure: Callable[..., Ran], flag: str, words: str) -> None:
    told = f"tenure: {flag[2:]}: must be an instant with its offset, as 2026-01-02T03:04:05Z, or a day\n"
    assert tenure("usage", flag, words) == Ran(2, "", told)


def test_a_wrong_prefix_is_told(tenure: Callable[..., Ran], address: str) -> None:
    assert tenure("usage", "--url", f"{address}/api/v3") == Ran(1, "", "tenure: there is nothing at this address\n")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "ftp://127.0.0.1", "file:///etc/passwd", "", "http://[", "http://a b", "http://a:b"]
)
def test_what_is_no_address_is_a_wrong_setting(tenure: Callable[..., Ran], url: str) -> None:
    words = "tenure: url: must be an address that begins with http:// or https://\n"
    assert tenure("usage", "--url", url) == Ran(2, "", words)


@pytest.mark.parametrize("key", ["a\nb", "k\u00fc"])
def test_what_can_be_no_key_is_a_wrong_setting(tenure: Callable[..., Ran], key: str) -> None:
    assert tenure("usage", "--url", "http://127.0.0.1:9", "--key", key) == Ran(
        2, "", "tenure: key: must be an API key\n"
    )


def test_a_service_that_cannot_be_reached_is_told(tenure: Callable[..., Ran]) -> None:
    ran = tenure("usage", "--url", "http://127.0.0.1:9")
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith("tenure: http://127.0.0.1:9 cannot be reached: ")


# Others than a service of ours.


class Impostor:
    """Gives every request the same bytes, and keeps what it was asked."""

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


@pytest.fixture
def impostor() -> Iterator[Callable[[bytes], Impostor]]:
    made: list[Impostor] = []

    def make(answer: bytes) -> Impostor:
        made.append(Impostor(answer))
        return made[-1]

    yield make
    for each in made:
        each.close()


def response(status: str, body: bytes = b"", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


SOMETHING_ELSE = {
    "a page": response("200 OK", b"<!doctype html>"),
    "another object": response("200 OK", b"{}"),
    "a list": response("200 OK", b"[]"),
    "a number": response("200 OK", b"7"),
    "no UTF-8": response("200 OK", b'{"groups": "\xff"}'),
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
    "no HTTP": b"220 mail.example ESMTP\r\n",
}


@pytest.mark.parametrize("kind", SOMETHING_ELSE)
@pytest.mark.parametrize("flags", [[], ["--windows"], ["--window", "1"]], ids=str)
def test_what_does_not_answer_as_tenure_is_told(
    tenure: Callable[..., Ran], impostor: Callable[[bytes], Impostor], kind: str, flags: Sequence[str]
) -> None:
    url = impostor(SOMETHING_ELSE[kind]).address
    assert tenure("usage", "--url", url, *flags) == Ran(1, "", f"tenure: {url} does not answer as Tenure does\n")


@pytest.mark.parametrize("body", [b"", b"<h1>no</h1>", b"[]", b"{}", b'{"detail": '])
def test_a_refusal_without_words_is_told_by_its_status(
    tenure: Callable[..., Ran], impostor: Callable[[bytes], Impostor], body: bytes
) -> None:
    url = impostor(response("502 Bad Gateway", body)).address
    assert tenure("usage", "--url", url) == Ran(1, "", "tenure: answered 502\n")


def test_a_connection_that_breaks_off_is_told(
    tenure: Callable[..., Ran], impostor: Callable[[bytes], Impostor]
) -> None:
    url = impostor(b"").address
    ran = tenure("usage", "--url", url)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert ran.err.startswith(f"tenure: {url} cannot be reached: ")


def test_the_key_goes_to_the_service(tenure: Callable[..., Ran], impostor: Callable[[bytes], Impostor]) -> None:
    other = impostor(response("401 Unauthorized", b'{"detail": "who are you?"}'))
    assert tenure("usage", "--url", other.address, "--key", "tk_1").err == "tenure: who are you?\n"
    assert b"\r\nAuthorization: Bearer tk_1\r\n" in other.requests[0]


def test_the_key_goes_nowhere_else(tenure: Callable[..., Ran], impostor: Callable[[bytes], Impostor]) -> None:
    target = impostor(response("200 OK", b"{}"))
    other = impostor(response("302 Found", b"", f"Location: {target.address}/"))
    tenure("usage", "--url", other.address, "--key", "tk_1")
    assert [b"tk_1" in request for request in other.requests + target.requests] == [True, False]
