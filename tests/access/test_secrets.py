"""Planted secrets appear in no log, response, error, list of processes, help text or settings."""

import asyncio
import base64
import os
import subprocess
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import psutil
import pytest

from tenure.access.authenticator import Authenticator
from tenure.config import load
from tenure.domain.audit_log import Actor
from tenure.domain.keys import ApiKey, Role, new_api_key, parse_key
from tenure.domain.session_tokens import SigningKey, new_signing_key, session_token
from tenure.errors import Problem
from tenure.store.engines import open_store
from tests.access.test_exposure import create_key
from tests.support.databases import Database
from tests.support.instances import RunningInstance, kill_all
from tests.support.keys import create_key as store_key
from tests.support.streams import Client, Refused
from tests.support.telemetry import RecordedTelemetry

GATEWAY_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PASSWORD = "open-sesame-4711"
HEADER = "Bearer planted-header-value"
FORGED = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.eyJzdWIiOiJwbGFudGVkLXN1YmplY3QifQ.planted-signature"
HELP = [[*words, "--help"] for words in (["serve"], ["usage"], ["keys"], ["keys", "rotate-signing-key"])]


@pytest.mark.slow
def test_service_and_commands_show_no_secret(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'tenure.db'}"
    key = parse_key(create_key(database))
    wrong = new_api_key(Role.OPERATOR)
    assert key is not None
    environment = {
        "TENURE_GATEWAYS__CRM__URL": "http://127.0.0.1:9/",
        "TENURE_GATEWAYS__CRM__SECRET": GATEWAY_SECRET,
        "TENURE_GATEWAYS__CRM__HEADERS": f'{{"Authorization": "{HEADER}"}}',
    }
    shown: list[str] = []
    planted = new_signing_key()
    asyncio.run(plant(database, planted))
    tokens = [session_token(each, str(uuid4())) for each in (planted, new_signing_key())]
    # Not forked from the tests, because the instance must have its own command line, which this test reads.
    instance = RunningInstance(database, tmp_path, forked=False, **environment)
    try:
        instance.wait_until_ready()
        with httpx.Client(base_url=instance.address) as http:
            for credential in (key.text, wrong.text, *tokens, FORGED):
                headers = {"Authorization": f"Bearer {credential}"}
                for method, path, body in (
                    ("GET", "/keys", None),
                    ("GET", "/audit-log", None),
                    ("GET", "/submissions", None),
                    ("GET", "/nothing", None),
                    ("GET", f"/sessions/{credential}", None),
                    ("DELETE", f"/keys/{wrong.public_id}", None),
                    ("POST", "/submissions", {"gateway": "crm", "payload": {}}),
                    ("POST", "/keys", {"name": "web", "role": "none"}),
                    ("POST", "/sign-in", {"credential": f"{credential} "}),
                    ("POST", "/sign-in", {"credentials": credential}),
                    ("GET", "/me", None),
                ):
                    response = http.request(method, path, headers=headers, json=body)
                    # A response may repeat the path of its request, so a response is not searched if this path contains
                    # the credential.
                    if credential not in path:
                        shown.append(f"{response.headers}{response.text}")
                cookie = {"Cookie": f"tenure_credential={credential}"}
                for path in ("/me", "/keys", "/nothing"):
                    response = http.get(path, headers=cookie)
                    shown.append(f"{response.headers}{response.text}")
                # The response repeats the credential in `Set-Cookie`, so only its body is searched.
                response = httpx.post(f"{instance.address}/sign-in", json={"credential": credential})
                shown.append(response.text)
                offered = f"Sec-WebSocket-Protocol: tenure, tenure.bearer.{credential}"
                answers = offered, offered.replace(", ", " "), f"Authorization: Bearer x\r\n{offered}"
                shown += [asyncio.run(handshake_answer(instance.port, header)) for header in answers]
        shown.append(" ".join(psutil.Process(instance.process.pid).cmdline()))
    finally:
        kill_all([instance])
        shown.append(instance.log())
    for words in (*HELP, ["keys", "list"], ["keys", "rotate-signing-key"], ["migrate", "--dry-run"]):
        more = [] if "--help" in words else ["--database", database]
        done = subprocess.run(
            [sys.executable, "-m", "tenure", *words, *more],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "TENURE_KEY": key.text, **environment},
        )
        shown.append(done.stdout + done.stderr)
    secrets = [*secrets_of(key), *secrets_of(wrong), *tokens, *(token[-43:] for token in tokens), FORGED]
    secrets += [planted.secret.hex(), base64.b64encode(planted.secret).decode(), repr(planted.secret)[2:-1]]
    assert [text for text in shown if any(secret in text for secret in secrets)] == []


async def plant(database: str, key: SigningKey) -> None:
    store = open_store(database, 4)
    await store.rotate_signing_key(key, timedelta(days=1), Actor("test", "test"))
    await store.close()


async def handshake_answer(port: int, header: str) -> str:
    try:
        client = await Client.connect(port, "/sessions/stream", header)
    except Refused as refused:
        return refused.head + refused.body.decode()
    client.disconnect()
    return client.head


def secrets_of(key: ApiKey) -> list[str]:
    return [key.secret, key.digest.hex(), GATEWAY_SECRET, GATEWAY_SECRET.removeprefix("whsec_"), HEADER]


def test_settings_and_unreachable_database_show_no_secret() -> None:
    database = f"postgresql://user:{PASSWORD}@127.0.0.1:9/tenure"
    config = load(
        {"database": database},
        {"TENURE_GATEWAYS__CRM__URL": "http://h/", "TENURE_GATEWAYS__CRM__SECRET": GATEWAY_SECRET},
    )
    assert PASSWORD not in repr(config)
    assert GATEWAY_SECRET not in repr(config)
    done = subprocess.run(
        [sys.executable, "-m", "tenure", "keys", "list"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "TENURE_DATABASE": database},
    )
    assert done.returncode == 1
    assert PASSWORD not in done.stdout + done.stderr


async def test_failed_write_does_not_show_signing_key(database: Database) -> None:
    key = new_signing_key()
    await database.execute("DROP TABLE signing_keys")
    with pytest.raises(Exception) as failed:  # noqa: PT011 - no exception may show the secret
        await database.store.rotate_signing_key(key, None, Actor("test", "test"))
    shown = "".join(traceback.format_exception(failed.value))
    assert key.secret.hex() not in shown
    assert repr(key.secret)[2:12] not in shown


async def test_errors_and_objects_of_a_request_do_not_show_its_key(sqlite_database: Database) -> None:
    key, wrong = new_api_key(Role.CLIENT), new_api_key(Role.CLIENT)
    await store_key(sqlite_database.store, key)
    authenticator = Authenticator(sqlite_database.store, RecordedTelemetry(), 300)
    await authenticator.refresh()
    (signing,) = authenticator._signing_keys.values()
    shown = [repr(key), repr(authenticator), repr(authenticator._signing_keys), repr(authenticator.token_signer())]
    for each in (key, wrong):
        identified = authenticator.identify([(b"authorization", f"Bearer {each.text}".encode())])
        results = await asyncio.gather(identified, return_exceptions=True)  # type: ignore[arg-type]
        shown += [repr(result) for result in results]
    token = session_token(signing, str(uuid4()))
    for text in (token, token[:-1] + "."):
        try:
            shown.append(repr(authenticator.identify([(b"authorization", f"Bearer {text}".encode())])))
        except Problem as problem:
            shown.append(repr([problem, problem.detail, problem.__dict__]))
    secrets = [key.secret, wrong.secret, token[-43:], signing.secret.hex(), repr(signing.secret)[2:12]]
    assert [text for text in shown if any(secret in text for secret in secrets)] == []
