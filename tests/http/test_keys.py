"""The routes of API keys and of the audit log, on every engine, without the rest of a service."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tenure.access.caller import Caller, CallerKind
from tenure.config import HttpConfig
from tenure.domain.audit_log import AuditFilter
from tenure.domain.keys import Role, parse_key
from tenure.http.edge import Edge
from tenure.http.pipeline import Pipeline
from tenure.http.routes.audit_log import AuditLogRoutes
from tenure.http.routes.keys import CreatedKeyAnswer, KeyRoutes
from tests.http.client import RawResponse
from tests.http.local import call, http_scope
from tests.support.databases import Database
from tests.support.open_requests import NOON, some_id
from tests.support.telemetry import RecordedTelemetry

OPERATOR = Caller(CallerKind.KEY, "4fJ0aQz81LmN", "console", Role.OPERATOR)
JSON = (b"content-type", b"application/json")


class KeyService:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.telemetry = RecordedTelemetry()
        self.rereads = 0
        table = [
            *KeyRoutes(database.store, "/api", self._reread).routes(),
            *AuditLogRoutes(database.store, "/api").routes(),
        ]
        self._pipeline = Pipeline(
            table, "/api", lambda _headers: OPERATOR, Edge(HttpConfig(), "127.0.0.1", self.telemetry), self.telemetry
        )

    async def _reread(self) -> None:
        self.rereads += 1

    async def send(self, method: str, path: str, query: str = "", body: Any = None) -> RawResponse:
        message = {"type": "http.request", "body": b"" if body is None else msgspec.json.encode(body)}
        return await call(self._pipeline, http_scope(method, f"/api{path}", query.encode(), JSON), message)

    async def json(self, method: str, path: str, query: str = "", body: Any = None, status: int = 200) -> Any:
        response = await self.send(method, path, query, body)
        assert response.status == status, response.body
        return msgspec.json.decode(response.body)

    async def create(self, **fields: Any) -> Any:
        return await self.json("POST", "/keys", body={"name": "web", "role": "client", **fields}, status=201)


@pytest.fixture
async def keys(database: Database) -> KeyService:
    await database.clock.set(NOON)
    return KeyService(database)


async def test_create_returns_key_once(keys: KeyService) -> None:
    made = await keys.create()
    key = parse_key(made.pop("key"))
    assert key is not None
    assert made == {
        "publicId": key.public_id,
        "name": "web",
        "role": "client",
        "tenantObjectId": None,
        "createdAt": "2041-03-01T12:00:00.123456Z",
        "createdBy": "4fJ0aQz81LmN",
        "expiresAt": None,
        "lastUsedAt": None,
        "revokedAt": None,
    }
    page = await keys.json("GET", "/keys")
    assert page == {"keys": [made], "count": 1, "nextCursor": None}
    stored = await keys.database.store.find_key(key.public_id)
    assert stored is not None
    assert stored.digest == key.digest


async def test_keys_are_read_again_after_each_change(keys: KeyService) -> None:
    made = await keys.create()
    assert keys.rereads == 1
    await keys.json("DELETE", f"/keys/{made['publicId']}")
    assert keys.rereads == 2


async def test_response_with_key_must_not_be_cached(keys: KeyService) -> None:
    response = await keys.send("POST", "/keys", body={"name": "web", "role": "client"})
    assert response.headers["cache-control"] == "no-store"


async def test_create_stores_role_and_expiry(keys: KeyService) -> None:
    made = await keys.create(role="reader", expiresAt="2041-03-02T01:00:00+01:00")
    assert (made["role"], made["expiresAt"]) == ("reader", "2041-03-02T00:00:00.000000Z")


async def test_create_binds_key_to_tenant(keys: KeyService) -> None:
    tenant = some_id()
    made = await keys.create(role="client", tenantObjectId=tenant.upper())
    assert made["tenantObjectId"] == tenant


async def test_create_names_every_wrong_field(keys: KeyService) -> None:
    body = {"name": " web", "role": "admin", "tenantObjectId": "x", "expiresAt": "2041-03-02T00:00:00", "secret": 1}
    problem = await keys.json("POST", "/keys", body=body, status=400)
    fields = [error["field"] for error in problem["errors"]]
    assert sorted(fields) == ["expiresAt", "name", "role", "secret", "tenantObjectId"]


async def test_create_refuses_instants_that_have_passed(keys: KeyService) -> None:
    past = NOON.isoformat()
    body = {"name": "web", "role": "client", "expiresAt": past, "othersExpireAt": past}
    problem = await keys.json("POST", "/keys", body=body, status=400)
    assert problem["errors"] == [
        {"field": field, "message": "must be in the future"} for field in ("expiresAt", "othersExpireAt")
    ]


async def test_create_refuses_third_live_key_of_name(keys: KeyService) -> None:
    for _ in range(2):
        await keys.create()
    problem = await keys.json("POST", "/keys", body={"name": "web", "role": "client"}, status=409)
    assert problem["code"] == "KEY_NAME_TAKEN"


async def test_rotation_lets_other_key_expire(keys: KeyService) -> None:
    old = await keys.create()
    await keys.create(othersExpireAt=(NOON + timedelta(hours=1)).isoformat())
    found = await keys.database.store.find_key(old["publicId"])
    assert found is not None
    assert found.expires_at == NOON + timedelta(hours=1)


async def test_list_follows_cursor_and_filters_by_name(keys: KeyService) -> None:
    made = {(await keys.create(name=f"name-{number}"))["publicId"] for number in range(3)}
    first = await keys.send("GET", "/keys", "limit=2")
    page = msgspec.json.decode(first.body)
    assert first.headers["link"].startswith("</api/keys?limit=2&cursor=")
    rest = await keys.json("GET", "/keys", f"limit=2&cursor={page['nextCursor']}")
    assert {key["publicId"] for key in page["keys"] + rest["keys"]} == made
    assert rest["nextCursor"] is None
    assert [key["name"] for key in (await keys.json("GET", "/keys", "name=name-1"))["keys"]] == ["name-1"]


async def test_list_refuses_forged_cursor(keys: KeyService) -> None:
    for cursor in ("x", "YQ", "!!!"):
        await keys.json("GET", "/keys", f"cursor={cursor}", status=400)


async def test_revoke_can_be_repeated_and_is_recorded_once(keys: KeyService) -> None:
    public_id = (await keys.create())["publicId"]
    revoked = await keys.json("DELETE", f"/keys/{public_id}")
    assert revoked["revokedAt"] == "2041-03-01T12:00:00.123456Z"
    assert await keys.json("DELETE", f"/keys/{public_id}") == revoked
    entries = await keys.database.store.list_audit_log(AuditFilter(action="key.revoked"), None, 9)
    assert [(entry.subject, entry.name, entry.target) for entry in entries] == [("4fJ0aQz81LmN", "console", public_id)]


@pytest.mark.parametrize("public_id", ["aaaaaaaaaaaa", "x", "%00", "é" * 12])
async def test_revoke_of_unknown_key_returns_404(keys: KeyService, public_id: str) -> None:
    await keys.json("DELETE", f"/keys/{public_id}", status=404)


async def test_audit_log_lists_entries_in_pages_newest_first(keys: KeyService) -> None:
    public_id = (await keys.create())["publicId"]
    await keys.database.clock.set(NOON + timedelta(seconds=1))
    await keys.json("DELETE", f"/keys/{public_id}")
    page = await keys.json("GET", "/audit-log", "limit=1")
    (entry,) = page["entries"]
    assert entry.pop("entryId")
    assert entry.pop("requestId")
    assert entry == {
        "at": "2041-03-01T12:00:01.123456Z",
        "subject": "4fJ0aQz81LmN",
        "name": "console",
        "action": "key.revoked",
        "target": public_id,
        "detail": None,
        "changes": 1,
    }
    rest = await keys.json("GET", "/audit-log", f"limit=1&cursor={page['nextCursor']}")
    assert [each["action"] for each in rest["entries"]] == ["key.created"]
    assert rest["nextCursor"] is None


async def test_audit_log_applies_filters(keys: KeyService) -> None:
    public_id = (await keys.create())["publicId"]
    await keys.create()
    for query, count in {
        f"target={public_id}": 1,
        "action=key.created": 2,
        "action=key.revoked": 0,
        "subject=4fJ0aQz81LmN": 2,
        "subject=someone": 0,
        "from=2041-03-01T12:00:00.123456Z": 2,
        "to=2041-03-01T12:00:00.123456Z": 0,
    }.items():
        assert (await keys.json("GET", "/audit-log", query))["count"] == count, query


async def test_audit_log_refuses_wrong_filters(keys: KeyService) -> None:
    for query in ("action=key.eaten", "from=today", "from=0001-01-01T00:00:00%2B01:00", "subject=", "who=me"):
        await keys.json("GET", "/audit-log", query, status=400)


async def test_answer_with_key_has_no_secret_in_repr(keys: KeyService) -> None:
    made = await keys.create()
    answer = msgspec.convert(made, CreatedKeyAnswer)
    assert made["key"] not in repr([answer])
    assert [event for event in keys.telemetry.events if event.level is not None] == []
