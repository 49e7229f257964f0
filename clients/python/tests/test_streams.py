"""Streams against a real service with the handler `echo`."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Kind, Service, StartService, ids, wait_until
from websockets.sync.server import ServerConnection, serve

from tenure_client import Client, Final, Partial, StreamError, errors
from tenure_client._async import _io as async_io
from tenure_client._messages import parsed
from tenure_client._sync import _io as sync_io


def take(kind: Kind, stream: Any, count: int) -> list[Any]:
    """Return the next `count` messages of the stream, or fewer if the stream ends before."""

    async def collect() -> list[Any]:
        found = []
        async for message in stream:
            found.append(message)
            if len(found) == count:
                break
        return found

    if kind.is_async:
        return kind.run(collect())
    return [message for _, message in zip(range(count), stream, strict=False)]


def test_stream_opens_session_echoes_and_ends_it(kind: Kind, service: Service) -> None:
    with kind.entered(kind.client(service.url)) as client:
        with kind.entered(client.stream(**ids())) as stream:
            assert stream.session.status == "created"
            for message in ("hello", b"\x00\x01", '{"type": "mine"}'):
                kind.run(stream.send(message))
            assert take(kind, stream, 3) == ["hello", b"\x00\x01", '{"type": "mine"}']
            kind.run(stream.stop())
            assert kind.all(stream) == []
        assert stream.end.reason == "STOPPED"
        assert stream.end.metrics.chunks == 3
        assert kind.run(client.sessions.get(stream.session.session_id)).close_reason == "STOPPED"


def test_leaving_the_block_of_a_stream_ends_its_held_session(kind: Kind, service: Service) -> None:
    # With this lease, `hold` sends a heartbeat every second, and so notices soon that the session has ended.
    limited = ids(lease_seconds=10)
    with kind.entered(kind.client(service.url)) as client, kind.entered(client.hold(**limited)) as session:
        with kind.entered(session.stream()) as stream:
            kind.run(stream.send("one"))
            assert take(kind, stream, 1) == ["one"]
        assert stream.end.reason == "STOPPED"
        assert session.lost.wait(20)
        assert session.lost.reason == "stopped"


def test_refused_streams_raise(kind: Kind, service: Service) -> None:
    with kind.entered(kind.client(service.url)) as client:
        unknown = ids()["user"]
        with pytest.raises(errors.NotFound), kind.entered(client.sessions.stream(unknown)):
            pass
        opened = kind.run(client.sessions.open(**ids()))
        kind.run(client.sessions.end(opened.session_id))
        with pytest.raises(errors.SessionOver), kind.entered(client.sessions.stream(opened.session_id)):
            pass
        with pytest.raises(errors.Invalid), kind.entered(client.stream(**{**ids(), "user": "me"})):
            pass
        capacity = ids()["capacity"]
        kind.run(client.capacities.set(capacity, max_sessions=0))
        with pytest.raises(errors.SessionLimit), kind.entered(client.stream(**ids(capacity=capacity))):
            pass
    with (
        kind.entered(kind.client("http://127.0.0.1:1")) as nobody,
        pytest.raises(errors.NotSent),
        kind.entered(nobody.stream(**ids())),
    ):
        pass


@pytest.fixture
def closing_server() -> Iterator[tuple[str, list[Any]]]:
    """Start a server, and return its URL and a list for the test to fill: messages, and as last element a close code.

    The server accepts each stream, sends the messages, and closes the stream with the code. It reads nothing.
    """
    script: list[Any] = []

    def refuse(socket: ServerConnection) -> None:
        for message in script[:-1]:
            socket.send(message)
        socket.close(script[-1])

    with serve(refuse, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}", script
        server.shutdown()
        thread.join()


def test_stream_that_is_closed_before_the_client_sends_raises_the_reason(
    kind: Kind, closing_server: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server closes the connection before the client sends its first message."""
    url, script = closing_server
    delay(kind, monkeypatch)
    error = '{"type": "error", "code": "SESSION_LIMIT", "message": "no room"}'
    for script[:], expected in (([1012], errors.StreamClosed), ([error, 1008], errors.SessionLimit)):
        with (
            kind.entered(kind.client(url)) as client,
            pytest.raises(expected),
            kind.entered(client.stream(**ids())),
        ):
            pass


def delay(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the client wait after the handshake, so that the server closes the connection in the meantime."""
    module = async_io if kind.is_async else sync_io
    open_socket: Any = module.open_socket

    async def open_and_wait(*arguments: Any, **options: Any) -> Any:
        socket = await open_socket(*arguments, **options)
        await asyncio.sleep(0.3)
        return socket

    def open_and_sleep(*arguments: Any, **options: Any) -> Any:
        socket = open_socket(*arguments, **options)
        time.sleep(0.3)
        return socket

    monkeypatch.setattr(module, "open_socket", open_and_wait if kind.is_async else open_and_sleep)


def test_replaced_stream_and_ended_session_raise(kind: Kind, service: Service) -> None:
    with (
        kind.entered(kind.client(service.url)) as client,
        kind.entered(client.stream(**ids())) as old,
        kind.entered(client.sessions.stream(old.session.session_id)) as new,
    ):
        with pytest.raises(errors.StreamReplaced) as replaced:
            take(kind, old, 1)
        assert replaced.value.close_code == 4409
        with Client(service.url) as other:
            other.sessions.end(new.session.session_id)
        with pytest.raises(errors.SessionOver) as over:
            take(kind, new, 1)
        assert over.value.close_reason == "TERMINATED"


@pytest.mark.slow
def test_key_is_sent_with_the_handshake_and_broken_connection_raises(kind: Kind, start_service: StartService) -> None:
    service = start_service()
    with Client(service.url) as anonymous:
        key = anonymous.keys.create("streams", "operator").key
        wait_until(lambda: _is_refused(anonymous))
    with (
        kind.entered(kind.client(service.url)) as client,
        pytest.raises(errors.Unauthenticated),
        kind.entered(client.stream(**ids())),
    ):
        pass
    with kind.entered(kind.client(service.url, key)) as client, kind.entered(client.stream(**ids())) as stream:
        threading.Timer(0.5, service.kill).start()
        with pytest.raises(errors.StreamClosed):
            take(kind, stream, 1)


def _is_refused(client: Client) -> bool:
    try:
        client.health()
    except errors.Unauthenticated:
        return True
    return False


def test_messages_of_the_server_are_parsed_and_messages_of_the_handler_are_not() -> None:
    assert parsed('{"type": "partial", "text": "a"}') == Partial("a")
    assert parsed('{"type": "final", "text": "a", "new": 1}') == Final("a")
    assert parsed('{"type": "error", "code": "X", "message": "m"}') == StreamError("X", "m")
    for other in ('{"type": "mine"}', '{"type": 1}', '"type"', "no json", b'{"type": "final", "text": "a"}'):
        assert parsed(other) == other
