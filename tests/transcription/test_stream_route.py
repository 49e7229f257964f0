"""`WS /transcribe/stream`: for clients that send audio at once, without a first message that opens a session."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from tenure.config import load
from tenure.domain.keys import Role, new_api_key
from tests.http.client import Json
from tests.http.local import LocalService, eventually, prepare_process
from tests.support.databases import Clock
from tests.support.keys import create_key
from tests.support.open_requests import some_id
from tests.support.streams import STOP, Client, Refused, as_text

TENANT, CAPACITY = str(uuid4()), str(uuid4())
IDENTITY = {"TENURE_TRANSCRIPTION__TENANT": TENANT, "TENURE_TRANSCRIPTION__CAPACITY": CAPACITY}
FLOOD = [b"\0\0" * 25_000] * 100

Run = Callable[..., AbstractAsyncContextManager[LocalService]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs an instance with the profile `transcription`, whose recogniser takes ASCII text as audio."""
    prepare_process(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

    @asynccontextmanager
    async def running(**environment: str) -> AsyncIterator[LocalService]:
        recognizer = {"TENURE_STREAMS__OPTIONS__RECOGNIZER": "tests.transcription.stand_ins:Letters"}
        flags = {"profile": "transcription", "database": f"sqlite:///{tmp_path / f'{uuid4()}.db'}"}
        async with LocalService(load(flags, recognizer | environment), Clock()).running() as service:
            yield service

    return running


async def texts(client: Client) -> tuple[list[Json], int]:
    messages, code = await client.read_to_end()
    return [msgspec.json.decode(message) for message in messages], code


async def test_session_starts_with_connection_and_audio_may_come_first(run: Run) -> None:
    async with run(**IDENTITY) as service:
        for path in ("/transcribe/stream", "/v1/transcribe/stream"):
            client = await Client.connect(service.port, path)
            await client.send(b"one two. thr")
            start = await client.receive_start()
            await client.send(b"ee")
            await client.send(STOP)
            messages, code = await texts(client)
            assert {"type": "final", "text": "one two"} in messages
            assert {"type": "final", "text": "three"} in messages
            assert {message["type"] for message in messages} == {"partial", "final", "session_end"}
            assert (messages[-1]["reason"], code) == ("STOPPED", 1000)
            session = await service.get(start["session_id"])
            assert (session["tenantObjectId"], session["capacityId"]) == (TENANT, CAPACITY)
            assert (session["closeReason"], session["stream"]["bytesReceived"]) == ("STOPPED", 14)


async def test_user_comes_from_query_or_is_new_for_each_connection(run: Run) -> None:
    user = str(uuid4())
    async with run(**IDENTITY) as service:
        users = []
        for query in ("", "", f"?user={user}", f"?User={{{user.upper()}}}&kind=2"):
            client = await Client.connect(service.port, f"/transcribe/stream{query}")
            session = await service.get((await client.receive_start())["session_id"])
            users.append(session["userObjectId"])
            client.disconnect()
        assert users[2:] == [user, user]
        assert len(set(users)) == 3


async def test_query_replaces_tenant_and_capacity_of_the_settings(run: Run) -> None:
    tenant, capacity = str(uuid4()), uuid4().hex
    async with run(**IDENTITY) as service:
        client = await Client.connect(service.port, f"/transcribe/stream?tenant={tenant}&capacity={capacity}")
        session = await service.get((await client.receive_start())["session_id"])
        assert (session["tenantObjectId"], session["capacityId"].replace("-", "")) == (tenant, capacity)
        client.disconnect()


async def test_refusal_of_missing_tenant_or_capacity_names_the_setting(run: Run) -> None:
    for name, setting in (("tenant", "CAPACITY"), ("capacity", "TENANT")):
        async with run(**{f"TENURE_TRANSCRIPTION__{setting}": str(uuid4())}) as service:
            client = await Client.connect(service.port, "/transcribe/stream")
            ((error,), code) = await texts(client)
            assert (error["code"], code) == ("INVALID", 1008)
            assert f"[transcription] {name}" in error["message"]


async def test_tenant_of_credential_overrides_the_settings(run: Run) -> None:
    tenant = str(uuid4())
    async with run(**IDENTITY) as service:
        key = new_api_key(Role.CLIENT)
        await create_key(service.instance._store, key, tenant_object_id=tenant)
        await eventually(lambda: not service.instance._authenticator.is_open)
        credential = f"Authorization: Bearer {key.text}"
        client = await Client.connect(service.port, "/transcribe/stream", credential)
        start = await client.receive_start()
        assert start["tenantObjectId"] == tenant
        client.disconnect()
        other = await Client.connect(service.port, f"/transcribe/stream?tenant={TENANT}", credential)
        ((error,), code) = await texts(other)
        assert (error["code"], code) == ("FORBIDDEN", 1008)
        with pytest.raises(Refused) as refused:
            await Client.connect(service.port, "/transcribe/stream")
        assert refused.value.status == 401


async def test_refusal_reaches_client_that_sends_before_it_reads(run: Run) -> None:
    """Two clients are refused: one because the capacity is full, the other because the instance has its maximum of two
    streams.
    """
    async with run(**IDENTITY, TENURE_STREAMS__MAX_PER_INSTANCE="2") as service:
        await service.http.put(f"/capacities/{CAPACITY}", json={"maxSessions": 1})
        first = await Client.connect(service.port, "/transcribe/stream")
        await first.receive_start()
        for more_seats in (None, 9):
            if more_seats is not None:
                await service.http.put(f"/capacities/{CAPACITY}", json={"maxSessions": more_seats})
                second = await Client.connect(service.port, "/transcribe/stream")
                await second.receive_start()
            refused = await Client.connect(service.port, "/transcribe/stream")
            for audio in FLOOD:
                await refused.send(audio)
            ((error,), code) = await texts(refused)
            assert (error["type"], error["code"], code) == ("error", "SESSION_LIMIT", 1008)
            assert set(error) == {"type", "code", "message"}
        first.disconnect()
        second.disconnect()
        await eventually(lambda: not service.instance.streams._admitted)
        metrics = (await service.http.get("/metrics")).text
        assert 'tenure_sessions_refused_total{reason="session-limit",worker="0"} 1\n' in metrics
        assert 'tenure_http_refused_total{limit="max_per_instance",worker="0"} 1\n' in metrics


async def test_full_instance_admits_stream_that_replaces_one_of_the_same_user(run: Run) -> None:
    async with run(**IDENTITY, TENURE_STREAMS__MAX_PER_INSTANCE="1") as service:
        user = some_id()
        older = await Client.connect(service.port, f"/transcribe/stream?user={user}")
        start = await older.receive_start()
        newer = await Client.connect(service.port, f"/transcribe/stream?user={user}")
        assert (await newer.receive_start())["session_id"] == start["session_id"]
        assert await older.final_message() == ({"type": "replaced"}, 4409)
        other = await Client.connect(service.port, "/transcribe/stream")
        ((error,), _) = await texts(other)
        assert error["message"] == "this instance already has 1 stream"
        newer.disconnect()
        await eventually(lambda: not service.instance.streams._admitted)


async def test_metrics_count_audio_and_results(run: Run) -> None:
    async with run(**IDENTITY) as service:
        client = await Client.connect(service.port, "/transcribe/stream")
        await client.receive_start()
        await client.send(b"one." + b" " * 63_996)
        await client.send("text")
        await client.send(STOP)
        await texts(client)
        metrics = (await service.http.get("/metrics")).text
        assert 'tenure_stream_audio_seconds_total{worker="0"} 2\n' in metrics
        assert 'tenure_stream_results_total{result="final",worker="0"} 1\n' in metrics
        assert 'tenure_stream_results_total{result="error",worker="0"} 1\n' in metrics


async def test_messages_use_the_json_case_of_the_settings(run: Run) -> None:
    async with run(**IDENTITY, TENURE_HTTP__JSON_CASE="snake") as service:
        client = await Client.connect(service.port, "/transcribe/stream")
        start = await client.receive_start()
        assert {"session_id", "tenant_object_id", "lease_expires_at"} <= set(start)
        assert "sessionId" not in start
        await client.send(as_text({"type": "stop"}))
        messages, _ = await texts(client)
        assert messages[-1]["metrics"]["bytes_received"] == 0


async def test_wrong_query_is_refused_before_the_handshake(run: Run) -> None:
    async with run(**IDENTITY) as service:
        for query in ("user=x", "kind=4", "language=en"):
            with pytest.raises(Refused) as refused:
                await Client.connect(service.port, f"/transcribe/stream?{query}")
            assert refused.value.status == 400
            assert query.partition("=")[0] in msgspec.json.decode(refused.value.body)["detail"]
    async with run(**IDENTITY, TENURE_HTTP__UNKNOWN_FIELDS="ignore") as service:
        client = await Client.connect(service.port, "/transcribe/stream?language=en")
        await client.receive_start()
        client.disconnect()
