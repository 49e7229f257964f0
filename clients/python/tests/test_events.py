"""The feed of events, alerts, metrics and the audit log, against a real service. A mock returns the pages of alerts."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import httpx2
import pytest
from conftest import Kind, Service, ids

from tenure_client import Client, errors, models

RETRY_AFTER = 0.4


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """An instance for these tests only, because sessions of other tests would appear in the feed."""
    running = Service(tmp_path_factory.mktemp("events"))
    yield running
    running.kill()


class Network(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """The real transport, with failures. `plan` gets the number of a request (from 0), and returns its failure or None.

    `lost`: the response is lost. `refused`: the connection is refused. `busy`: the response is a 503 with Retry-After.
    """

    def __init__(self, plan: Callable[[int], str | None] = lambda _number: None) -> None:
        self._plan = plan
        self._numbers = count()
        self._sync = httpx2.HTTPTransport()
        self._async = httpx2.AsyncHTTPTransport()
        self.requests: list[httpx2.Request] = []
        self.failures: list[str] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        failure = self._begin(request)
        response = self._instead(failure) or self._sync.handle_request(request)
        if failure == "lost":
            response.read()
            raise httpx2.ReadError("lost")
        return response

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        failure = self._begin(request)
        response = self._instead(failure) or await self._async.handle_async_request(request)
        if failure == "lost":
            await response.aread()
            raise httpx2.ReadError("lost")
        return response

    def _begin(self, request: httpx2.Request) -> str | None:
        self.requests.append(request)
        failure = self._plan(next(self._numbers))
        if failure is not None:
            self.failures.append(failure)
        return failure

    def _instead(self, failure: str | None) -> httpx2.Response | None:
        if failure == "refused":
            raise httpx2.ConnectError("refused")
        if failure == "busy":
            return httpx2.Response(503, json={"code": "OVERLOADED"}, headers={"Retry-After": str(RETRY_AFTER)})
        return None

    def close(self) -> None:
        self._sync.close()

    async def aclose(self) -> None:
        await self._async.aclose()

    def close_with(self, kind: Kind) -> None:
        kind.run(self.aclose() if kind.is_async else self.close())


def stepwise(kind: Kind, follower: Any) -> Iterator[Any]:
    """Yield the items of a sync or async iteration, each when the test asks for it."""
    if not kind.is_async:
        yield from follower
        return
    iteration = follower.__aiter__()
    try:
        while True:
            yield kind.run(anext(iteration))
    finally:
        kind.run(iteration.aclose())


def make_events(url: str) -> tuple[str, list[models.Event]]:
    """Open, upgrade and end sessions. Return the cursor before their events, and the events."""
    with Client(url) as client:
        before = client.events.list(after="latest").next_cursor
        for _ in range(2):
            who = ids(kind=1)
            client.sessions.open(**who)
            client.sessions.end(client.sessions.open(**{**who, "kind": 2}).session_id)
        events: list[models.Event] = []
        cursor = before
        while len(events) < 8:
            page = client.events.list(after=cursor, wait=10)
            events += page.events
            cursor = page.next_cursor
        return before, events


def test_follower_yields_each_event_once_in_spite_of_failures(kind: Kind, service: Service) -> None:
    before, expected = make_events(service.url)
    assert [event.type for event in expected[:4]] == [
        "session.opened",
        "session.closed",
        "session.upgraded",
        "session.closed",
    ]
    assert expected[2].previous_session_id == expected[0].session_id
    assert (expected[1].close_reason, expected[1].session_start_utc) == ("UPGRADED", expected[0].at)
    network = Network({0: "refused", 2: "lost", 3: "lost", 5: "lost", 6: "refused"}.get)
    with kind.entered(kind.client(service.url, transport=network)) as client:
        following = stepwise(kind, client.events.follow(after=before, limit=3))
        followed = [next(following) for _ in expected]
        following.close()
        assert [event.id for event in followed] == [event.id for event in expected]
        assert network.failures == ["refused", "lost", "lost", "lost", "refused"]
        sent = len(network.requests)
        network.close_with(kind)
    assert len(network.requests) == sent, "a closed follower sends nothing"
    with Client(service.url) as other:
        for at, event in enumerate(followed):
            rest = [each.id for each in other.events.list(after=event.cursor).events]
            repeated = (at + 1) % 3 if at + 1 < len(expected) else 0
            assert rest[repeated:] == [each.id for each in expected[at + 1 :]]
        pages = other.events.follow(after=before, types=["session.closed", "session.upgraded"], limit=4).pages()
        page = next(pages)
        assert page.events == [expected[at] for at in (1, 2, 3, 5)]
        assert next(pages).events == expected[6:]


def test_follower_from_latest_gets_a_cursor_before_it_waits(kind: Kind, service: Service) -> None:
    """So the follower misses no event, even if the response to the first request that waits is lost."""
    opened: list[str] = []

    def plan(number: int) -> str | None:
        if number != 1:
            return None
        with Client(service.url) as other:
            opened.extend(other.sessions.open(**ids()).session_id for _ in range(2))
        return "lost"

    network = Network(plan)
    with kind.entered(kind.client(service.url, transport=network)) as client:
        following = stepwise(kind, client.events.follow(after="latest", types="session.opened"))
        followed = [next(following), next(following)]
        following.close()
        network.close_with(kind)
    assert [event.session_id for event in followed] == opened
    assert [request.url.params.get("after") == "latest" for request in network.requests][:3] == [True, False, False]
    with Client(service.url) as other:
        again = other.events.list(after=followed[0].cursor, type="session.opened")
        assert opened[1] in [event.session_id for event in again.events]


def test_follower_waits_for_retry_after_of_the_server(kind: Kind, service: Service) -> None:
    before, expected = make_events(service.url)
    times: list[float] = []

    def plan(number: int) -> str | None:
        times.append(client._options.clock.now())
        return "busy" if number == 0 else None

    network = Network(plan)
    with kind.entered(kind.client(service.url, transport=network)) as client:
        following = stepwise(kind, client.events.follow(after=before))
        assert next(following).id == expected[0].id
        following.close()
        network.close_with(kind)
    assert times[1] - times[0] >= RETRY_AFTER


def test_follower_raises_permanent_errors(kind: Kind, service: Service) -> None:
    network = Network()
    with kind.entered(kind.client(service.url, transport=network)) as client:
        for wrong in ({"after": "nonsense"}, {"types": ["session.started"]}, {"wait": 31, "after": "x"}):
            with pytest.raises(errors.Invalid):
                next(stepwise(kind, client.events.follow(**wrong)))
        network.close_with(kind)
    assert len(network.requests) == 3


def test_long_poll_has_a_timeout_that_is_longer_than_its_wait(kind: Kind, service: Service) -> None:
    before, expected = make_events(service.url)
    network = Network()
    with kind.entered(kind.client(service.url, transport=network, timeout=2, retry_budget=5)) as client:
        assert kind.run(client.events.list(after=before, wait=30)).events[0] == expected[0]
        next(following := stepwise(kind, client.events.follow(after=before, wait=20)))
        following.close()
        kind.run(client.events.list(after=before, type=["session.opened", "session.closed"]))
        network.close_with(kind)
    assert [request.extensions["timeout"]["read"] for request in network.requests] == [32, 22, 2]


def test_closing_the_client_ends_its_followers(kind: Kind, service: Service) -> None:
    """An async follower ends at once, a sync one when its current poll returns."""
    polls = threading.Event()
    closed = kind.client(service.url, on_response=lambda _answer: polls.set())
    followed: list[models.Event] = []
    if kind.is_async:

        async def follow() -> None:
            followed.extend([event async for event in closed.events.follow(after="latest", types="session.upgraded")])

        async def close() -> None:
            task = asyncio.create_task(follow())
            assert await asyncio.to_thread(polls.wait, 20)
            await closed.aclose()
            async with asyncio.timeout(20):
                await task

        kind.run(close())
    else:
        thread = threading.Thread(
            target=lambda: followed.extend(closed.events.follow(after="latest", types="session.upgraded", wait=1))
        )
        thread.start()
        assert polls.wait(20)
        closed.close()
        thread.join(20)
        assert not thread.is_alive()
    assert followed == []


def test_alerts_are_listed_by_page(kind: Kind, service: Service) -> None:
    with kind.entered(kind.client(service.url)) as client:
        assert kind.all(client.alerts.list(name="job-failing", subject="nothing", state="active", limit=1)) == []
        for wrong in ({"name": "fire"}, {"state": "open"}, {"cursor": "x"}, {"limit": 0}):
            with pytest.raises(errors.Invalid):
                kind.all(client.alerts.list(**wrong))

    def answer(request: httpx2.Request) -> httpx2.Response:
        is_first = "cursor" not in request.url.params
        alert = {
            "alertId": "1" if is_first else "2",
            "name": "clock-behind",
            "subject": None,
            "state": "cleared",
            "detail": "60 seconds",
            "raisedAt": "2026-01-01T00:00:00Z",
            "clearedAt": "2026-01-01T00:01:00Z",
        }
        return httpx2.Response(200, json={"alerts": [alert], "count": 1, "nextCursor": "c" if is_first else None})

    with kind.entered(kind.client("http://127.0.0.1:1", transport=httpx2.MockTransport(answer))) as client:
        alerts = kind.all(client.alerts.list(limit=1))
    assert [alert.alert_id for alert in alerts] == ["1", "2"]
    assert alerts[0].cleared_at == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)


def test_metrics_are_text(kind: Kind, service: Service) -> None:
    with kind.entered(kind.client(service.url)) as client:
        kind.run(client.sessions.open(**ids()))
        text = kind.run(client.metrics())
    assert "# TYPE tenure_sessions_opened_total counter\n" in text


def test_audit_entries_have_the_number_of_changes(kind: Kind, service: Service) -> None:
    with kind.entered(kind.client(service.url)) as client:
        capacity = ids()["capacity"]
        kind.run(client.capacities.set(capacity, max_sessions=1))
        (entry,) = kind.all(client.audit_log.list(target=capacity))
        assert entry.changes == 1
