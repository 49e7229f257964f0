"""Four real instances: creation and revocation of API keys, rotation of the signing key, and a stopped database."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from uuid import uuid4

import pytest

from tenure.domain.keys import ApiKey, Role, new_api_key, parse_key
from tenure.domain.session_tokens import SigningKey, new_signing_key, session_token
from tests.support.databases import Database, PostgresServer
from tests.support.instances import RunningInstance, kill_all
from tests.support.keys import OPERATOR, create_key

pytestmark = pytest.mark.slow

WITHIN_SECONDS = 2.0
PATIENCE_SECONDS = 30.0
Start = Callable[..., list[RunningInstance]]


@pytest.fixture
def start_four(tmp_path: Path) -> Iterator[Start]:
    started: list[RunningInstance] = []

    def start(url: str, **environment: str) -> list[RunningInstance]:
        started.extend(RunningInstance(url, tmp_path, **environment) for _ in range(4))
        return [instance.wait_until_ready() for instance in started]

    yield start
    kill_all(started)


def status(instance: RunningInstance, key: ApiKey | str | None, path: str = "/sessions", method: str = "GET") -> int:
    credential = key.text if isinstance(key, ApiKey) else key
    headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
    with closing(HTTPConnection("127.0.0.1", instance.port, timeout=PATIENCE_SECONDS)) as connection:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status


def statuses(instances: list[RunningInstance], key: ApiKey | None) -> list[int]:
    return [status(instance, key) for instance in instances]


def create_over_http(instance: RunningInstance) -> ApiKey:
    """Creates an operator key without a credential, which is possible only for the first key."""
    with closing(HTTPConnection("127.0.0.1", instance.port, timeout=PATIENCE_SECONDS)) as connection:
        body = json.dumps({"name": "first", "role": "operator"})
        connection.request("POST", "/keys", body, {"Content-Type": "application/json"})
        key = parse_key(json.load(connection.getresponse())["key"])
    assert key is not None
    return key


async def test_first_key_and_revocation_take_effect_on_four_instances_within_two_seconds(
    database: Database, start_four: Start
) -> None:
    instances = start_four(database.url)
    assert statuses(instances, None) == [200] * 4
    other = new_api_key(Role.READER)
    key = create_over_http(instances[0])
    assert statuses(instances[:1], None) == [401]  # at once, on the instance that created the key
    time.sleep(WITHIN_SECONDS)  # noqa: ASYNC251 - nothing else runs in this process
    assert statuses(instances, None) == [401] * 4
    assert statuses(instances, key) == [200] * 4
    await create_key(database.store, other, name="other")
    assert statuses(instances, other) == [200] * 4
    assert status(instances[0], key, f"/keys/{key.public_id}", "DELETE") == 200
    assert statuses(instances[:1], key) == [401]
    time.sleep(WITHIN_SECONDS)  # noqa: ASYNC251
    assert statuses(instances, key) == [401] * 4
    assert statuses(instances, other) == [200] * 4
    assert [status(instance, None, "/healthz") for instance in instances] == [200] * 4


async def test_signing_key_is_rotated_on_four_instances_within_two_seconds(
    database: Database, start_four: Start
) -> None:
    """The tokens are for a session that does not exist, so 404 means that the instance accepted the token."""
    await create_key(database.store)
    instances = start_four(database.url)
    path = f"/sessions/{(session_id := str(uuid4()))}"
    (first,) = (await database.store.read_keys_version()).signing_keys
    second, third = new_signing_key(), new_signing_key()

    def seen(key: SigningKey) -> list[int]:
        return [status(instance, session_token(key, session_id), path) for instance in instances]

    assert (seen(first), seen(second)) == ([404] * 4, [401] * 4)
    await database.store.rotate_signing_key(second, timedelta(days=30), OPERATOR)
    time.sleep(WITHIN_SECONDS)  # noqa: ASYNC251 - nothing else runs in this process
    assert (seen(first), seen(second)) == ([404] * 4, [404] * 4)
    await database.store.rotate_signing_key(third, None, OPERATOR)
    time.sleep(WITHIN_SECONDS)  # noqa: ASYNC251
    assert (seen(first), seen(second), seen(third)) == ([401] * 4, [401] * 4, [404] * 4)


async def test_session_token_is_verified_while_database_is_stopped(
    own_postgres: PostgresServer, own_database: Database, start_four: Start
) -> None:
    await own_database.store.migrate()
    await create_key(own_database.store)
    (key,) = (await own_database.store.read_keys_version()).signing_keys
    own, other = str(uuid4()), str(uuid4())
    token = session_token(key, own)
    instances = start_four(own_database.url, TENURE_ACCESS__GRACE_SECONDS="60")

    def seen(credential: str, session_id: str) -> list[int]:
        path = f"/sessions/{session_id}/heartbeat"
        return [status(instance, credential, path, "POST") for instance in instances]

    assert seen(token, own) == [404] * 4
    own_postgres.stop()
    try:
        wrong = session_token(new_signing_key(), own)
        assert (seen(token, own), seen(token, other), seen(wrong, own)) == ([503] * 4, [403] * 4, [401] * 4)
    finally:
        own_postgres.start()


async def test_used_key_works_during_grace_and_revoked_key_stays_refused_while_database_is_stopped(
    own_postgres: PostgresServer, own_database: Database, start_four: Start
) -> None:
    """The grace is five seconds. Once the database has been unavailable for longer, an instance returns 503 for every
    key. The role of both keys does not allow the request. So an instance that accepts a key returns 403, and needs no
    database for this response.
    """
    await own_database.store.migrate()
    used, revoked = new_api_key(Role.CLIENT), new_api_key(Role.CLIENT)
    await create_key(own_database.store, used, name="used")
    await create_key(own_database.store, revoked, name="revoked")
    instances = start_four(own_database.url, TENURE_ACCESS__GRACE_SECONDS="5")

    def forbidden(key: ApiKey) -> list[int]:
        """Returns the status of each instance; 403 means that the instance accepted the key."""
        return [status(instance, key, "/jobs") for instance in instances]

    assert (forbidden(used), forbidden(revoked)) == ([403] * 4, [403] * 4)
    await own_database.store.revoke_key(revoked.public_id, OPERATOR)
    time.sleep(WITHIN_SECONDS)  # noqa: ASYNC251
    assert (forbidden(used), forbidden(revoked)) == ([403] * 4, [401] * 4)
    own_postgres.stop()
    try:
        assert (forbidden(used), forbidden(revoked)) == ([403] * 4, [401] * 4)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while forbidden(used) != [503] * 4 and time.monotonic() < deadline:
            time.sleep(0.2)  # noqa: ASYNC251
        assert (forbidden(used), forbidden(revoked)) == ([503] * 4, [503] * 4)
    finally:
        own_postgres.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while forbidden(used) != [403] * 4 and time.monotonic() < deadline:
        time.sleep(0.2)  # noqa: ASYNC251
    assert (forbidden(used), forbidden(revoked)) == ([403] * 4, [401] * 4)
