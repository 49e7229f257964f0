"""A submission is delivered only if the receiver answered the request of this submission, not another request.

Each receiver runs in a thread, so that its bytes can arrive while the event loop does not read.
"""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import uvloop

from tenure.domain.verdicts import Response
from tenure.submissions import client
from tenure.submissions.gateways import Sender
from tenure.submissions.response_reader import HeadTooLarge, ResponseReader
from tenure.telemetry.events import Telemetry
from tests.support.odd_receivers import envelope, gateway

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
REQUESTS = 5
PAUSE_SECONDS = 0.05

Answer = Callable[[socket.socket], None]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
pytestmark = pytest.mark.parametrize(
    "make_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


class StrayReceiver:
    """Reads one request on each connection, or none if `reads` is false. Then calls `answer` and reads nothing else."""

    def __init__(self, listener: socket.socket, answer: Answer, *, reads: bool) -> None:
        self.bodies: list[bytes] = []
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        self._listener = listener
        self._answer = answer
        self._reads = reads
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def stop(self) -> None:
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = b""
            while self._reads and not request.endswith(b"}"):
                data = connection.recv(65_536)
                if not data:
                    return
                request += data
            self.bodies.append(request.rpartition(b"\r\n\r\n")[2])
            self._answer(connection)
            self._stopping.wait()


@contextmanager
def stray_receiver(answer: Answer, *, reads: bool = True) -> Iterator[StrayReceiver]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = StrayReceiver(listener, answer, reads=reads)
        try:
            yield receiver
        finally:
            receiver.stop()


def run(make_loop: LoopFactory, work: Coroutine[Any, Any, list[Response]]) -> list[Response]:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(work)


async def send_some(address: str, pause: Callable[[], None]) -> list[Response]:
    sender = Sender(Telemetry())
    responses = []
    for number in range(REQUESTS):
        responses.append(await sender.send(gateway(address), envelope(b'{"n": %d}' % number, 5.0)))
        pause()
        await asyncio.sleep(0)
    await sender.close()
    return responses


def block() -> None:
    """Keeps the event loop from reading, so that bytes stay in the kernel."""
    time.sleep(2 * PAUSE_SECONDS)


def twice_at_once(connection: socket.socket) -> None:
    connection.sendall(OK * 2)


def twice(connection: socket.socket) -> None:
    connection.sendall(OK)
    time.sleep(PAUSE_SECONDS)
    connection.sendall(OK)


def with_line_end(connection: socket.socket) -> None:
    connection.sendall(OK + b"\r\n")


@pytest.mark.parametrize("answer", [twice_at_once, twice, with_line_end])
def test_surplus_bytes_are_not_taken_for_response_to_next_request(make_loop: LoopFactory, answer: Answer) -> None:
    with stray_receiver(answer) as receiver:
        responses = run(make_loop, send_some(receiver.address, block))
    delivered = [b'{"n": %d}' % number for number, each in enumerate(responses) if each.status == 200]
    assert receiver.bodies == delivered
    assert len(delivered) == REQUESTS


def test_receiver_that_sent_surplus_gets_one_connection_per_request(make_loop: LoopFactory) -> None:
    """The surplus response must not be taken for the response to the next request, even if the surplus arrives right
    after that request was written.
    """
    with stray_receiver(twice_at_once) as receiver:
        responses = run(make_loop, send_some(receiver.address, lambda: None))
    assert ([each.status for each in responses], len(receiver.bodies)) == ([200] * REQUESTS, REQUESTS)


def test_response_before_request_is_no_delivery(make_loop: LoopFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver answers when it accepts a connection, before it has read anything."""
    connect = client._Pool.connect

    async def connect_slowly(pool: client._Pool) -> Any:
        connection = await connect(pool)
        block()
        return connection

    monkeypatch.setattr(client._Pool, "connect", connect_slowly)

    async def send(address: str) -> list[Response]:
        sender = Sender(Telemetry())
        response = await sender.send(gateway(address), envelope(b"{}", 5.0))
        await sender.close()
        return [response]

    with stray_receiver(lambda connection: connection.sendall(OK), reads=False) as receiver:
        responses = run(make_loop, send(receiver.address))
    assert responses == [Response(None, "the receiver answered before the request was sent")]


def test_response_is_freed_without_garbage_collection(make_loop: LoopFactory) -> None:
    """Otherwise the responses of a receiver that sends without end could fill the memory before they are collected."""

    def flood(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    async def send(address: str) -> list[Response]:
        sender = Sender(Telemetry())
        responses = [await sender.send(gateway(address), envelope(b"{}", 5.0)) for _ in range(3)]
        await asyncio.sleep(0.05)
        await sender.close()
        return responses

    gc.collect()
    gc.disable()
    try:
        with stray_receiver(flood) as receiver:
            responses = run(make_loop, send(receiver.address))
        left = [each for each in gc.get_objects() if isinstance(each, HeadTooLarge | ResponseReader)]
    finally:
        gc.enable()
    assert [each.error for each in responses] == ["the head of the response is too large"] * 3
    assert left == []
