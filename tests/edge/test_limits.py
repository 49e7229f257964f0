"""The limits on sizes, numbers and durations of requests and connections, and the response when one is exceeded."""

import asyncio
import contextlib
import itertools
from typing import Any

import pytest

from tests.edge.conftest import Raw, ServeWith, many, raw, refusals, responses
from tests.http.client import open_body, request
from tests.http.local import eventually
from tests.support.databases import Database

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
LANES = {"hot": "/sessions", "ordinary": "/%73essions"}
KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE


# Sizes and numbers.


async def test_long_headers_are_answered_with_431(serve_with: ServeWith) -> None:
    service = await serve_with(max_header_bytes=2048)
    long = b"X-Long: " + b"x" * 3000 + b"\r\n"
    many = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 100) for number in range(30))
    for headers in (long, many):
        for end in (b"\r\n", b""):
            async with raw(service) as client:
                await client.send(GET + headers + end)
                if not end:
                    # The first slice of incomplete headers does not count towards the limit, so send more.
                    await client.send(b"X-More: " + b"x" * 9000)
                answer = await client.answer()
                assert (answer.status, answer.code) == (431, "HEADERS_TOO_LARGE")
                assert answer.headers["connection"] == "close"
    assert await refusals(service, "max_header_bytes") > 0


async def test_long_headers_of_requests_with_body_are_answered_with_431(serve_with: ServeWith) -> None:
    service = await serve_with(max_header_bytes=2048)
    for path in LANES.values():
        async with raw(service) as client:
            await client.send(request(open_body(), "X-Long: " + "x" * 2048, path=path))
            assert (await client.answer()).status == 431


async def test_endless_header_is_not_kept_in_memory(serve_with: ServeWith) -> None:
    service = await serve_with()
    async with raw(service) as client:
        await client.send(GET + b"X-Long: ")
        sent = await client.send_much(b"x" * 64 * KIBIBYTE, 64 * MEBIBYTE)
    assert sent < 32 * MEBIBYTE


async def test_long_request_target_is_answered_with_414(serve_with: ServeWith) -> None:
    service = await serve_with(max_header_bytes=2048)
    for target in (b"/healthz?" + b"x" * 3000, b"/healthz?" + b"x" * 20_000):
        async with raw(service) as client:
            await client.send(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = await client.answer()
            assert (answer.status, answer.code) == (414, "URI_TOO_LONG")


async def test_too_many_headers_are_answered_with_431(serve_with: ServeWith) -> None:
    service = await serve_with(max_headers=20)
    headers = b"".join(b"X-%d: 1\r\n" % number for number in range(22))
    for end in (b"\r\n", b""):
        async with raw(service) as client:
            await client.send(GET + headers + end)
            answer = await client.answer()
            assert (answer.status, answer.code) == (431, "HEADERS_TOO_LARGE")
    assert await refusals(service, "max_headers") == 2


async def test_headers_within_the_limits_are_accepted_after_a_long_body(serve_with: ServeWith) -> None:
    """The end of a body and the head of the next request may arrive together."""
    service = await serve_with(max_header_bytes=2048, max_headers=20)
    body = open_body()
    long = request(str(body).replace("'", '"').encode().ljust(60_000))
    short = request(open_body(), "X-Long: " + "x" * 1500)
    async with raw(service) as client:
        await client.send((long + short) * 3)
        assert [(await client.answer()).status for _ in range(6)] == [201, 201, 200, 200, 200, 200]


async def test_trailers_have_the_limits_of_headers(serve_with: ServeWith) -> None:
    service = await serve_with(max_header_bytes=2048, max_headers=20)
    start = request(b"2\r\n{}\r\n0\r\n", "Transfer-Encoding: chunked")
    many = b"".join(b"X-%d: 1\r\n" % number for number in range(23))
    for trailers in (many, b"X-Long: " + b"x" * 90_000):
        async with raw(service) as client:
            await client.send(start)
            await asyncio.sleep(0.05)
            await client.send(trailers)
            assert (await client.answer()).status == 431


# Durations.


async def test_incomplete_headers_are_answered_with_408(serve_with: ServeWith) -> None:
    service = await serve_with(head_seconds=0.2)
    async with raw(service) as client:
        await client.send(GET)
        answer = await client.answer()
        assert (answer.status, answer.code) == (408, "REQUEST_TIMEOUT")
        assert await client.is_closed()
    assert await refusals(service, "head_seconds") == 1


async def test_headers_sent_byte_by_byte_are_answered_with_408(serve_with: ServeWith) -> None:
    service = await serve_with(head_seconds=0.3)
    async with raw(service) as client:
        for number in itertools.count():
            await client.send(GET[number : number + 1] or b"x")
            await asyncio.sleep(0.02)
            if client.reader._buffer:  # type: ignore[attr-defined]
                break
        assert (await client.answer()).status == 408


async def test_connection_without_request_is_closed_without_answer(serve_with: ServeWith) -> None:
    service = await serve_with(head_seconds=0.2)
    async with raw(service) as client:
        assert await client.is_closed()


async def test_incomplete_body_is_answered_with_408(serve_with: ServeWith) -> None:
    service = await serve_with(body_seconds=0.2)
    for path in LANES.values():
        async with raw(service) as client:
            await client.send(request(open_body(), path=path)[:-10])
            answer = await client.answer()
            assert (answer.status, answer.code) == (408, "REQUEST_TIMEOUT"), path
        await eventually(lambda: service.in_flight == 0)
    assert await refusals(service, "body_seconds") == 2


async def test_time_limit_of_body_grows_with_received_bytes(
    serve_with: ServeWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit of a body grows by one second per 1000 bytes received; in this test, per 5000 bytes."""
    monkeypatch.setattr("tenure.server.http1.BYTES_PER_SECOND", 5000)
    service = await serve_with(body_seconds=0.3)
    message = request(str(open_body()).replace("'", '"').encode().ljust(8000))
    async with raw(service) as client:
        for start in range(0, len(message), 1000):
            await client.send(message[start : start + 1000])
            await asyncio.sleep(0.1)
        assert (await client.answer()).status == 201


async def test_idle_connection_is_closed_without_answer(serve_with: ServeWith) -> None:
    service = await serve_with(idle_seconds=0.2)
    for path in LANES.values():
        async with raw(service) as client:
            await client.send(request(open_body(), path=path))
            assert (await client.answer()).status == 201
            assert await client.is_closed()


async def test_client_that_does_not_read_responses_is_disconnected(serve_with: ServeWith) -> None:
    service = await serve_with(body_seconds=0.3)
    async with raw(service) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send_much(request({}) * 100, 64 * MEBIBYTE)
        await eventually(lambda: not service._server.server_state.connections)
    assert await refusals(service, "body_seconds") == 1


async def test_requests_of_client_that_does_not_read_responses_are_not_read(serve_with: ServeWith) -> None:
    """The instance stops reading requests. Otherwise the unread responses would fill its memory."""
    service = await serve_with()
    for message in (request({}), request(method="GET", path="/openapi.json", media_type=None)):
        async with raw(service) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.writer.transport.set_write_buffer_limits(0)
            sent = 0
            async with asyncio.timeout(60):
                while True:
                    client.writer.write(message * 100)
                    sent += len(message) * 100
                    try:
                        await asyncio.wait_for(client.writer.drain(), 0.5)
                    except TimeoutError:
                        break
            connection = next(iter(service._server.server_state.connections))
            # The buffer may exceed the transport's high-water mark by the responses to one slice of input.
            assert connection.transport.get_write_buffer_size() < MEBIBYTE, sent  # type: ignore[union-attr]


# Connections.


async def test_incomplete_requests_do_not_lock_out_other_clients(serve_with: ServeWith) -> None:
    service = await serve_with(max_connections=20)
    for kind in (b"", GET, request(open_body())[:-1]):
        async with many(service, 30) as attackers:
            for attacker in attackers:
                with contextlib.suppress(ConnectionError):
                    await attacker.send(kind)
            for _ in range(3):
                async with raw(service) as client:
                    await client.send(GET + b"\r\n")
                    assert (await client.answer()).status == 200, kind
            assert len(service._server.server_state.connections) <= 20
    assert await refusals(service, "max_connections") > 0


@pytest.fixture
def may_go_on(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Sessions are opened only after the test has set this event."""
    event = asyncio.Event()
    open_sessions = sqlite_database.store.open_sessions

    async def slow(*arguments: Any) -> Any:
        await event.wait()
        return await open_sessions(*arguments)

    monkeypatch.setattr(sqlite_database.store, "open_sessions", slow)
    return event


async def test_request_in_progress_has_no_time_limit(serve_with: ServeWith, may_go_on: asyncio.Event) -> None:
    service = await serve_with(head_seconds=0.1, body_seconds=0.1, idle_seconds=0.1)
    async with raw(service) as client:
        await client.send(request(open_body()))
        await asyncio.sleep(0.5)
        may_go_on.set()
        assert (await client.answer()).status == 201


async def test_connection_over_the_limit_is_answered_with_503(serve_with: ServeWith, may_go_on: asyncio.Event) -> None:
    """All other connections are busy with requests, so the instance cannot close one of them to make room."""
    service = await serve_with(max_connections=3)
    async with many(service, 3) as busy:
        for client in busy:
            await client.send(request(open_body()))
        await eventually(lambda: service.in_flight == 3)
        async with raw(service) as client:
            answer = await client.answer()
            assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "TOO_MANY_CONNECTIONS", "1")
            assert await client.is_closed()
        may_go_on.set()
        assert [(await client.answer()).status for client in busy] == [201] * 3


async def test_longest_idle_connection_is_closed_at_the_limit(serve_with: ServeWith) -> None:
    service = await serve_with(max_connections=3)
    async with many(service, 3) as clients:
        for client in (clients[1], clients[0], clients[2]):
            await client.send(GET + b"\r\n")
            assert (await client.answer()).status == 200
            await asyncio.sleep(0.01)
        async with raw(service) as client:
            await client.send(GET + b"\r\n")
            assert (await client.answer()).status == 200
            assert await clients[1].is_closed()
            await clients[0].send(GET + b"\r\n")
            assert (await clients[0].answer()).status == 200


async def test_connection_with_slowest_incomplete_body_is_closed_at_the_limit(serve_with: ServeWith) -> None:
    service = await serve_with(max_unfinished_bytes=200_000)
    large = request(b" " * 65_000)[:-1]
    async with many(service, 5) as slow:
        for client in slow:
            await client.send(large)
            await asyncio.sleep(0.05)
        assert await refusals(service, "max_unfinished_bytes") == 2
        await slow[4].send(b" ")
        assert (await slow[4].answer()).status == 400
        assert await slow[0].is_closed()


# The end of a refused connection.


async def test_client_that_sends_before_it_reads_gets_the_refusal(serve_with: ServeWith) -> None:
    """The instance does not reset the connection, because the client would then lose the response."""
    service = await serve_with(max_header_bytes=2048)
    refused = {
        431: GET + b"X-Long: " + b"x" * 100_000,
        413: request(b"", "Connection: close", length=8 * MEBIBYTE) + b" " * 100_000,
        404: request(b"", "Connection: close", path="/nowhere", length=8 * MEBIBYTE) + b" " * 100_000,
        400: b"nonsense\r\n" + b"x" * 100_000,
    }
    for status, start in refused.items():
        async with raw(service) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(start)
            for _ in range(20):
                await asyncio.sleep(0.01)
                await client.send(b" " * 100_000)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert responses(await client.rest()) == [status]


async def test_refused_connection_is_closed_if_client_keeps_sending(
    serve_with: ServeWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.server.http1.LINGER_SECONDS", 0.2)
    service = await serve_with()
    async with raw(service) as client:
        await client.send(b"nonsense\r\n")
        with pytest.raises(ConnectionError):
            await _send_forever(client)


async def _send_forever(client: Raw) -> None:
    while True:
        await client.send(b"x")
        await asyncio.sleep(0.02)


async def test_discarded_bytes_of_a_body_are_limited(serve_with: ServeWith) -> None:
    service = await serve_with()
    for path in LANES.values():
        async with raw(service) as client:
            await client.send(request(b"", path=path, length=1 << 40))
            assert await client.send_much(b" " * MEBIBYTE, 200 * MEBIBYTE) < 100 * MEBIBYTE, path


async def test_refusal_waits_for_answers_to_earlier_requests(serve_with: ServeWith) -> None:
    service = await serve_with(max_header_bytes=2048)
    for bad in (b"nonsense\r\n\r\n", GET + b"X-Long: " + b"x" * 9000):
        async with raw(service) as client:
            await client.send(request(open_body()) + GET + b"\r\n" + bad)
            statuses = responses(await client.rest())
            assert (statuses[:2], len(statuses)) == ([201, 200], 3)


async def test_many_pipelined_requests_are_answered_in_order(serve_with: ServeWith) -> None:
    """The instance parses only a few pipelined requests at a time."""
    service = await serve_with()
    async with raw(service) as client:
        reading = asyncio.create_task(client.rest())
        await client.send((GET + b"\r\n" + request({})) * 1000, GET + b"Connection: close\r\n\r\n")
        assert responses(await reading) == [200, 400] * 1000 + [200]


async def test_pipelined_requests_in_memory_are_limited(serve_with: ServeWith) -> None:
    service = await serve_with()
    async with raw(service) as client:
        await client.send((GET + b"\r\n") * 20_000)
        most = 0
        for _ in range(200):
            await asyncio.sleep(0)
            for connection in service._server.server_state.connections:
                most = max(most, len(connection.pipeline))  # type: ignore[union-attr]
    assert most < 200
