"""The client's options, retries, errors, pages of lists, and the secrecy of its key."""

import os
import pickle
import traceback
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from conftest import Kind, ids

from tenure_client import Answer, Client, errors, models
from tenure_client._core import RetryChain, options_from
from tenure_client.testing import FakeServer

KEY = "tnr_client_abcdefgh_0123456789"


def paths(server: FakeServer) -> list[str]:
    return [f"{request.method} {request.path}" for request in server.requests]


def test_safe_requests_are_sent_again(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        who = ids()
        server.next(503)
        server.drop(after=True)
        opened = kind.run(client.sessions.open(**who))
        assert opened.status == "existing", "the second try opened the session, but its response was lost"
        for call in (
            lambda: client.sessions.get(opened.session_id),
            lambda: client.sessions.heartbeat(opened.session_id),
            lambda: client.sessions.heartbeats([opened.session_id]),
            lambda: client.sessions.end(opened.session_id),
        ):
            server.hang()
            server.next(503, code="OVERLOADED")
            server.next(429, code="RATE_LIMITED", retry_after=2)
            before = len(server.requests)
            kind.run(call())
            assert len(server.requests) == before + 4


def test_unsafe_requests_are_sent_again_only_if_certainly_not_carried_out(kind: Kind) -> None:
    failures: list[Any] = []
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        failure = failures.pop(0)
        if isinstance(failure, Exception):
            raise failure
        return httpx2.Response(failure, json={"code": "X", "detail": "x"})

    with kind.entered(kind.client("http://127.0.0.1:1", transport=httpx2.MockTransport(answer))) as client:
        for failure, error in ((httpx2.ReadError("x"), errors.TransportError), (503, errors.Unavailable)):
            failures[:] = [httpx2.ConnectError("x"), failure]
            sent.clear()
            with pytest.raises(error):
                kind.run(client.keys.create("name", "client"))
            assert len(sent) == 2


def test_one_idempotency_key_per_chain_of_tries(kind: Kind) -> None:
    keys: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) % 3:
            raise httpx2.ReadError("lost")
        return httpx2.Response(202, json={"submissionId": "s", "state": "pending"})

    with kind.entered(kind.client("http://127.0.0.1:1", transport=httpx2.MockTransport(answer))) as client:
        for _ in range(2):
            kind.run(client.submissions.submit("billing", {"order": 1}))
        kind.run(client.submissions.submit("billing", {"order": 1}, idempotency_key="order-1"))
    assert [len(set(keys[at : at + 3])) for at in (0, 3, 6)] == [1, 1, 1]
    assert len(set(keys)) == 3
    assert keys[6] == "order-1"


def test_session_limit_and_refused_credentials_are_not_retried(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        for status, code, error in (
            (429, "SESSION_LIMIT", errors.SessionLimit),
            (429, "TOO_MANY_FAILURES", errors.TooManyFailures),
            (401, None, errors.Unauthenticated),
            (403, None, errors.Forbidden),
        ):
            server.next(status, code=code)
            before = len(server.requests)
            with pytest.raises(error) as raised:
                kind.run(client.sessions.open(**ids()))
            assert len(server.requests) == before + 1
            assert ("set TENURE_KEY" in str(raised.value)) is (status == 401)


def test_retry_after_and_budget_limit_the_tries(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server, max_retries=100, retry_budget=30)) as client:
        server.next(503, times=1000, retry_after=4)
        with pytest.raises(errors.DatabaseUnavailable) as raised:
            kind.run(client.health())
        assert raised.value.retry_after == 4
        times = [request.at for request in server.requests]
        assert all(later - earlier >= 4 for earlier, later in pairwise(times))
        assert 4 <= len(times) <= 8
        assert times[-1] - times[0] <= 30
        server.requests.clear()
        with pytest.raises(errors.DatabaseUnavailable):
            kind.run(client.with_options(max_retries=0).health())
        assert len(server.requests) == 1


def test_pauses_have_full_jitter_and_grow() -> None:
    options = options_from("http://a", None, {"max_retries": 3, "retry_budget": 1000})
    pauses: list[list[float]] = [[], [], []]
    for _ in range(300):
        chain = RetryChain(options, 0, repeatable=True)
        for at in range(3):
            pauses[at].append(chain.delay(errors.TimedOut("x"), 0) or 0)
        assert chain.delay(errors.TimedOut("x"), 0) is None
    for at, of_try in enumerate(pauses):
        most = 0.2 * 2**at
        assert min(of_try) < 0.1 * most < 0.9 * most < max(of_try) <= most


def test_problem_contains_fields_of_the_answer(kind: Kind) -> None:
    document = {
        "code": "SESSION_OVER",
        "title": "Session has ended",
        "detail": "the session has ended: EVICTED",
        "closeReason": "EVICTED",
        "requestId": "r-1",
    }
    transport = httpx2.MockTransport(
        lambda _request: httpx2.Response(410, json=document, headers={"X-Request-ID": "r-1", "Retry-After": "7"})
    )
    with (
        kind.entered(kind.client("http://127.0.0.1:1", transport=transport)) as client,
        pytest.raises(errors.SessionOver) as raised,
    ):
        kind.run(client.sessions.heartbeat("00000000-0000-0000-0000-000000000004"))
    for problem in (raised.value, pickle.loads(pickle.dumps(raised.value))):
        assert (problem.status, problem.code, problem.close_reason) == (410, "SESSION_OVER", "EVICTED")
        assert (problem.request_id, problem.retry_after) == ("r-1", 7)
        assert "r-1" in str(problem)


def test_invalid_request_names_its_fields(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client, pytest.raises(errors.Invalid) as raised:
        kind.run(client.sessions.open(**{**ids(), "user": "me"}))
    assert raised.value.errors == (errors.FieldError("userObjectId", "must be a UUID"),)


def test_lists_iterate_across_pages(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        who = ids()
        opened = [kind.run(client.sessions.open(**ids(tenant=who["tenant"]))).session_id for _ in range(5)]
        listed = kind.all(client.sessions.list(tenant=who["tenant"], limit=2))
        assert {session.session_id for session in listed} == set(opened)
        assert paths(server)[-3:] == ["GET /sessions"] * 3
        first = kind.run(client.sessions.list(tenant=who["tenant"], limit=2).first())
        assert (len(first.sessions), first.count) == (2, 2)
        rest = kind.all(client.sessions.list(tenant=who["tenant"], limit=2, cursor=first.next_cursor))
        assert [*first.sessions, *rest] == listed
        pages = kind.all(client.sessions.list(tenant=who["tenant"], limit=2).pages())
        assert [page.count for page in pages] == [2, 2, 1]


def test_raw_answers_are_available(kind: Kind, server: FakeServer) -> None:
    seen: list[Answer] = []
    with kind.entered(kind.of(server, on_response=seen.append)) as client:
        raw = kind.run(client.request("GET", "/health", query={}))
        assert raw.json()["status"] == "ok"
        assert raw.decode(models.Health) == kind.run(client.health())
        assert [answer.status for answer in seen] == [200, 200]
        assert raw.request_id == seen[0].request_id != seen[1].request_id
        with pytest.raises(errors.NotFound):
            kind.run(client.request("GET", "/sessions/nothing"))


def test_url_and_key_come_from_environment(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        health = {"status": "ok", "version": "1", "activeSessions": 0}
        return httpx2.Response(200, json={**health, "instance": "a", "mode": "active", "leases": []})

    monkeypatch.setenv("TENURE_URL", "https://tenure.example/api/v3/")
    monkeypatch.setenv("TENURE_KEY", KEY)
    with kind.entered(kind.client(transport=httpx2.MockTransport(answer))) as client:
        kind.run(client.health())
        kind.run(client.ready())
        kind.run(client.with_options(key=lambda: "other", headers={"X-Mine": "1"}).health())
    assert [str(request.url) for request in seen[:2]] == [
        "https://tenure.example/api/v3/health",
        "https://tenure.example/readyz",
    ]
    assert [request.headers["authorization"] for request in seen] == [f"Bearer {KEY}", f"Bearer {KEY}", "Bearer other"]
    assert seen[2].headers["x-mine"] == "1"
    with pytest.raises(errors.ConfigurationError):
        kind.client("tenure.example")
    with pytest.raises(TypeError):
        client.with_options(url="http://other")


def test_key_appears_in_no_output(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    def fail(_request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with kind.entered(kind.client(key=KEY, transport=httpx2.MockTransport(fail), max_retries=0)) as client:
        shown = [repr(client), repr(client.with_options(timeout=1)), repr(client._options), str(vars(client))]
        with pytest.raises(errors.NotSent) as raised:
            kind.run(client.health())
        error = raised.value
        shown += [repr(error), str(error), "".join(traceback.format_exception(error)), str(vars(error))]
        shown += ["".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())]
    created = models.CreatedKey(
        public_id="p",
        name="n",
        role="client",
        tenant_object_id=None,
        created_at=models.datetime.min,
        created_by="x",
        expires_at=None,
        last_used_at=None,
        revoked_at=None,
        key=KEY,
    )
    shown += [repr(created), caplog.text]
    assert [text for text in shown if KEY in text] == []
    with pytest.raises(errors.ConfigurationError) as refused:
        kind.client(key=KEY + "\n")
    assert KEY not in str(refused.value)


def test_child_process_does_not_use_connections_of_its_parent(tmp_path: Path, service: Any) -> None:
    """On a shared connection, each process could read responses to requests of the other process. The exit of the
    child must not close the connection of its parent.
    """
    with Client(service.url) as client:
        client.health()
        mine = client._shared.http()
        child = os.fork()
        if child == 0:
            theirs = client._shared.http()
            fresh = theirs is not mine and client.health().status == "ok"
            (tmp_path / "result").write_bytes(msgspec.json.encode(fresh))
            os._exit(0)
        os.waitpid(child, 0)
        assert (tmp_path / "result").read_bytes() == b"true"
        assert client._shared.http() is mine
        assert client.health().status == "ok"


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("-3", 0.0), ("nan", None), ("inf", None), ("soon", None), (None, None)]
)
def test_retry_after_is_a_finite_number_or_ignored(header: str | None, seconds: float | None) -> None:
    assert errors.seconds_of(header) == seconds
