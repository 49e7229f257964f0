"""API keys while the database is stopped."""

import asyncio

import pytest

from tenure.access import authenticator as module
from tenure.access.authenticator import Authenticator
from tenure.clock import boottime
from tenure.domain.keys import Role, new_api_key
from tests.support.access import GRACE_SECONDS, status_of
from tests.support.databases import Database, PostgresServer
from tests.support.keys import OPERATOR, create_key
from tests.support.telemetry import RecordedTelemetry

pytestmark = pytest.mark.slow


async def test_recently_used_key_works_for_grace_and_revoked_key_stays_refused(
    own_postgres: PostgresServer, own_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = own_database.store
    await store.migrate()
    used, unused, revoked = (new_api_key(Role.CLIENT) for _ in range(3))
    for name, key in (("used", used), ("unused", unused), ("revoked", revoked)):
        await create_key(store, key, name=name)
    instance = Authenticator(store, RecordedTelemetry(), GRACE_SECONDS)
    assert [await status_of(instance, key) for key in (used, revoked)] == [200, 200]
    await store.revoke_key(revoked.public_id, OPERATOR)
    await instance.refresh()
    assert [await status_of(instance, key) for key in (used, revoked)] == [200, 401]

    await asyncio.to_thread(own_postgres.stop)
    try:
        await instance.refresh()
        assert [await status_of(instance, key) for key in (used, unused, revoked, None)] == [200, 503, 401, 401]
        monkeypatch.setattr(module, "boottime", lambda: boottime() + GRACE_SECONDS)
        await instance.refresh()
        assert [await status_of(instance, key) for key in (used, unused, revoked, None)] == [503] * 4
    finally:
        await asyncio.to_thread(own_postgres.start)

    await instance.refresh()
    assert [await status_of(instance, key) for key in (used, unused, revoked, None)] == [200, 200, 401, 401]
