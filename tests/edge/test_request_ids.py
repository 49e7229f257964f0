"""The id of a request is in its response, in problems, in the log lines of the request and in the audit log."""

import asyncio
import re
from typing import Any

import pytest
from structlog.testing import capture_logs

from tenure.errors import DatabaseUnavailable
from tenure.telemetry.events import StoreUnavailable
from tests.edge.conftest import Answer, ServeWith, many, raw
from tests.http.client import open_body, request
from tests.http.local import LocalService, eventually
from tests.support.databases import Database
from tests.support.streams import Client, Refused, as_text, handshake

MADE = re.compile(r"[0-9a-f]{12}-[0-9]+")
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
WELL_FORMED = ("a", "0af7651916cd43dd8448eb211c80319c", "!~{}", "x" * 128)
MALFORMED = ("", "a b", "x" * 129, "caf\u00e9", "a\tb")


def messages(*headers: str) -> dict[str, bytes]:
    """One request for each code path that writes a response."""
    lines = "".join(f"{header}\r\n" for header in headers).encode()
    return {
        "hot": request(open_body(), *headers),
        "hot, refused": request(b"{", *headers),
        "ordinary": request(open_body(), *headers, path="/sessions?"),
        "ordinary, refused": request(b"{", *headers, path="/sessions?"),
        "unknown": GET.replace(b"healthz", b"nowhere") + lines + b"\r\n",
        "hot, other host": request(open_body(), *headers).replace(b"localhost", b"elsewhere"),
        "other host": GET.replace(b"localhost", b"elsewhere") + lines + b"\r\n",
        "preflight": GET.replace(b"GET", b"OPTIONS") + lines + b"\r\n",
        "long headers": GET + lines + b"X-Long: " + b"x" * 9000 + b"\r\n\r\n",
        "long head": GET + lines + b"X-Long: " + b"x" * 9000,
        "slow": GET + lines + b"X-Slow: ",
        "stream, refused": handshake("/nowhere", *headers),
    }


async def answer_to(service: LocalService, message: bytes) -> Answer:
    async with raw(service) as client:
        await client.send(message)
        return await client.answer()


def check_problem(answer: Answer) -> None:
    if answer.headers.get("content-type") == "application/problem+json":
        assert f'"requestId":"{answer.headers["x-request-id"]}"'.encode() in answer.body


async def test_id_of_the_client_is_returned_in_every_response(serve_with: ServeWith) -> None:
    service = await serve_with(max_header_bytes=2048, head_seconds=0.2)
    for name, message in messages("X-Request-ID: chosen/by-client=1").items():
        answer = await answer_to(service, message)
        assert answer.headers["x-request-id"] == "chosen/by-client=1", name
        check_problem(answer)


async def test_requests_without_valid_id_get_a_new_one(serve_with: ServeWith) -> None:
    service = await serve_with(max_header_bytes=2048, head_seconds=0.2)
    seen = []
    for name, message in messages().items():
        answer = await answer_to(service, message)
        assert MADE.fullmatch(answer.headers["x-request-id"]), name
        check_problem(answer)
        seen.append(answer.headers["x-request-id"])
    assert len(set(seen)) == len(seen)
    for given, expected in [(text, True) for text in WELL_FORMED] + [(text, False) for text in MALFORMED]:
        for message in (request(b"{"), GET + b"\r\n"):
            head, _, body = message.partition(b"\r\n\r\n")
            line = f"\r\nX-Request-ID: {given}".encode("latin-1")
            answer = await answer_to(service, head + line + b"\r\n\r\n" + body)
            assert (answer.headers["x-request-id"] == given) is expected, given
    two = await answer_to(service, GET + b"X-Request-ID: a\r\nX-Request-ID: b\r\n\r\n")
    assert MADE.fullmatch(two.headers["x-request-id"])


async def test_refusal_of_connection_over_the_limit_has_an_id(serve_with: ServeWith, sqlite_database: Database) -> None:
    waiting = asyncio.Event()
    open_sessions = sqlite_database.store.open_sessions

    async def slow(*arguments: Any) -> Any:
        await waiting.wait()
        return await open_sessions(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite_database.store, "open_sessions", slow)
        service = await serve_with(max_connections=1)
        async with many(service, 1) as (busy,):
            await busy.send(request(open_body()))
            await eventually(lambda: service.in_flight == 1)
            async with raw(service) as client:
                answer = await client.answer()
            waiting.set()
            await busy.answer()
    assert answer.status == 503
    assert MADE.fullmatch(answer.headers["x-request-id"])
    check_problem(answer)


async def test_every_response_to_a_handshake_has_the_id(serve_with: ServeWith) -> None:
    service = await serve_with()
    client = await Client.connect(service.port, "/sessions/stream", "X-Request-ID: mine")
    assert "x-request-id: mine\r\n" in client.head.lower()
    client.disconnect()
    with pytest.raises(Refused) as refused:
        await Client.connect(
            service.port, "/sessions/stream", "X-Request-ID: mine", "Origin: https://elsewhere.example"
        )
    assert "x-request-id: mine\r\n" in refused.value.head.lower()
    assert b'"requestId":"mine"' in refused.value.body
    # This handshake is refused by the package `websockets`, not by Tenure.
    with pytest.raises(Refused) as refused:
        await Client.connect(service.port, "/sessions/stream", "Sec-WebSocket-Version: 12", "X-Request-ID: mine")
    assert "x-request-id: mine\r\n" in refused.value.head.lower()


async def test_log_lines_of_a_request_name_its_id(serve_with: ServeWith, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test sends nine requests on one connection, through both lanes, and opens one stream."""
    service = await serve_with()

    def fail(*_: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr("tenure.telemetry.logs.REPEATED_SECONDS", 0.0)
    monkeypatch.setattr("tenure.http.routes.sessions.open_request", fail)
    monkeypatch.setattr(service.instance._store, "get_session", fail)
    monkeypatch.setattr("tenure.http.routes.streams.open_request", fail)
    path = f"/sessions/{open_body()['userObjectId']}"
    with capture_logs() as logs:
        async with raw(service) as client:
            for number in range(3):
                for form in ("/sessions", "/sessions?"):
                    await client.send(request(open_body(), f"X-Request-ID: put-{number}{form[9:]}", path=form))
                await client.send(request(b"", f"X-Request-ID: get-{number}", method="GET", path=path, media_type=None))
            answers = [await client.answer() for _ in range(9)]
        stream = await Client.connect(service.port, "/sessions/stream", "X-Request-ID: stream")
        await stream.send(as_text({"type": "open", **open_body()}))
        await stream.read_to_end()
        lines = [line for line in logs if line["event"] == "http.failed"]
    assert [answer.status for answer in answers] == [500] * 9
    assert [line["request_id"] for line in lines] == [answer.headers["x-request-id"] for answer in answers]
    assert lines[0]["request_id"] == "put-0"
    assert [line["request_id"] for line in logs if line["event"] == "stream.crashed"] == ["stream"]


async def test_log_lines_of_a_batch_have_no_request_id(
    serve_with: ServeWith, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await serve_with()

    async def fail(*_: Any) -> Any:
        service.telemetry.report(StoreUnavailable("full", "the disk is full"))
        raise DatabaseUnavailable("the disk is full")

    monkeypatch.setattr(sqlite_database.store, "open_sessions", fail)
    with capture_logs() as logs:
        async with raw(service) as client:
            for form in ("/sessions?", "/sessions", "/sessions?"):
                await client.send(request(open_body(), "X-Request-ID: one", path=form))
            assert [(await client.answer()).status for _ in range(3)] == [503] * 3
    lines = [line for line in logs if line["event"] == "store.unavailable"]
    assert lines
    assert not [line for line in lines if "request_id" in line]


async def test_audit_log_names_the_id(serve_with: ServeWith) -> None:
    service = await serve_with()
    body = {"name": "web", "role": "operator"}
    created = await service.http.post("/keys", json=body, headers={"X-Request-ID": "from-console"})
    assert created.status_code == 201, created.text
    headers = {"Authorization": f"Bearer {created.json()['key']}"}
    await service.instance._authenticator.refresh()
    entries = (await service.http.get("/audit-log", headers=headers)).json()["entries"]
    assert [entry["requestId"] for entry in entries] == ["from-console"]
