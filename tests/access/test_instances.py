"""Four real instances: the first key, its revocation, and the database while it is stopped."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tenure.domain.keys import ApiKey, Role, new_api_key
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


def status(instance: RunningInstance, key: ApiKey | None, path: str = "/sessions") -> int:
    headers = {} if key is None else {"Authorization": f"Bearer {key.text}"}
    with closing(HTTPConnection("127.0.0.1", instance.port, timeout=PATIENCE_SECONDS)) as connection:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status


def statuses(instances: list[RunningInstance], key: ApiKey | None) -> list[int]:
    return [status(instance, key) for instance in instances]


async def test_first_key_and_revocation_take_effect_on_four_instances_within_two_seconds(
    database: Database, start_four: Start
) -> None:
    instances = start_four(database.url)
    assert statuses(instances, None) == [200] * 4
    key, other = new_api_key(Role.OPERATOR), new_api_key(Role.READER)
    await create_key(database.store, key)
    time.sleep(WITHIN_SECONDS)  # noqa: ASYNC251 - nothing else runs in this process
    assert statuses(instances, None) == [401] * 4
    assert statuses(instances, key) == [200] * 4
    await create_key(database.store, other, name="other")
    assert statuses(instances, other) == [200] * 4
    await database.store.revoke_key(key.public_id, OPERATOR)
    time.sleep(WITHIN_SECONDS)  # noqa: ASYNC251
    assert statuses(instances, key) == [401] * 4
    assert statuses(instances, other) == [200] * 4
    assert [status(instance, None, "/healthz") for instance in instances] == [200] * 4


async def test_used_key_works_while_database_is_stopped_and_revoked_key_does_not_come_back(
    own_postgres: PostgresServer, own_database: Database, start_four: Start
) -> None:
    """With a grace of five seconds. The test asks for what the role does not allow: 403 needs no database."""
    await own_database.store.migrate()
    used, revoked = new_api_key(Role.CLIENT), new_api_key(Role.CLIENT)
    await create_key(own_database.store, used, name="used")
    await create_key(own_database.store, revoked, name="revoked")
    instances = start_four(own_database.url, TENURE_ACCESS__GRACE_SECONDS="5")

    def forbidden(key: ApiKey) -> list[int]:
        """403 means that the key was accepted, and its role refused, without the database."""
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
