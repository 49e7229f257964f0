"""`POST /sessions/end`: an action that ends all selected sessions, in several requests if there are many sessions."""

import asyncio
from typing import Any

import pytest

from tenure.domain.keys import Role, new_api_key
from tenure.errors import DatabaseUnavailable
from tests.http.client import Json
from tests.http.local import LocalService
from tests.support.audit_log import entries
from tests.support.keys import create_key
from tests.support.open_requests import some_id


async def end(service: LocalService, key: str = "", **body: Any) -> Json:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = await service.http.post("/sessions/end", json=body, headers=headers)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    assert set(answer) == {"actionId", "ended", "totalEnded", "remaining", "exact", "done"}
    return answer


async def opened(service: LocalService, count: int, **fields: Any) -> list[str]:
    return [(await service.open(**fields))["sessionId"] for _ in range(count)]


async def reasons(service: LocalService, session_ids: list[str]) -> list[str | None]:
    return [(await service.get(session_id))["closeReason"] for session_id in session_ids]


async def changes(service: LocalService, action_id: str) -> list[tuple[str, int]]:
    found = [entry for entry in await entries(service.database.store) if entry.entry_id == action_id]
    return [(str(entry.detail), entry.changes) for entry in found]


async def test_action_ends_all_matching_sessions_in_several_requests(local: LocalService) -> None:
    capacity, tenant = some_id(), some_id()
    ids = await opened(local, 7, capacityId=capacity, tenantObjectId=tenant)
    others = await opened(local, 2, tenantObjectId=tenant)
    preview = await end(local, capacity=capacity, dryRun=True)
    assert preview == {"actionId": None, "ended": 0, "totalEnded": 0, "remaining": 7, "exact": True, "done": False}
    answers = [await end(local, capacity=capacity, limit=3)]
    action_id = answers[0]["actionId"]
    while not answers[-1]["done"]:
        answers.append(await end(local, capacity=capacity, limit=3, actionId=action_id.upper()))
    assert [(each["ended"], each["totalEnded"], each["remaining"]) for each in answers] == [
        (3, 3, 4),
        (3, 6, 1),
        (1, 7, 0),
    ]
    assert set(await reasons(local, ids)) == {"TERMINATED"}
    assert set(await reasons(local, others)) == {None}
    assert await changes(local, action_id) == [(f"capacity {capacity}", 7)]
    again = await end(local, capacity=capacity, actionId=action_id)
    assert (again["ended"], again["totalEnded"], again["done"]) == (0, 7, True)
    assert (await local.http.post("/sessions/end", json={"capacity": capacity, "dryRun": True})).json()["done"] is True


async def test_filters_and_ids_select_sessions(local: LocalService) -> None:
    tenant = some_id()
    premium = await opened(local, 2, tenantObjectId=tenant, sessionKind=3)
    basic = await local.open(tenantObjectId=tenant)
    active = (await local.open(tenantObjectId=tenant))["sessionId"]
    await local.http.post(f"/sessions/{active}/heartbeat", json={"active": True})
    assert (await end(local, tenant=tenant, kind=3))["ended"] == 2
    assert (await end(local, tenant=tenant, state="active"))["ended"] == 1
    assert (await end(local, tenant=tenant, sessionIds=[basic["sessionId"].upper()], kind=2))["ended"] == 0
    selected = await end(local, sessionIds=[basic["sessionId"], *premium, some_id()])
    assert (selected["ended"], selected["done"]) == (1, True)
    assert await changes(local, selected["actionId"]) == [("selected sessions", 1)]
    assert set(await reasons(local, [*premium, basic["sessionId"], active])) == {"TERMINATED"}
    user = await local.open(tenantObjectId=tenant)
    assert (await end(local, user=user["userObjectId"]))["ended"] == 1


async def test_selected_sessions_are_ended_in_several_requests_of_one_action(local: LocalService) -> None:
    ids, action_id = await opened(local, 5), some_id()
    first = await end(local, sessionIds=ids[:3], limit=2, actionId=action_id)
    assert (first["ended"], first["remaining"], first["exact"], first["done"]) == (2, 1, True, False)
    assert (await end(local, sessionIds=ids[:3], dryRun=True))["remaining"] == 1
    second = await end(local, sessionIds=ids[:3], limit=2, actionId=action_id)
    assert (second["ended"], second["done"]) == (1, True)
    third = await end(local, sessionIds=ids[3:], actionId=action_id)
    assert (third["ended"], third["totalEnded"]) == (2, 5)
    assert await changes(local, action_id) == [("selected sessions", 5)]


async def test_sessions_opened_during_the_action_are_not_ended(local: LocalService) -> None:
    """Otherwise the action might never be done, because clients open their sessions again."""
    capacity = some_id()
    await local.move_to("2030-01-01T00:00:00Z")
    await opened(local, 4, capacityId=capacity)
    await local.move_to("2030-01-01T00:00:01Z")
    answer = await end(local, capacity=capacity, limit=2)
    await local.move_to("2030-01-01T00:00:02Z")
    new = await opened(local, 3, capacityId=capacity)
    answer = await end(local, capacity=capacity, actionId=answer["actionId"])
    assert (answer["ended"], answer["totalEnded"], answer["remaining"], answer["done"]) == (2, 4, 0, True)
    assert set(await reasons(local, new)) == {None}


async def test_lost_answer_is_recovered_by_repeating_the_request(
    local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database commits each transaction, but its answer is lost on the way to the instance."""
    tenant, action_id = some_id(), some_id()
    ids = await opened(local, 6, tenantObjectId=tenant)
    store: Any = local.database.store
    carry_out = store.end_matching

    async def lose(*arguments: Any) -> Any:
        await carry_out(*arguments)
        raise DatabaseUnavailable("the answer was lost")

    monkeypatch.setattr(store, "end_matching", lose)
    body = {"tenant": tenant, "limit": 2, "actionId": action_id}
    for _ in range(2):
        assert (await local.http.post("/sessions/end", json=body)).status_code == 503
    monkeypatch.setattr(store, "end_matching", carry_out)
    answer = await end(local, **body)
    assert (answer["ended"], answer["totalEnded"], answer["done"]) == (2, 6, True)
    assert await changes(local, action_id) == [(f"tenant {tenant}", 6)]
    assert set(await reasons(local, ids)) == {"TERMINATED"}


async def test_concurrent_callers_with_one_action_end_each_session_once(local: LocalService) -> None:
    capacity, action_id = some_id(), some_id()
    await opened(local, 120, capacityId=capacity)

    async def repeat() -> int:
        ended = 0
        while True:
            answer = await end(local, capacity=capacity, actionId=action_id, limit=20)
            ended += answer["ended"]
            if answer["done"]:
                return ended

    assert sum(await asyncio.gather(*(repeat() for _ in range(3)))) == 120
    assert await changes(local, action_id) == [(f"capacity {capacity}", 120)]


async def test_request_requires_a_selection_and_refuses_the_action_id_of_another_selection(local: LocalService) -> None:
    wrong: list[tuple[Json, str]] = [
        ({}, "all"),
        ({"all": False}, "all"),
        ({"all": True, "kind": 1}, "all"),
        ({"all": True, "sessionIds": [some_id()]}, "all"),
        ({"sessionIds": []}, "sessionIds"),
        ({"sessionIds": [some_id()] * 501}, "sessionIds"),
        ({"all": True, "limit": 501}, "limit"),
        ({"kind": 4}, "kind"),
        ({"state": "closed"}, "state"),
        ({"all": True, "actionId": "x"}, "actionId"),
    ]
    for body, field in wrong:
        response = await local.http.post("/sessions/end", json=body)
        assert response.status_code == 400, body
        assert field in response.json()["errors"][0]["field"], body
    tenant = some_id()
    await opened(local, 1, tenantObjectId=tenant)
    answer = await end(local, tenant=tenant)
    reused = await local.http.post("/sessions/end", json={"kind": 1, "actionId": answer["actionId"]})
    assert (reused.status_code, reused.json()["errors"][0]["field"]) == (400, "actionId")


async def test_operator_of_a_tenant_ends_sessions_of_the_tenant_only(own_local: LocalService) -> None:
    tenant = some_id()
    ours, theirs = await opened(own_local, 2, tenantObjectId=tenant), await opened(own_local, 2)
    keys = {name: new_api_key(Role.OPERATOR) for name in ("all", "bound")}
    for name, key in keys.items():
        bound = tenant if name == "bound" else None
        await create_key(own_local.database.store, key, name=name, tenant_object_id=bound)
    await own_local.instance._authenticator.refresh()
    own_local.http.headers["Authorization"] = f"Bearer {keys['all'].text}"
    answer = await end(own_local, keys["bound"].text, all=True)
    assert (answer["ended"], answer["done"]) == (2, True)
    assert (await end(own_local, keys["bound"].text, sessionIds=theirs))["ended"] == 0
    assert (await reasons(own_local, ours), await reasons(own_local, theirs)) == (["TERMINATED"] * 2, [None] * 2)
    (entry,) = [each for each in await entries(own_local.database.store) if each.entry_id == answer["actionId"]]
    assert (entry.subject, entry.detail) == (keys["bound"].public_id, f"tenant {tenant}")
    # Another caller cannot continue the action.
    body = {"tenant": tenant, "actionId": answer["actionId"]}
    assert (await own_local.http.post("/sessions/end", json=body)).status_code == 400
