"""`GET /instances`, `GET /activity`, and the names of instances."""

from datetime import datetime, timedelta
from itertools import pairwise

from tenure import __version__
from tenure.app import _report_of
from tenure.config import Config, LeasesConfig
from tests.http.client import Json, same_key
from tests.http.local import LocalService, eventually
from tests.support.databases import Database


async def instances(service: LocalService, **query: str) -> list[Json]:
    response = await service.http.get("/instances", params=query)
    assert response.status_code == 200, response.text
    found: list[Json] = response.json()["instances"]
    return found


async def test_instance_is_listed_with_its_leases_and_then_as_stopped(database: Database) -> None:
    async with LocalService.on(database).running() as service:
        holder = service.instance.ensemble.holder
        await eventually(lambda: service.instance.ensemble.trusts("submission-executor"))
        await service.instance._presence.save()
        (own,) = await instances(service)
        assert own["instance"] == holder
        assert (own["alive"], own["stoppedAt"], own["worker"], own["version"]) == (True, None, 0, __version__)
        assert holder.startswith(f"{own['host']}-{own['pid']}-")
        assert own["leads"] == ["submission-executor"]
        # The instance closes the store when it stops, so the test reads the row of the instance just before that.
        closing, rows = database.store.close, []

        async def read_and_close() -> None:
            rows.extend(await database.store.list_instances(None, 9))
            await closing()

        database.store.close = read_and_close  # type: ignore[method-assign]
    database.store.close = closing  # type: ignore[method-assign]
    assert [(row.instance, row.alive, row.stopped_at is not None, row.leads) for row in rows] == [
        (holder, False, True, [])
    ]


async def test_last_page_of_instances_has_no_cursor_and_malformed_cursor_is_refused(any_local: LocalService) -> None:
    await any_local.instance._presence.save()
    (own,) = await instances(any_local, limit="1")
    response = (await any_local.http.get("/instances", params={"limit": 1})).json()
    assert (response["count"], response["nextCursor"]) == (1, None)
    assert (await any_local.http.get("/instances", params={"cursor": "ä"})).status_code == 400
    assert own["leads"] is not None


async def test_activity_equals_requests_of_clients(database: Database) -> None:
    async with LocalService.on(database).running() as service:
        before = await activity(service)
        assert before["stepSeconds"] == 60
        assert len(before["points"]) in (60, 61)
        assert set(before["points"][0]["closed"]) == set()
        session = await service.open()
        await service.put(same_key(session))
        upgraded = (await service.put(same_key(session, sessionKind=2))).json()
        assert upgraded["status"] == "upgraded"
        capacity = session["capacityId"]
        await service.http.put(f"/capacities/{capacity}", json={"maxSessions": 1})
        refused = await service.put({**same_key(session), "userObjectId": capacity})
        assert refused.status_code == 429
        for _ in range(2):
            await service.http.post(f"/sessions/{upgraded['sessionId']}/heartbeat", json={})
        await service.http.delete(f"/sessions/{upgraded['sessionId']}")
        await service.http.post(f"/sessions/{upgraded['sessionId']}/heartbeat", json={})
        for _ in range(2):  # the second save must count nothing twice
            service.instance._activity.sample()
            await service.instance._activity.save()
        after = await activity(service, step="3600")
        names = set(after["points"][0]) - {"at", "closed"}
        sums = {name: sum(point[name] for point in after["points"]) for name in names}
        assert sums == {
            "opened": 1,
            "upgraded": 1,
            "existing": 1,
            "refused": 1,
            "heartbeats": 2,
            "lateHeartbeats": 1,
            "lapsed": 0,
        }
        assert [point["closed"] for point in after["points"] if point["closed"]] == [{"UPGRADED": 1, "TERMINATED": 1}]


async def activity(service: LocalService, **query: str) -> Json:
    response = await service.http.get("/activity", params=query)
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


async def test_activity_covers_the_given_span(any_local: LocalService) -> None:
    end = datetime.fromisoformat((await activity(any_local))["to"])
    from_at = (end - timedelta(days=7)).isoformat()
    week = await activity(any_local, **{"from": from_at, "step": "600"})
    assert len(week["points"]) in (1008, 1009)
    instants = [datetime.fromisoformat(point["at"]) for point in week["points"]]
    assert {later - earlier for earlier, later in pairwise(instants)} == {timedelta(minutes=10)}
    assert instants[0] <= datetime.fromisoformat(week["from"]) < instants[1]


async def test_activity_refuses_wrong_parameters(any_local: LocalService) -> None:
    day = "2026-11-01T00:00:00Z"
    for query, field in (
        ({"step": "30"}, "step"),
        ({"step": "90"}, "step"),
        ({"step": "86460"}, "step"),
        ({"from": "yesterday"}, "from"),
        ({"from": "2026-11-02T00:00:00Z", "to": day}, "from"),
        ({"from": "2026-10-01T00:00:00Z", "to": day}, "from"),
        ({"from": "0001-01-01T00:00:00Z", "to": "0001-01-01T01:00:00+05:00"}, "to"),
    ):
        response = await any_local.http.get("/activity", params=query)
        assert response.status_code == 400, query
        assert [error["field"] for error in response.json()["errors"]] == [field]


async def test_named_holder_gets_a_new_instance_name_at_every_start() -> None:
    config = Config(leases=LeasesConfig(holder="node-1"))
    first, second = (_report_of(config, "node-1", 0) for _ in range(2))
    assert first.holder == second.holder == "node-1"
    assert first.instance.startswith("node-1-")
    assert first.instance != second.instance
    assert _report_of(Config(), "host-7-abc", 0).instance == "host-7-abc"
