"""`GET /events`: pages, long polls and Server-Sent Events."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tenure.access.caller import ANONYMOUS
from tenure.config import GatewayConfig
from tenure.domain.events import EventType
from tenure.domain.keys import Role, new_api_key
from tenure.domain.scope import Scope
from tenure.errors import DatabaseUnavailable
from tenure.http.pages import event_position_of
from tenure.telemetry.events import EventsDelayed
from tests.http.client import Json
from tests.http.local import LocalService, eventually
from tests.support.databases import Database
from tests.support.keys import OPERATOR, create_key
from tests.support.odd_receivers import http_response, odd_receiver

DOCS = Path(__file__).parents[2] / "docs"
SSE = {"accept": "text/event-stream"}


async def read(service: LocalService, query: str = "", **headers: str) -> Json:
    response = await service.http.get(f"/events?{query}", headers=headers)
    assert response.status_code == 200, response.text
    body: Json = response.json()
    assert body["count"] == len(body["events"])
    return body


async def latest(service: LocalService) -> str:
    # Wait longer than the pause between two moves of the horizon. Then the horizon is after all events up to now, and
    # none of them follows the cursor.
    await asyncio.sleep(0.3)
    return str((await read(service, "after=latest"))["nextCursor"])


@asynccontextmanager
async def following(service: LocalService, query: str = "", **headers: str) -> AsyncIterator[AsyncIterator[str]]:
    """Opens a connection with Server-Sent Events. Yields the lines that the instance sends."""
    async with service.http.stream("GET", f"/events?{query}", headers=SSE | headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream"
        assert "content-length" not in response.headers
        yield response.aiter_lines()


async def next_event(lines: AsyncIterator[str]) -> tuple[str, Json]:
    """The cursor and the content of the next event."""
    cursor = ""
    async with asyncio.timeout(20):
        async for line in lines:
            if line.startswith("id: "):
                cursor = line.removeprefix("id: ")
            elif line.startswith("data: "):
                return cursor, json.loads(line.removeprefix("data: "))
    raise AssertionError("the connection has ended")


async def test_pages_continue_at_next_cursor(own_local: LocalService) -> None:
    cursor = await latest(own_local)
    opened = [await own_local.open() for _ in range(3)]
    await own_local.http.delete(f"/sessions/{opened[0]['sessionId']}")
    seen: list[Json] = []
    while len(seen) < 4:
        page = await read(own_local, f"after={cursor}&limit=3&wait=5")
        assert len(page["events"]) <= 3
        seen += page["events"]
        cursor = page["nextCursor"]
    assert [event["type"] for event in seen] == ["session.opened"] * 3 + ["session.closed"]
    assert [event["sessionId"] for event in seen] == [*(each["sessionId"] for each in opened), opened[0]["sessionId"]]
    closed = seen[-1]
    ended = await own_local.get(closed["sessionId"])
    assert closed == {
        "id": f"{ended['sessionId']}-closed",
        "type": "session.closed",
        "at": ended["sessionEndUtc"],
        "sessionKind": ended["sessionKind"],
        "sessionStartUtc": ended["sessionStartUtc"],
        "closeReason": ended["closeReason"],
        **{name: ended[name] for name in ("sessionId", "userObjectId", "tenantObjectId", "capacityId")},
    }
    again = await read(own_local, f"after={cursor}")
    assert (again["events"], again["count"]) == ([], 0)
    assert again["nextCursor"]
    assert (await read(own_local))["events"][-4:] == seen, "without a cursor, the page starts 7 days ago"


async def test_long_poll_answers_as_soon_as_there_is_an_event(own_local: LocalService) -> None:
    cursor = await latest(own_local)
    waiting = asyncio.create_task(read(own_local, f"after={cursor}&wait=30&type=session.upgraded"))
    old = await own_local.open(sessionKind=1)
    same = {name: old[name] for name in ("userObjectId", "tenantObjectId", "capacityId")}
    new = await own_local.open(**same, sessionKind=3)
    async with asyncio.timeout(20):
        (event,) = (await waiting)["events"]
    assert (event["type"], event["sessionId"]) == ("session.upgraded", new["sessionId"])
    assert event["previousSessionId"] == old["sessionId"]


async def test_long_poll_ends_empty_after_wait(own_local: LocalService) -> None:
    cursor = await latest(own_local)
    page = await read(own_local, f"after={cursor}&wait=1")
    assert page["events"] == []
    assert event_position_of(page["nextCursor"]).at > event_position_of(cursor).at


async def test_sse_connection_sends_events_and_resumes_after_last_event_id(own_local: LocalService) -> None:
    cursor = await latest(own_local)
    async with following(own_local, f"after={cursor}") as lines:
        one = await own_local.open()
        first, event = await next_event(lines)
        assert event["sessionId"] == one["sessionId"]
        two = await own_local.open()
        _, event = await next_event(lines)
        assert event["sessionId"] == two["sessionId"]
    async with following(own_local, "after=latest", **{"last-event-id": first}) as lines:
        _, event = await next_event(lines)
        assert event["sessionId"] == two["sessionId"]
    await eventually(lambda: own_local.in_flight == 0)


async def test_followers_with_different_filters_get_the_same_event(own_local: LocalService) -> None:
    cursor = await latest(own_local)
    async with (
        following(own_local, f"after={cursor}") as all_lines,
        following(own_local, f"after={cursor}&type=session.closed") as closed_lines,
    ):
        one = await own_local.open()
        await own_local.http.delete(f"/sessions/{one['sessionId']}")
        assert (await next_event(all_lines))[1]["type"] == "session.opened"
        expected = await next_event(all_lines)
        assert await next_event(closed_lines) == expected
        assert own_local.instance.feed._followers == 2


async def test_idle_sse_connection_gets_keep_alive_with_position(
    own_local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.http.routes.events.KEEP_ALIVE_SECONDS", 0.2)
    async with following(own_local, "after=latest") as lines, asyncio.timeout(20):
        found = [await anext(lines) for _ in range(6)]
    assert found[0] == "retry: 1000"
    assert ": keep-alive" in found
    assert any(line.startswith("id: ") for line in found)


async def test_sse_connection_ends_when_instance_stops(own_local: LocalService) -> None:
    async with following(own_local, "after=latest") as lines:
        assert await anext(lines) == "retry: 1000"
        await own_local.instance.feed.stop()
        async with asyncio.timeout(20):
            assert [line async for line in lines if line.startswith("data")] == []
    response = await own_local.http.get("/events?after=latest&wait=30")
    assert response.status_code == 200, "after the feed has stopped, a long poll returns 200 at once"


async def test_sse_connection_ends_when_api_key_is_revoked(own_local: LocalService) -> None:
    key = new_api_key(Role.READER)
    await create_key(own_local.database.store, key, name="dashboard")
    await own_local.instance._authenticator.load()
    async with following(own_local, "after=latest", authorization=f"Bearer {key.text}") as lines:
        assert await anext(lines) == "retry: 1000"
        await own_local.database.store.revoke_key(key.public_id, OPERATOR)
        async with asyncio.timeout(20):
            assert [line async for line in lines if line.startswith("data")] == []
    await eventually(lambda: own_local.instance.pipeline.open_streams == set())


async def test_head_request_for_server_sent_events_returns_no_body(own_local: LocalService) -> None:
    response = await own_local.http.head("/events", headers=SSE)
    assert (response.status_code, response.content) == (200, b"")


async def test_caller_of_one_tenant_gets_events_of_that_tenant(
    own_local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = await latest(own_local)
    mine = await own_local.open()
    await own_local.open()
    caller = replace(ANONYMOUS, scope=Scope(tenant=mine["tenantObjectId"]))
    monkeypatch.setattr(own_local.instance.pipeline, "identify", lambda _headers: caller)
    monkeypatch.setattr("tenure.http.pipeline.authorise", lambda *_: None)
    page = await read(own_local, f"after={cursor}&wait=5")
    assert {event["sessionId"] for event in page["events"]} == {mine["sessionId"]}
    async with following(own_local, f"after={cursor}") as lines:
        assert (await next_event(lines))[1]["sessionId"] == mine["sessionId"]


@pytest.mark.parametrize(
    "query",
    ["after=forged", "after=", "wait=31", "wait=-1", "limit=0", "limit=501", "type=session.renewed", "since=1"],
)
async def test_invalid_queries_are_refused(any_local: LocalService, query: str) -> None:
    response = await any_local.http.get(f"/events?{query}")
    assert response.status_code == 400, response.text
    assert response.json()["errors"][0]["field"] == query.partition("=")[0]


async def test_forged_last_event_id_is_refused(any_local: LocalService) -> None:
    response = await any_local.http.get("/events", headers=SSE | {"last-event-id": "forged"})
    assert response.json()["errors"][0]["field"] == "Last-Event-ID"


async def test_gateway_gets_events_within_two_seconds(database: Database) -> None:
    """The settings are the defaults. Other programs may slow down single tries, so the median of five tries counts."""
    seconds = []
    async with odd_receiver(http_response("200 OK")) as receiver:
        hooks = {"hooks": GatewayConfig(url=receiver.address, events=("session.opened",))}
        local = LocalService.on(database, gateways=hooks)
        async with local.running():
            async with asyncio.timeout(30):
                while not await database.rows("SELECT 1 FROM event_subscriptions"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            for _ in range(5):
                session, began = await local.open(), time.monotonic()
                opened = session["sessionId"].encode()
                await eventually(lambda opened=opened: any(opened in body for body in receiver.bodies))
                seconds.append(time.monotonic() - began)
    assert sorted(seconds)[2] < 2, seconds


def test_every_event_type_is_documented() -> None:
    text = (DOCS / "events.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(session\.\w+)` \|", text, re.MULTILINE)
    assert documented == [each.value for each in EventType]


async def test_follower_that_falls_behind_events_in_memory_gets_every_event(
    own_local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.events.feed.HEAD_MAX", 2)
    monkeypatch.setattr("tenure.events.feed.PIECE_MAX", 1)
    cursor = await latest(own_local)
    async with following(own_local, f"after={cursor}") as lines:
        opened = [(await own_local.open())["sessionId"] for _ in range(9)]
        seen = [(await next_event(lines))[1]["sessionId"] for _ in opened]
    assert seen == opened


async def test_pages_and_long_polls_return_503_if_database_is_unavailable(
    own_local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = await latest(own_local)

    async def publish_events(_pause_microseconds: int) -> None:
        raise DatabaseUnavailable("the database is away")

    monkeypatch.setattr(own_local.database.store, "publish_events", publish_events)
    for query in (f"after={cursor}", f"after={cursor}&wait=1"):
        response = await own_local.http.get(f"/events?{query}")
        assert response.status_code == 503, (query, response.text)


async def test_delayed_feed_is_reported(own_local: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = await latest(own_local)
    monkeypatch.setattr("tenure.events.feed.DELAYED_SECONDS", 0.0)

    async def publish_events(_pause_microseconds: int) -> None:
        raise DatabaseUnavailable("the database is away")

    async with following(own_local, f"after={cursor}"):
        monkeypatch.setattr(own_local.database.store, "publish_events", publish_events)
        await eventually(lambda: bool(own_local.telemetry.of(EventsDelayed)))
