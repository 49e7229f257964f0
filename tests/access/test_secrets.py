"""Planted secrets appear in no log, answer, error, list of processes, help text or settings."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tenure.access.authenticator import Authenticator
from tenure.config import load
from tenure.domain.keys import ApiKey, Role, new_api_key, parse_key
from tests.access.test_exposure import create_key
from tests.support.databases import Database
from tests.support.instances import RunningInstance, kill_all
from tests.support.keys import create_key as store_key
from tests.support.telemetry import RecordedTelemetry

GATEWAY_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PASSWORD = "open-sesame-4711"
HEADER = "Bearer planted-header-value"


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
    instance = RunningInstance(database, tmp_path, **environment)
    try:
        instance.wait_until_ready()
        with httpx.Client(base_url=instance.address) as http:
            for credential in (key, wrong):
                headers = {"Authorization": f"Bearer {credential.text}"}
                for method, path, body in (
                    ("GET", "/keys", None),
                    ("GET", "/audit-log", None),
                    ("GET", "/submissions", None),
                    ("GET", "/nothing", None),
                    ("GET", f"/sessions/{credential.text}", None),
                    ("DELETE", f"/keys/{wrong.public_id}", None),
                    ("POST", "/submissions", {"gateway": "crm", "payload": {}}),
                    ("POST", "/keys", {"name": "web", "role": "none"}),
                ):
                    response = http.request(method, path, headers=headers, json=body)
                    # An answer may repeat what the path contains, so the path with a key is not searched for it.
                    if credential.text not in path:
                        shown.append(f"{response.headers}{response.text}")
        shown.append(" ".join(psutil.Process(instance.process.pid).cmdline()))
    finally:
        kill_all([instance])
        shown.append(instance.log())
    for words in (["serve", "--help"], ["usage", "--help"], ["keys", "--help"], ["keys", "list"]):
        more = ["--database", database] if words == ["keys", "list"] else []
        done = subprocess.run(
            [sys.executable, "-m", "tenure", *words, *more],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "TENURE_KEY": key.text, **environment},
        )
        shown.append(done.stdout + done.stderr)
    assert [text for text in shown if any(secret in text for secret in (*secrets_of(key), *secrets_of(wrong)))] == []


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


async def test_errors_and_objects_of_a_request_do_not_show_its_key(sqlite_database: Database) -> None:
    key, wrong = new_api_key(Role.CLIENT), new_api_key(Role.CLIENT)
    await store_key(sqlite_database.store, key)
    authenticator = Authenticator(sqlite_database.store, RecordedTelemetry(), 300)
    await authenticator.refresh()
    shown = [repr(key), repr(authenticator)]
    for each in (key, wrong):
        identified = authenticator.identify([(b"authorization", f"Bearer {each.text}".encode())])
        results = await asyncio.gather(identified, return_exceptions=True)  # type: ignore[arg-type]
        shown += [repr(result) for result in results]
    assert [text for text in shown if key.secret in text or wrong.secret in text] == []
