"""Every route with every kind of credential, on the ordinary lane, the hot lane and WebSockets.

EXPECTED repeats which callers may use each route. The tests fail if EXPECTED lacks a route, or if the grants of a route
are changed but EXPECTED is not.
"""

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from tenure.clock import wall_microseconds
from tenure.domain.keys import Role
from tenure.http.pipeline import Hot, Route, StreamRoute
from tests.access.conftest import OTHER_TENANT, create_keys, serving, sign_token
from tests.http.client import JSON, TIMEOUT_SECONDS, Json, RawResponse, connected, request
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.issuers import OTHER_RSA, RSA, TENANT, Issuer, running_issuer
from tests.support.streams import Client, Refused

C, R, O = (frozenset({role.value}) for role in (Role.CLIENT, Role.READER, Role.OPERATOR))  # noqa: E741 - short, for EXPECTED
T = frozenset({"session token"})
PUBLIC: frozenset[str] = frozenset({"public"})
EXPECTED: dict[str, frozenset[str]] = {
    "PUT /sessions": C | O,
    "GET /events": R | O,
    "POST /sessions/{sessionId}/heartbeat": C | O | T,
    "POST /sessions/heartbeats": C | O,
    "GET /sessions": C | R | O,
    "GET /sessions/count": C | R | O,
    "GET /sessions/metrics": R | O,
    "GET /sessions/{sessionId}": C | R | O | T,
    "GET /sessions/{sessionId}/history": C | R | O,
    "DELETE /sessions/{sessionId}": C | O | T,
    "POST /sessions/end": O,
    "WS /sessions/stream": C | O,
    "WS /sessions/{sessionId}/stream": C | O | T,
    "WS /transcribe/stream": C | O,
    "POST /transcribe": C | O,
    "PUT /capacities/{capacityId}": O,
    "GET /capacities/{capacityId}": R | O,
    "GET /capacities": R | O,
    "DELETE /capacities/{capacityId}": O,
    "POST /submissions": C | O,
    "GET /submissions": R | O,
    "GET /submissions/counts": R | O,
    "GET /submissions/{submissionId}": R | O,
    "POST /submissions/{submissionId}/retry": O,
    "POST /submissions/{submissionId}/cancel": O,
    "POST /submissions/retry": O,
    "POST /submissions/cancel": O,
    "GET /usage": R | O,
    "GET /usage/windows": R | O,
    "GET /usage/windows/{windowId}": R | O,
    "POST /usage/windows/send": O,
    "GET /leases": R | O,
    "GET /leases/history": R | O,
    "GET /leases/{name}/history": R | O,
    "POST /leases/{name}/resign": O,
    "GET /instances": R | O,
    "GET /activity": R | O,
    "GET /jobs": R | O,
    "GET /jobs/{name}/runs": R | O,
    "POST /jobs/{name}/run": O,
    "POST /jobs/{name}/pause": O,
    "POST /jobs/{name}/resume": O,
    "GET /me": C | R | O,
    "GET /sign-in": PUBLIC,
    "GET /sign-in/oidc": PUBLIC,
    "GET /sign-in/oidc/callback": PUBLIC,
    "POST /sign-in": PUBLIC,
    "POST /sign-out": PUBLIC,
    "POST /keys": O,
    "GET /keys": R | O,
    "DELETE /keys/{publicId}": O,
    "GET /audit-log": R | O,
    "GET /alerts": R | O,
    "GET /metrics": R | O,
    "GET /health": C | R | O,
    "GET /healthz": PUBLIC,
    "GET /readyz": PUBLIC,
    "GET /openapi.json": PUBLIC,
    "GET /asyncapi.json": PUBLIC,
    "GET /client/tenure.js": PUBLIC,
    "GET /docs": PUBLIC,
    "GET /console": PUBLIC,
    "GET /console/{path*}": PUBLIC,
}
OWN_ONLY = {
    "GET /submissions/{submissionId}",
    "POST /submissions/{submissionId}/retry",
    "POST /submissions/{submissionId}/cancel",
}
"""On these routes, a credential that is bound to a tenant may use only its own submissions. For all other submissions,
and for unknown ones, the credential gets 403."""
NARROWED = {
    "PUT /sessions",
    "POST /sessions/{sessionId}/heartbeat",
    "POST /sessions/heartbeats",
    "GET /sessions",
    "GET /sessions/count",
    "GET /sessions/metrics",
    "GET /sessions/{sessionId}",
    "GET /sessions/{sessionId}/history",
    "DELETE /sessions/{sessionId}",
    "POST /sessions/end",
    "WS /sessions/stream",
    "WS /sessions/{sessionId}/stream",
    "WS /transcribe/stream",
    "POST /transcribe",
    "PUT /capacities/{capacityId}",
    "GET /capacities/{capacityId}",
    "GET /capacities",
    "DELETE /capacities/{capacityId}",
    "POST /submissions",
    "GET /usage",
    "GET /events",
    "GET /health",
    "GET /me",
}
"""The routes that a credential bound to a tenant may use, if its role allows them. Such a credential gets 403 on all
other routes, except those in OWN_ONLY and public ones."""
BOUND = {**{f"{role.value} of a tenant": role.value for role in Role}, "oidc client": "client"}
"""The credentials that are bound to a tenant, and the role of each."""
IDENTIFIED = {
    **BOUND,
    **{name: name for name in ("client", "reader", "operator", "session token")},
    **{f"oidc {role}": role for role in ("reader", "operator")},
    "token of another session": "nothing",
    "oidc without role": "nothing",
}
"""The credentials that identify a caller, and the role or kind of each. A route without a grant for this role or kind
returns 403, not 401."""
SESSION = "0190b0a0-0000-7000-8000-000000000001"
PARAMETERS = {
    "{sessionId}": SESSION,
    "{capacityId}": SESSION,
    "{submissionId}": SESSION,
    "{windowId}": "1",
    "{name}": "nothing",
    "{publicId}": "4fJ0aQz81LmN",
    "{path*}": "sessions",
}


def expected(route: Route | StreamRoute, credential: str) -> int | None:
    """Returns the expected status: 401 or 403, or None if the access check lets the request pass."""
    place = f"{route.method} {route.path}"
    granted = EXPECTED[place]
    if granted == PUBLIC:
        return None
    if IDENTIFIED.get(credential) in granted and (credential not in BOUND or place in NARROWED):
        return None
    return 403 if credential in IDENTIFIED else 401


def is_narrowed(route: Route | StreamRoute) -> bool:
    return not route.grants.public and not route.grants.all_tenants


def address(route: Route | StreamRoute) -> str:
    path = route.path
    for name, value in PARAMETERS.items():
        path = path.replace(name, value)
    return path


def refused(response: RawResponse) -> int | None:
    """Returns the status of a refusal by the access check, or None for any other response."""
    if response.status == 401:
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["code"] == "UNAUTHENTICATED"
        return 401
    return 403 if response.status == 403 and response.json()["code"] == "FORBIDDEN" else None


def header_lines(authorization: str | None, *, as_cookie: bool) -> list[str]:
    if authorization is None:
        return []
    cookie = f"Cookie: theme=dark; tenure_credential={authorization.removeprefix('Bearer ')}"
    return [cookie if as_cookie else f"Authorization: {authorization}"]


async def ask(service: LocalService, route: Route, headers: list[str], *, ordinary: bool) -> int | None:
    """A `?` in the path makes the request take the ordinary lane. The body is invalid and the ids in the path are
    unknown, so that even a request of an operator changes nothing.
    """
    path = address(route) + ("?" if ordinary else "")
    content = request(b"[]", *headers, method=route.method, path=path)

    def send() -> RawResponse:
        with connected(service.port) as connection:
            connection.send(content)
            return connection.read()

    return refused(await asyncio.to_thread(send))


async def connect(service: LocalService, route: StreamRoute, headers: list[str]) -> int | None:
    try:
        client = await Client.connect(service.port, address(route), *headers)
    except Refused as error:
        code = msgspec.json.decode(error.body)["code"]
        return error.status if code in ("UNAUTHENTICATED", "FORBIDDEN") else None
    client.disconnect()
    return None


async def observe(
    service: LocalService, credentials: Mapping[str, str | None], *, as_cookie: bool = False
) -> dict[tuple[str, str, str], int | None]:
    found: dict[tuple[str, str, str], int | None] = {}
    for route in service.instance.pipeline.table:
        for name, value in credentials.items():
            place, headers = f"{route.method} {route.path}", header_lines(value, as_cookie=as_cookie)
            if isinstance(route, StreamRoute):
                found[place, "websocket", name] = await connect(service, route, headers)
                continue
            found[place, "ordinary", name] = await ask(service, route, headers, ordinary=True)
            if isinstance(route.handler, Hot):
                found[place, "hot", name] = await ask(service, route, headers, ordinary=False)
    return found


async def create_tokens(database: Database, issuer: Issuer) -> dict[str, str | None]:
    """Returns `Authorization` headers with tokens of every kind. The OIDC tokens of readers and operators belong to the
    staff tenant, so they are not bound to a tenant.
    """
    issuer.clock.seconds = wall_microseconds() / 1_000_000
    expired = int(issuer.clock.seconds) - 31  # beyond the leeway
    own, other = await sign_token(database, SESSION), await sign_token(database, OTHER_TENANT)
    return {
        "session token": own,
        "token of another session": other,
        "session token with wrong signature": own[:-1] + ("a" if own[-1] != "a" else "b"),
        "malformed session token": own[:-1],
        **{f"oidc {role.value}": f"Bearer {issuer.token(roles=[role.value])}" for role in Role},
        "oidc without role": f"Bearer {issuer.token(roles=[])}",
        "expired oidc operator": f"Bearer {issuer.token(roles=['operator'], exp=expired)}",
        "oidc of another issuer": f"Bearer {issuer.token(OTHER_RSA, header={'kid': 'rsa'}, roles=['operator'])}",
    }


async def test_every_route_has_an_expected_entry(sqlite_database: Database) -> None:
    async with serving(sqlite_database) as service:
        table = {f"{route.method} {route.path}" for route in service.instance.pipeline.table}
        narrowed = {f"{route.method} {route.path}" for route in service.instance.pipeline.table if is_narrowed(route)}
    assert table == EXPECTED.keys()
    assert narrowed == NARROWED | OWN_ONLY


@pytest.mark.parametrize("case", ["first use", "cached", "cookie"])
async def test_every_route_answers_every_credential_as_expected(sqlite_database: Database, case: str) -> None:
    """In the case `first use`, the caches are dropped before every request. So every request with an API key waits for
    a look-up of the key in the database.

    In the case `cookie`, the credential is sent in the sign-in cookie, and has the same rights as in `Authorization`.
    """
    async with (
        running_issuer(RSA) as issuer,
        serving(sqlite_database, oidc=issuer.config(staff_tenant=TENANT)) as service,
    ):
        credentials = await create_keys(sqlite_database) | await create_tokens(sqlite_database, issuer)
        await service.instance._authenticator.refresh()
        if case != "first use":
            for value in credentials.values():
                await service.http.get(f"/sessions/{SESSION}", headers={"Authorization": value} if value else {})
        else:
            # Drop the caches before each request.
            authenticator = service.instance._authenticator
            identify = service.instance.pipeline.identify
            caches = authenticator._session_tokens, authenticator._oidc_tokens
            service.instance.pipeline.identify = lambda headers: (
                authenticator._drop_cache(),
                [cache.clear() for cache in caches],
                identify(headers),
            )[2]
        found = await observe(service, credentials, as_cookie=case == "cookie")
        routes = {f"{route.method} {route.path}": route for route in service.instance.pipeline.table}
    wrong = {key: status for key, status in found.items() if status != expected(routes[key[0]], key[2])}
    assert wrong == {}
    assert {lane for _, lane, _ in found} == {"ordinary", "hot", "websocket"}


async def test_without_keys_every_route_accepts_every_request(sqlite_database: Database) -> None:
    async with serving(sqlite_database) as service:
        found = await observe(service, {"none": None, "unknown": "Bearer x"})
    assert set(found.values()) == {None}


async def test_client_ends_session_as_stopped_and_operator_as_terminated(database: Database) -> None:
    credentials = await create_keys(database)
    async with serving(database) as service:
        for role, reason in (("client", "STOPPED"), ("operator", "TERMINATED")):
            service.http.headers["Authorization"] = credentials[role] or ""
            session = await service.open()
            ended = (await service.http.delete(f"/sessions/{session['sessionId']}")).json()
            assert ended["closeReason"] == reason


async def test_callers_have_their_own_idempotency_keys(sqlite_database: Database) -> None:
    credentials = await create_keys(sqlite_database)
    async with serving(sqlite_database) as service:
        ids = set()
        for role in ("client", "operator", "client"):
            headers = {**JSON, "Authorization": credentials[role] or "", "Idempotency-Key": "a"}
            body = {"gateway": "crm", "payload": {"from": role}}
            response = await service.http.post("/submissions", headers=headers, json=body)
            assert response.status_code == 202, response.text
            ids.add(response.json()["submissionId"])
    assert len(ids) == 2


async def test_readyz_names_holders_only_to_callers_who_see_all_tenants(sqlite_database: Database) -> None:
    async with serving(sqlite_database) as service:
        leases: list[Json] = []
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not leases:  # the instance acquires its leases after it is ready
                leases = (await service.http.get("/readyz")).json()["leases"]
        assert all(lease["holder"] for lease in leases)
        credentials = await create_keys(sqlite_database)
        await service.instance._authenticator.refresh()
        for name in ("none", "unknown", "revoked", "operator of a tenant"):
            headers = {} if credentials[name] is None else {"Authorization": str(credentials[name])}
            shown = (await service.http.get("/readyz", headers=headers)).json()["leases"]
            assert {lease["holder"] for lease in shown} == {""}, name
        shown = (await service.http.get("/readyz", headers={"Authorization": str(credentials["reader"])})).json()
        assert all(lease["holder"] for lease in shown["leases"])


async def test_stream_is_closed_when_its_key_is_revoked(database: Database) -> None:
    credentials = await create_keys(database)
    key = credentials["client"] or ""
    async with serving(database) as service:
        client = await Client.connect(service.port, "/sessions/stream", f"Authorization: {key}")
        await client.open()
        await service.http.delete(f"/keys/{key.split('_')[2]}", headers={"Authorization": str(credentials["operator"])})
        error, end, code = *(await client.read_to_end())[0][-2:], client.close_code
        assert msgspec.json.decode(error)["code"] == "UNAUTHENTICATED"
        assert msgspec.json.decode(end)["type"] == "session_end"
        assert code == 1008


async def test_stream_without_credential_is_closed_when_first_key_is_created(sqlite_database: Database) -> None:
    async with serving(sqlite_database) as service:
        client = await Client.connect(service.port, "/sessions/stream")
        await client.open()
        await create_keys(sqlite_database)
        await client.read_to_end()
        assert client.close_code == 1008


async def test_instance_is_ready_only_after_it_has_read_the_keys(empty_database: Database) -> None:
    """The first read fails, because the tables do not exist yet. A ready instance must not answer 503 because of this
    failed read.
    """
    service = LocalService.on(empty_database)
    authenticator = service.instance._authenticator
    await authenticator.refresh()
    assert not authenticator.is_open
    async with service.running():
        assert authenticator.is_open
        assert (await service.http.get("/sessions")).status_code == 200
