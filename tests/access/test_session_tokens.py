"""Session tokens on a running instance: where they come from, what they allow, and when they are refused."""

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest

from tenure.domain.keys import Role, new_api_key
from tenure.domain.session_tokens import SigningKey, new_signing_key, parse_session_token
from tests.access.conftest import bearer, serving, sign_token
from tests.http.client import Json, open_body, same_key
from tests.http.local import LocalService, eventually
from tests.support.databases import Database
from tests.support.keys import OPERATOR, create_key
from tests.support.streams import Client, Refused, as_text, request

LANES = ("/sessions", "/sessions?")
"""A request to the first path takes the hot lane. The second path has an empty query, so it takes the ordinary lane."""
HEARTBEAT = {"content": b"{}", "headers": {"Content-Type": "application/json"}}


class Caller:
    """Sends requests with one credential."""

    def __init__(self, service: LocalService, authorization: str) -> None:
        self._service = service
        self.authorization = authorization

    async def __call__(self, method: str, path: str, **content: Any) -> httpx.Response:
        headers = {"Authorization": self.authorization, **content.pop("headers", {})}
        return await self._service.http.request(method, path, headers=headers, **content)

    async def open(self, body: Json, lane: str = "/sessions", **fields: Any) -> Json:
        response = await self("PUT", lane, json={**body, **fields})
        assert response.status_code in (200, 201), response.text
        return response.json()  # type: ignore[no-any-return]

    async def statuses(self, session_id: str) -> Mapping[str, tuple[int, str | None]]:
        """Sends each request that a session token allows, except a stream. Returns the status and the close reason of
        each response.
        """
        path = f"/sessions/{session_id}"
        responses = {
            "GET": await self("GET", path),
            "heartbeat": await self("POST", f"{path}/heartbeat", **HEARTBEAT),
            "DELETE": await self("DELETE", path),
        }
        return {name: (each.status_code, each.json().get("closeReason")) for name, each in responses.items()}


@pytest.fixture
async def service(database: Database) -> AsyncIterator[LocalService]:
    async with serving(database) as running:
        yield running


@pytest.fixture
async def client(service: LocalService) -> Caller:
    """A caller with an API key of the role `client`. Because this key exists, every request needs a credential."""
    key = new_api_key(Role.CLIENT)
    await create_key(service.database.store, key)
    await service.instance._authenticator.refresh()
    return Caller(service, bearer(key))


def holder(service: LocalService, opened: Json) -> Caller:
    return Caller(service, f"Bearer {opened['sessionToken']}")


async def test_open_returns_token_when_asked_on_both_lanes(service: LocalService) -> None:
    """A token is returned even before the first API key exists, although no caller needs a token then."""
    anonymous = Caller(service, "")
    for lane in LANES:
        body = open_body()
        for expected, kind in (("created", 1), ("existing", 1), ("upgraded", 2)):
            opened = await anonymous.open(body, lane, withToken=True, sessionKind=kind)
            assert opened["status"] == expected
            token = parse_session_token(opened["sessionToken"].encode())
            assert token is not None
            assert token.session_id == opened["sessionId"]
        for more in ({}, {"withToken": False}):
            assert "sessionToken" not in await anonymous.open(body, lane, **more)
        wrong = await anonymous("PUT", lane, json={**body, "withToken": "yes"})
        assert wrong.json()["errors"] == [{"field": "withToken", "message": "must be true or false"}]


async def test_token_allows_requests_until_its_session_ends(service: LocalService, client: Caller) -> None:
    opened = await client.open(open_body(), withToken=True)
    token, session_id = holder(service, opened), opened["sessionId"]
    assert (await token("GET", f"/sessions/{session_id.upper()}")).status_code == 200
    live = {"GET": (200, None), "heartbeat": (200, None), "DELETE": (200, "STOPPED")}
    assert await token.statuses(session_id) == live
    over = dict.fromkeys(("GET", "heartbeat", "DELETE"), (410, "STOPPED"))
    assert await token.statuses(session_id) == over
    assert (await client("GET", f"/sessions/{session_id}")).json()["closeReason"] == "STOPPED"


async def test_token_of_session_ended_by_another_cause_gets_410_with_reason(
    service: LocalService, client: Caller
) -> None:
    body = open_body()
    first = await client.open(body, withToken=True)
    second = await client.open(same_key(first), withToken=True, sessionKind=2)
    over = dict.fromkeys(("GET", "heartbeat", "DELETE"), (410, "UPGRADED"))
    assert await holder(service, first).statuses(first["sessionId"]) == over
    assert (await holder(service, second)("GET", f"/sessions/{second['sessionId']}")).status_code == 200
    lapsing = await client.open(open_body(leaseSeconds=60), withToken=True)
    await service.move_to(lapsing["leaseExpiresAt"], seconds=1)
    # The end is not recorded yet. The DELETE records that the lease has expired, so the close reason is not STOPPED.
    late = await holder(service, lapsing)("DELETE", f"/sessions/{lapsing['sessionId']}")
    assert (late.status_code, late.json()["closeReason"]) == (410, "LEASE_EXPIRED")


async def test_token_for_another_session_gets_403_without_look_up(
    service: LocalService, client: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = [await client.open(open_body(), withToken=True) for _ in range(2)]
    token = holder(service, one)
    for name in ("get_session", "heartbeat", "end_sessions", "attach_streams", "find_key"):
        monkeypatch.setattr(service.instance._store, name, None)
    for session_id in (other["sessionId"], str(uuid4()), "x"):
        for method, path in (("GET", ""), ("POST", "/heartbeat"), ("DELETE", "")):
            response = await token(method, f"/sessions/{session_id}{path}")
            assert (response.status_code, response.json()["code"]) == (403, "FORBIDDEN"), (method, session_id)
        with pytest.raises(Refused, match="403"):
            await Client.connect(
                service.port, f"/sessions/{session_id}/stream", f"Authorization: {token.authorization}"
            )
    bulk = await token("POST", "/sessions/heartbeats", json={"sessionIds": [one["sessionId"]]})
    assert bulk.status_code == 403
    wrong = Caller(service, token.authorization[:-1] + ("a" if token.authorization[-1] != "a" else "b"))
    assert (await wrong("GET", f"/sessions/{one['sessionId']}")).status_code == 401


async def rotate(service: LocalService, *, at_once: bool) -> SigningKey:
    key = new_signing_key()
    await service.database.store.rotate_signing_key(key, None if at_once else timedelta(days=30), OPERATOR)
    await service.instance._authenticator.refresh()
    return key


async def test_rotation_keeps_earlier_tokens_and_signs_with_new_key(service: LocalService, client: Caller) -> None:
    old = await client.open(open_body(), withToken=True)
    key = await rotate(service, at_once=False)
    assert (await holder(service, old)("GET", f"/sessions/{old['sessionId']}")).status_code == 200
    new = await client.open(same_key(old), withToken=True)
    token = parse_session_token(new["sessionToken"].encode())
    assert token is not None
    assert token.key_id.hex() == key.key_id
    assert (new["status"], new["sessionId"]) == ("existing", old["sessionId"])
    assert (await holder(service, new)("GET", f"/sessions/{old['sessionId']}")).status_code == 200


async def test_rotation_at_once_refuses_earlier_tokens_and_closes_their_streams(
    service: LocalService, client: Caller
) -> None:
    old = await client.open(open_body(), withToken=True)
    token = holder(service, old)
    path = f"/sessions/{old['sessionId']}"
    stream = await Client.connect(service.port, f"{path}/stream", f"Authorization: {token.authorization}")
    await stream.receive_start()
    await rotate(service, at_once=True)
    assert (await token("GET", path)).status_code == 401
    messages, code = await stream.read_to_end()
    assert (msgspec.json.decode(messages[-2])["code"], code) == ("UNAUTHENTICATED", 1008)
    assert (await holder(service, await client.open(open_body(), withToken=True))("GET", path)).status_code == 403


async def test_open_with_token_returns_503_and_opens_nothing_without_signing_key(
    service: LocalService, client: Caller
) -> None:
    await service.database.execute("DELETE FROM signing_keys")
    await service.instance._authenticator.refresh()
    for lane in LANES:
        response = await client("PUT", lane, json={**open_body(), "withToken": True})
        assert response.status_code == 503, response.text
    assert (await client("GET", "/sessions")).json()["count"] == 0
    await client.open(open_body())


# WebSockets.


async def connect(service: LocalService, path: str, *headers: str) -> str:
    """Connects and disconnects. Returns the head of the handshake response, whose status must be 101."""
    stream = await Client.connect(service.port, path, *headers)
    stream.disconnect()
    return stream.head


async def test_stream_takes_credential_as_subprotocol_and_selects_tenure_only(
    service: LocalService, client: Caller
) -> None:
    opened = await client.open(open_body(), withToken=True)
    path, token = f"/sessions/{opened['sessionId']}/stream", opened["sessionToken"]
    key = client.authorization.removeprefix("Bearer ")
    for address, offered in (
        (path, f"tenure, tenure.bearer.{token}"),
        (path, f"tenure.bearer.{token},tenure,other"),
        ("/sessions/stream", f"tenure, tenure.bearer.{key}"),
    ):
        head = await connect(service, address, f"Sec-WebSocket-Protocol: {offered}")
        assert "Sec-WebSocket-Protocol: tenure\r\n" in head
        assert "bearer" not in head
    for offered in (f"tenure.bearer.{token}", f"other, tenure.bearer.{token}"):
        assert "Sec-WebSocket-Protocol" not in await connect(service, path, f"Sec-WebSocket-Protocol: {offered}")
    in_two_headers = ("Sec-WebSocket-Protocol: tenure", f"Sec-WebSocket-Protocol: tenure.bearer.{token}")
    assert "Sec-WebSocket-Protocol: tenure\r\n" in await connect(service, path, *in_two_headers)


async def test_stream_with_two_different_credentials_is_refused(service: LocalService, client: Caller) -> None:
    opened = await client.open(open_body(), withToken=True)
    path, token = f"/sessions/{opened['sessionId']}/stream", opened["sessionToken"]
    offered = f"Sec-WebSocket-Protocol: tenure, tenure.bearer.{token}"
    for header in (f"Authorization: Bearer {token}", f"Authorization: bearer {token}"):
        await connect(service, path, header, offered)
    for headers in (
        (f"Authorization: {client.authorization}", offered),
        (f"Authorization: Basic {token}", offered),
        (f"Authorization: Bearer {token}", f"Authorization: Bearer {token}", offered),
        (f"{offered}, tenure.bearer.{client.authorization.removeprefix('Bearer ')}",),
    ):
        with pytest.raises(Refused) as refused:
            await connect(service, path, *headers)
        assert refused.value.status == 401
        assert token not in refused.value.head + refused.value.body.decode()


async def test_invalid_subprotocols_are_refused_and_response_does_not_contain_token(
    service: LocalService, client: Caller
) -> None:
    opened = await client.open(open_body(), withToken=True)
    path, token = f"/sessions/{opened['sessionId']}/stream", opened["sessionToken"]
    for offered, status in (
        (f"tenure tenure.bearer.{token}", 400),
        (f'tenure, tenure.bearer."{token}"', 400),
        ("tenure, tenure.bearer.", 401),
        (f"tenure, tenure.bearer.{token}x", 401),
        ("tenure", 401),
    ):
        with pytest.raises(Refused) as refused:
            await connect(service, path, f"Sec-WebSocket-Protocol: {offered}")
        assert refused.value.status == status, offered
        assert token not in refused.value.head + refused.value.body.decode()


async def test_credential_in_subprotocol_is_ignored_if_no_key_exists(service: LocalService) -> None:
    head = await connect(service, "/sessions/stream", "Sec-WebSocket-Protocol: tenure, tenure.bearer.x")
    assert "Sec-WebSocket-Protocol: tenure\r\n" in head


async def test_stream_that_opens_session_returns_token_when_asked(service: LocalService, client: Caller) -> None:
    authorization = f"Authorization: {client.authorization}"
    stream = await Client.connect(service.port, "/sessions/stream", authorization)
    await stream.send(as_text({"type": "open", **request(withToken=True)}))
    opened = await stream.receive_start()
    path = f"/sessions/{opened['sessionId']}"
    assert (await holder(service, opened)("GET", path)).status_code == 200
    again = await Client.connect(
        service.port, f"{path}/stream", f"Sec-WebSocket-Protocol: tenure, tenure.bearer.{opened['sessionToken']}"
    )
    assert "sessionToken" not in await again.receive_start()
    await again.stop()
    await stream.read_to_end()
    await eventually(lambda: not service.instance.streams._admitted)
    assert (await holder(service, opened)("GET", path)).json()["closeReason"] == "STOPPED"


async def test_valid_token_for_unknown_session_gets_404(service: LocalService, client: Caller) -> None:
    del client
    session_id = str(uuid4())
    token = Caller(service, await sign_token(service.database, session_id))
    assert (await token("GET", f"/sessions/{session_id}")).status_code == 404
