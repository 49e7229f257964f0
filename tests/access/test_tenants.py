"""A caller whose credential is bound to a tenant can neither see nor change the data of other tenants."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import msgspec
from sqlalchemy import event

from tenure.access.caller import Caller, CallerKind
from tenure.domain.keys import Role, new_api_key
from tenure.domain.scope import Scope
from tests.access.conftest import bearer, serving
from tests.http.client import Json, open_body
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.keys import create_key
from tests.support.open_requests import some_id
from tests.support.streams import Client


class Tenant(NamedTuple):
    """A tenant with a live session, an ended one, a bound capacity and a submission, and the keys of its callers."""

    tenant: str
    keys: dict[str, str]
    live: Json
    ended: Json
    capacity: str
    submission: str

    @property
    def secrets(self) -> set[str]:
        """The values that another tenant must not see."""
        ids = {self.tenant, self.capacity, self.submission}
        return ids | {each[name] for each in (self.live, self.ended) for name in ("sessionId", "userObjectId")}


class Service(NamedTuple):
    local: LocalService
    operator: str
    ours: Tenant
    theirs: Tenant

    async def send(self, key: str, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return await self.local.http.request(method, path, json=body, headers={"Authorization": key, **headers})


async def made(service: LocalService, database: Database, operator: str, shared: str) -> Tenant:
    tenant, capacity = some_id(), some_id()
    keys = {role.value: new_api_key(role) for role in Role}
    for role, key in keys.items():
        # The names differ, because at most two live API keys may have the same name, even if their tenants differ.
        await create_key(database.store, key, name=f"{role} {tenant[:4]}", tenant_object_id=tenant)
    callers = {role: bearer(key) for role, key in keys.items()}

    async def sent(key: str, method: str, path: str, body: Any = None, **headers: str) -> Json:
        response = await service.http.request(method, path, json=body, headers={"Authorization": key, **headers})
        assert response.status_code < 300, response.text
        return response.json()  # type: ignore[no-any-return]

    await sent(operator, "PUT", f"/capacities/{capacity}", {"maxSessions": 5, "tenantObjectId": tenant})
    live, ended = [
        await sent(callers["client"], "PUT", "/sessions", open_body(tenantObjectId=tenant, capacityId=each))
        for each in (capacity, shared)
    ]
    ended = await sent(callers["client"], "DELETE", f"/sessions/{ended['sessionId']}")
    body = {"gateway": "crm", "payload": {}}
    posted = await sent(callers["operator"], "POST", "/submissions", body, **{"Idempotency-Key": "a"})
    return Tenant(tenant, callers, live, ended, capacity, posted["submissionId"])


@asynccontextmanager
async def two_tenants(database: Database) -> AsyncIterator[Service]:
    key = new_api_key(Role.OPERATOR)
    await create_key(database.store, key, name="all")
    shared = some_id()
    async with serving(database) as service:
        tenants = [await made(service, database, bearer(key), shared) for _ in range(2)]
        yield Service(service, bearer(key), *tenants)


def comparable(response: httpx.Response, *ids: str) -> tuple[int, str, list[tuple[str, str]]]:
    """The parts of the response that must not depend on the tenant of a resource: all except the date, the request id,
    the ids that the request contains, and the content length, which depends on these ids.
    """
    text, headers = response.text, response.headers
    for each in (*ids, headers["x-request-id"]):
        text = text.replace(each, "<id>")
    left = [(name, value) for name, value in headers.items() if name not in ("date", "x-request-id", "content-length")]
    return response.status_code, text, left


SESSION_REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/sessions/{id}", None),
    ("POST", "/sessions/{id}/heartbeat", {"active": True}),
    ("POST", "/sessions/heartbeats", {"sessionIds": ["{id}"]}),
    ("DELETE", "/sessions/{id}", None),
]
CAPACITY_REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/capacities/{id}", None),
    ("PUT", "/capacities/{id}", {"maxSessions": 1}),
    ("DELETE", "/capacities/{id}", None),
]


def about(requests: Iterable[tuple[str, str, Any]], subject: str) -> Iterable[tuple[str, str, Any]]:
    for method, path, body in requests:
        filled = msgspec.json.decode(msgspec.json.encode(body).replace(b"{id}", subject.encode()))
        yield method, path.replace("{id}", subject), filled


async def test_resources_of_other_tenants_are_not_found(database: Database) -> None:
    async with two_tenants(database) as service:
        key, theirs, unknown = service.ours.keys["operator"], service.theirs, some_id()
        await service.send(service.operator, "PUT", f"/capacities/{(unbound := some_id())}", {"maxSessions": 3})
        foreign = [
            *((SESSION_REQUESTS, theirs.live["sessionId"]), (SESSION_REQUESTS, theirs.ended["sessionId"])),
            *((CAPACITY_REQUESTS, theirs.capacity), (CAPACITY_REQUESTS, unbound)),
        ]
        for requests, subject in foreign:
            for given, same in zip(about(requests, subject), about(requests, unknown), strict=True):
                answers = [await service.send(key, *each) for each in (given, same)]
                shown = [comparable(each, subject, unknown) for each in answers]
                assert shown[0] == shown[1], given
                assert shown[0][0] in (404, 200), given  # heartbeats of a list: always 200
        # Nothing of the other tenant has changed.
        kept = (await service.send(service.operator, "GET", f"/sessions/{theirs.live['sessionId']}")).json()
        assert kept.items() >= {name: theirs.live[name] for name in kept}.items()
        capacity = (await service.send(service.operator, "GET", f"/capacities/{theirs.capacity}")).json()
        assert capacity["maxSessions"] == 5
        targets = (await service.send(service.operator, "GET", "/audit-log?limit=500")).json()["entries"]
        own = {each["subject"] for each in targets if each["target"] in theirs.secrets}
        assert key.split("_")[2] not in own


async def test_own_resources_can_be_read_and_changed(database: Database) -> None:
    async with two_tenants(database) as service:
        ours = service.ours
        for requests, subject in ((SESSION_REQUESTS, ours.live["sessionId"]), (CAPACITY_REQUESTS, ours.capacity)):
            for request in about(requests, subject):
                response = await service.send(ours.keys["operator"], *request)
                assert response.status_code == 200, (request, response.text)
        path = f"/capacities/{ours.capacity}"
        assert (await service.send(ours.keys["operator"], "PUT", path, {})).status_code == 404  # deleted above


async def test_changed_capacity_keeps_its_tenant(sqlite_database: Database) -> None:
    async with two_tenants(sqlite_database) as service:
        ours, path = service.ours, f"/capacities/{service.ours.capacity}"
        for body, status in (({"maxSessions": 1}, 200), ({"tenantObjectId": ours.tenant.upper()}, 200)):
            response = await service.send(ours.keys["operator"], "PUT", path, body)
            assert (response.status_code, response.json()["tenantObjectId"]) == (status, ours.tenant)
        stolen = await service.send(ours.keys["operator"], "PUT", path, {"tenantObjectId": service.theirs.tenant})
        assert (stolen.status_code, stolen.json()["code"]) == (403, "FORBIDDEN")


async def test_lists_counts_sums_and_cursors_show_the_own_tenant_only(database: Database) -> None:
    async with two_tenants(database) as service:
        ours, theirs = service.ours, service.theirs
        key = ours.keys["reader"]

        async def read(path: str) -> Json:
            response = await service.send(key, "GET", path)
            assert response.status_code == 200, (path, response.text)
            shown = [each for each in theirs.secrets if each in response.text + str(response.headers)]
            assert shown == [], path
            return response.json()  # type: ignore[no-any-return]

        assert (await read("/sessions"))["count"] == 2
        assert (await read("/capacities"))["count"] == 1
        for path in ("/sessions?tenant=", "/capacities?tenant="):
            empty = await service.send(key, "GET", f"{path}{theirs.tenant}")
            assert (empty.json()["count"], empty.json()["nextCursor"]) == (0, None)
        for name, value in (("user", theirs.live["userObjectId"]), ("capacity", theirs.capacity)):
            assert (await service.send(key, "GET", f"/sessions?{name}={value}")).json()["count"] == 0
        counts = await read("/sessions/metrics")
        assert counts.keys() == {"activeSessions", "totalSessions", "activeByKind", "activeByState"}
        assert (counts["activeSessions"], counts["totalSessions"]) == (1, 2)
        assert (await read("/health"))["activeSessions"] == 1
        for group_by in ("tenant", "capacity", "user", "kind", "session"):
            groups = (await read(f"/usage?groupBy={group_by}"))["groups"]
            assert sum(group["sessions"] for group in groups) == 2
        assert (await read("/usage"))["groups"][0]["sessions"] == 2
        other = await service.send(key, "GET", f"/usage?groupBy=session&tenant={theirs.tenant}")
        assert other.json()["groups"] == []
        # The cursors come from pages that show all tenants.
        for path in ("/sessions?limit=1", "/capacities?limit=1", "/usage?groupBy=session&limit=1"):
            cursor = (await service.send(service.operator, "GET", path)).json()["nextCursor"]
            await read(f"{path}&cursor={cursor}")


async def test_sessions_are_opened_for_the_own_tenant_only(database: Database) -> None:
    async with two_tenants(database) as service:
        ours, theirs = service.ours, service.theirs
        key = ours.keys["client"]
        response = await service.send(key, "PUT", "/sessions", open_body(tenantObjectId=theirs.tenant))
        assert (response.status_code, response.json()["code"]) == (403, "FORBIDDEN")
        # The refusal is the same for a capacity of another tenant and for a key whose live session belongs to another
        # tenant.
        shared = await service.send(service.operator, "PUT", "/sessions", open_body())
        taken = {name: shared.json()[name] for name in ("userObjectId", "capacityId")}
        refused = [
            await service.send(key, "PUT", "/sessions", open_body(tenantObjectId=ours.tenant, **given))
            for given in ({"capacityId": theirs.capacity}, taken)
        ]
        assert comparable(refused[0]) == comparable(refused[1])
        assert refused[0].status_code == 403
        # The Retry-After of a full capacity does not depend on the sessions of other tenants.
        full = some_id()
        await service.send(service.operator, "PUT", f"/capacities/{full}", {"maxSessions": 1})
        for tenant in (theirs, ours):
            body = open_body(tenantObjectId=tenant.tenant, capacityId=full)
            limited = await service.send(tenant.keys["client"], "PUT", "/sessions", body)
        assert (limited.status_code, limited.headers["retry-after"]) == (429, "5")
        assert not any(each in limited.text for each in theirs.secrets)


async def test_submissions_of_others_are_forbidden(database: Database) -> None:
    async with two_tenants(database) as service:
        key = service.ours.keys["operator"]
        for method, action in (("GET", ""), ("POST", "/retry"), ("POST", "/cancel")):
            own = await service.send(key, method, f"/submissions/{service.ours.submission}{action}")
            assert own.status_code == 200, own.text
            answers = [
                await service.send(key, method, f"/submissions/{each}{action}")
                for each in (service.theirs.submission, some_id(), "x")
            ]
            assert len({str(comparable(each)) for each in answers}) == 1
            assert answers[0].status_code == 403
        theirs = await service.send(service.operator, "GET", f"/submissions/{service.theirs.submission}")
        assert theirs.json()["state"] == "pending"


async def test_keys_with_same_name_of_two_tenants_do_not_share_submissions(sqlite_database: Database) -> None:
    keys = {some_id(): new_api_key(Role.CLIENT) for _ in range(2)}
    for tenant, key in keys.items():
        await create_key(sqlite_database.store, key, name="web", tenant_object_id=tenant)
    async with serving(sqlite_database) as service:
        ids = set()
        for tenant, key in keys.items():
            headers = {"Authorization": bearer(key), "Idempotency-Key": "a"}
            body = {"gateway": "crm", "payload": tenant}
            response = await service.http.post("/submissions", json=body, headers=headers)
            assert response.status_code == 202, response.text
            ids.add(response.json()["submissionId"])
        assert len(ids) == 2


async def test_streams_of_foreign_sessions_are_refused_like_unknown_ones(sqlite_database: Database) -> None:
    async with two_tenants(sqlite_database) as service:
        header = f"Authorization: {service.ours.keys['client']}"

        async def attach(session_id: str) -> tuple[str, int | None]:
            client = await Client.connect(service.local.port, f"/sessions/{session_id}/stream", header)
            (message,), _ = await client.read_to_end()
            return str(message).replace(session_id, "<id>"), client.close_code

        assert await attach(service.theirs.live["sessionId"]) == await attach(some_id())
        client = await Client.connect(service.local.port, "/sessions/stream", header)
        await client.send(msgspec.json.encode({"type": "open", **open_body()}).decode())
        (message,), _ = await client.read_to_end()
        assert (msgspec.json.decode(message)["code"], client.close_code) == ("FORBIDDEN", 1008)
        path = f"/sessions/{service.ours.live['sessionId']}/stream"
        own = await Client.connect(service.local.port, path, header)
        assert (await own.receive_start())["sessionId"] == service.ours.live["sessionId"]
        own.disconnect()


async def test_foreign_and_unknown_ids_need_the_same_statements(sqlite_database: Database) -> None:
    """The number and the kind of the look-ups must not reveal that a foreign id exists."""
    async with two_tenants(sqlite_database) as service:
        store: Any = sqlite_database.store
        sent: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            sent.append(statement)

        engines = [each.engine for each in (store._writer, store._readers)]
        for engine in engines:
            event.listen(engine, "before_cursor_execute", note)

        async def statements(request: tuple[str, str, Any]) -> list[str]:
            await service.send(key, *request)  # fills the cache of keys
            sent.clear()
            await service.send(key, *request)
            return [each for each in sent if "capacities" in each or "sessions" in each]

        key, theirs, unknown = service.ours.keys["operator"], service.theirs, some_id()
        try:
            sessions = (SESSION_REQUESTS, theirs.live["sessionId"])
            for requests, subject in (sessions, (CAPACITY_REQUESTS, theirs.capacity)):
                for foreign, absent in zip(about(requests, subject), about(requests, unknown), strict=True):
                    found = await statements(foreign)
                    assert found == await statements(absent), foreign
                    assert found, foreign
        finally:
            for engine in engines:
                event.remove(engine, "before_cursor_execute", note)


async def test_requests_of_two_tenants_in_one_batch_get_their_own_results(database: Database) -> None:
    async with two_tenants(database) as service:
        path = f"/sessions/{service.theirs.live['sessionId']}"
        keys = (service.ours.keys["operator"], service.theirs.keys["operator"], service.operator)
        for method, end, expected in (("POST", "/heartbeat", [404, 200, 200]), ("DELETE", "", [404, 200, 200])):
            answers = await asyncio.gather(*(service.send(key, method, path + end) for key in keys * 4))
            assert [answer.status_code for answer in answers] == expected * 4


async def test_caller_bound_to_user_acts_for_that_user_only(sqlite_database: Database) -> None:
    """An OIDC token with the role `client`, for example, binds its caller to a tenant and a user."""
    async with two_tenants(sqlite_database) as service:
        ours = service.ours
        user = ours.live["userObjectId"]
        bound = Caller(CallerKind.OIDC, "s", "s", Role.CLIENT, Scope(ours.tenant, user))
        identify = service.local.instance.pipeline.identify
        service.local.instance.pipeline.identify = lambda headers: replaced(identify, headers)

        def replaced(identify: Callable[[Any], Any], headers: Any) -> Any:
            return bound if (b"authorization", b"token") in headers else identify(headers)

        body = open_body(tenantObjectId=ours.tenant)
        assert (await service.send("token", "PUT", "/sessions", body)).status_code == 403
        own = await service.send("token", "PUT", "/sessions", {**body, "userObjectId": user})
        assert own.status_code == 201
        listed = (await service.send("token", "GET", "/sessions")).json()["sessions"]
        assert {each["userObjectId"] for each in listed} == {user}
        for session_id, status in ((ours.live["sessionId"], 200), (ours.ended["sessionId"], 404)):
            assert (await service.send("token", "GET", f"/sessions/{session_id}")).status_code == status
