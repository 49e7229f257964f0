"""Several instances that start at the same time on an empty database migrate it once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenure.store import migrate
from tests.support.databases import Database
from tests.support.instances import RunningInstance

INSTANCES = 5


@pytest.mark.slow
async def test_concurrent_instances_migrate_database_once(
    empty_database: Database, start: Callable[[str], RunningInstance]
) -> None:
    with ThreadPoolExecutor(INSTANCES) as threads:
        instances = list(threads.map(start, [empty_database.url] * INSTANCES))
    logs = "".join(instance.wait_until_ready().log() for instance in instances)
    for instance in instances:
        instance.kill()
    assert logs.count("schema.migrated") == int(str(migrate.required_revision())), logs
    assert logs.count("schema.failed") == 0, logs
    assert len(await empty_database.rows("SELECT * FROM installation")) == 1
