"""All three transports (ordinary lane, hot lane and WebSocket) use the steps of the pipeline in the same order."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from tenure.access.caller import ANONYMOUS, Caller, CallerKind
from tenure.access.grants import CLIENTS, OPERATORS
from tenure.config import HttpConfig
from tenure.domain.keys import Role
from tenure.errors import DatabaseUnavailable, Forbidden, GatewayReserved, NotFound, Problem, Unauthenticated
from tenure.http.answers import Answer, Headers
from tenure.http.edge import Edge, Visit
from tenure.http.pipeline import Call, Hot, Pipeline, Respond, Route, StreamRoute
from tenure.telemetry.events import HttpFailed, Telemetry
from tests.support.telemetry import RecordedTelemetry

JSON = [(b"host", b"localhost"), (b"content-type", b"application/json")]
ID = "0190b0a0-0000-7000-8000-000000000001"


def edge(telemetry: Telemetry) -> Edge:
    return Edge(HttpConfig(), "127.0.0.1", telemetry)


def anonymous(_headers: Headers) -> Caller:
    return ANONYMOUS


class Body(msgspec.Struct):
    number: int


class Service:
    """A pipeline with one route for each transport. Records the calls that the handlers get."""

    def __init__(self, identify: Callable[[Headers], Caller | Awaitable[Caller]] = anonymous) -> None:
        self.calls: list[Call] = []
        self.telemetry = RecordedTelemetry()
        shared: Any = {"grants": CLIENTS, "tag": "things", "summary": "", "body": Body, "answers": {200: None}}
        table = [
            Route(method="POST", path="/things/{thingId}", handler=self.handle, **shared),
            Route(method="PUT", path="/things/{thingId}", handler=Hot(self.handle_hot), **shared),
            StreamRoute(path="/things/{thingId}/stream", serve=self.serve, grants=CLIENTS, tag="things", summary=""),
        ]
        self.pipeline = Pipeline(table, "/api", identify, edge(self.telemetry), self.telemetry)

    async def handle(self, call: Call) -> Answer:
        self.calls.append(call)
        return Answer({"number": call.body.number})

    def handle_hot(self, call: Call, respond: Respond) -> None:
        self.calls.append(call)
        respond(Answer({"number": call.body.number}) if call.body.number else ValueError("zero"))

    async def serve(self, _socket: Any, call: Call) -> None:
        self.calls.append(call)

    async def ordinary(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Sends a request through the ordinary lane, and returns the status and the body of the response."""
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": JSON,
            "client": ("192.0.2.1", 1),
        }
        await self.pipeline(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]

    def visit(self) -> Visit:
        return self.pipeline.visit_stream(JSON, ("192.0.2.1", 1))

    def hot(self, url: bytes, body: bytes) -> list[Answer | Exception]:
        """Starts a hot request as `server/http1.py` does, and returns the answers so far."""
        respond = Responder()
        route = next(each for each in self.pipeline.hot_routes() if each.matches(url))
        try:
            route.start(url, JSON, body, self.visit(), respond)
        except Exception as error:  # noqa: BLE001 - answered like any failure
            respond(error)
        return respond.answers


class Responder:
    def __init__(self) -> None:
        self.subject: str | None = None
        self.answers: list[Answer | Exception] = []

    def __call__(self, answer: Answer | Exception) -> None:
        self.answers.append(answer)


def refuse(_headers: Sequence[tuple[bytes, bytes]]) -> Caller:
    raise GatewayReserved("not for you")


async def test_both_lanes_pass_caller_and_path_parameters_to_handlers() -> None:
    """`match_stream` returns the path parameters of a stream."""
    service = Service()
    assert await service.ordinary("POST", f"/api/things/{ID}", b'{"number": 1}') == (200, b'{"number":1}')
    assert await service.ordinary("PUT", f"/api/v1/things/{ID}", b'{"number": 2}') == (200, b'{"number":2}')
    assert len(service.hot(f"/api/things/{ID}".encode(), b'{"number": 3}')) == 1
    _, parameters = service.pipeline.match_stream(f"/api/things/{ID}/stream?x=1", service.visit())
    assert [call.caller for call in service.calls] == [ANONYMOUS] * 3
    assert [*(call.path for call in service.calls), parameters] == [{"thingId": ID}] * 4


async def test_caller_is_identified_before_body_is_decoded() -> None:
    service = Service(refuse)
    status, body = await service.ordinary("POST", f"/api/things/{ID}", b"no JSON")
    assert (status, msgspec.json.decode(body)["code"]) == (403, "GATEWAY_RESERVED")
    assert [type(result) for result in service.hot(f"/api/things/{ID}".encode(), b"no JSON")] == [GatewayReserved]
    assert service.calls == []


async def test_hot_request_waits_until_its_caller_is_identified() -> None:
    known: asyncio.Future[Caller] = asyncio.get_running_loop().create_future()
    service = Service(lambda _headers: known)
    answers = service.hot(f"/api/things/{ID}".encode(), b'{"number": 3}')
    await asyncio.sleep(0)
    assert (answers, service.calls) == ([], [])
    known.set_result(ANONYMOUS)
    async with asyncio.timeout(5):
        while not answers:  # noqa: ASYNC110 - the pipeline offers no event to wait for
            await asyncio.sleep(0)
    assert [call.path for call in service.calls] == [{"thingId": ID}]


async def test_role_without_grant_is_refused_before_body_is_decoded() -> None:
    reader = Caller(CallerKind.KEY, "4fJ0aQz81LmN", "reports", Role.READER)
    service = Service(lambda _headers: reader)
    assert (await service.ordinary("POST", f"/api/things/{ID}", b"no JSON"))[0] == 403
    assert [type(result) for result in service.hot(f"/api/things/{ID}".encode(), b"no JSON")] == [Forbidden]
    assert service.calls == []


async def test_unknown_path_is_refused_before_caller_is_identified() -> None:
    service = Service(refuse)
    assert (await service.ordinary("POST", "/api/nothing", b""))[0] == 404
    for path in ("/api/things/x", f"/things/{ID}/stream", "/api/nothing/stream"):
        with pytest.raises(NotFound):
            service.pipeline.match_stream(path, service.visit())


async def test_stream_route_does_not_answer_http_requests() -> None:
    assert (await Service().ordinary("GET", f"/api/things/{ID}/stream", b""))[0] == 404


async def test_exception_in_hot_handler_returns_500_on_both_lanes() -> None:
    service = Service()
    assert (await service.ordinary("PUT", f"/api/things/{ID}", b'{"number": 0}'))[0] == 500
    (error,) = service.hot(f"/api/things/{ID}".encode(), b'{"number": 0}')
    assert isinstance(error, ValueError)
    assert service.pipeline.failure(error, service.visit()).status == 500
    assert len(service.telemetry.of(HttpFailed)) == 2


async def test_second_answer_of_hot_handler_is_ignored() -> None:
    def twice(_call: Call, respond: Respond) -> None:
        respond(Answer({"number": 1}))
        respond(Answer({"number": 2}))

    service = Service()
    route = Route(
        method="PUT",
        path="/twice",
        handler=Hot(twice),
        grants=OPERATORS,
        tag="",
        summary="",
        body=Body,
        answers={200: None},
    )
    service.pipeline = Pipeline([route], "", anonymous, edge(service.telemetry), service.telemetry)
    async with asyncio.timeout(5):
        assert await service.ordinary("PUT", "/twice", b'{"number": 1}') == (200, b'{"number":1}')


class _OpenStream:
    def __init__(self, service: Service, credential: bytes) -> None:
        (self.route,) = (route for route in service.pipeline.table if isinstance(route, StreamRoute))
        self.parameters = {"thingId": ID}
        self.headers = [(b"authorization", credential)]
        self.refused: list[Problem] = []

    def refuse(self, problem: Problem) -> None:
        self.refused.append(problem)


async def test_check_of_open_streams_waits_once_for_an_unavailable_database() -> None:
    """After that, only credentials that need no I/O are checked."""
    waits = 0

    async def wait_for_database() -> Caller:
        nonlocal waits
        waits += 1
        raise DatabaseUnavailable("away")

    def identify(headers: Headers) -> Caller | Awaitable[Caller]:
        credential = dict(headers)[b"authorization"]
        if credential == b"expired":
            raise Unauthenticated("the token has expired")
        return ANONYMOUS if credential == b"known" else wait_for_database()

    service = Service(identify)
    streams = [_OpenStream(service, credential) for credential in [b"unknown", b"expired", b"known"] * 3]
    service.pipeline.open_streams.update(streams)
    await service.pipeline.check_open_streams()
    assert waits == 1
    assert [len(stream.refused) for stream in streams] == [0, 1, 0] * 3
