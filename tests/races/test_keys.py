"""Changes of API keys while several instances use them."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tenure.access import authenticator as module
from tenure.access.authenticator import TRUST_SECONDS
from tenure.access.caller import ANONYMOUS
from tenure.domain.keys import Role, new_api_key
from tenure.store.retries import Retries
from tests.support.access import caller_of, running, status_of
from tests.support.databases import Database
from tests.support.keys import OPERATOR, create_key

PATIENCE_SECONDS = 30.0


@pytest.fixture(autouse=True)
def _long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a slow read must not look like an unavailable database: the grace would begin."""
    monkeypatch.setattr(Retries.run, "__defaults__", (PATIENCE_SECONDS,))


@pytest.mark.slow
async def test_first_key_and_revocation_take_effect_within_two_seconds_on_every_instance(database: Database) -> None:
    """Checks each instance only once, two seconds after a change, because even a slow instance must not need longer."""
    key = new_api_key(Role.CLIENT)
    async with AsyncExitStack() as stack:
        instances = [await stack.enter_async_context(running(database.another_store())) for _ in range(3)]
        assert [await caller_of(each, None) for each in instances] == [ANONYMOUS] * 3
        await create_key(database.store, key)
        await asyncio.sleep(TRUST_SECONDS)
        assert [await status_of(each, None) for each in instances] == [401] * 3
        assert {(await caller_of(each, key)).subject for each in instances} == {key.public_id}
        await database.store.revoke_key(key.public_id, OPERATOR)
        await asyncio.sleep(TRUST_SECONDS)
        assert [await status_of(each, key) for each in instances] == [401] * 3
        assert [await status_of(each, None) for each in instances] == [401] * 3
    found = await database.store.find_key(key.public_id)
    assert found is not None
    assert found.last_used_at is not None


async def test_notification_makes_instance_read_keys_at_once(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REFRESH_SECONDS", "TRUST_SECONDS"):
        monkeypatch.setattr(module, name, 600.0)
    async with running(postgres_database.another_store()) as instance:
        assert await caller_of(instance, None) == ANONYMOUS
        await create_key(postgres_database.store)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await status_of(instance, None) == 200:  # noqa: ASYNC110 - the instance offers no event to wait for
                await asyncio.sleep(0.01)
