"""An instance with keys of every kind, for one test."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from tenure.domain.keys import ApiKey, Role, new_api_key
from tests.crashes.conftest import own_database, own_postgres  # noqa: F401 - fixtures
from tests.http.local import LocalService, prepare_process
from tests.support.databases import Database
from tests.support.keys import OPERATOR, create_key

OTHER_TENANT = "0190b0a0-0000-7000-8000-000000000002"


@pytest.fixture(scope="package", autouse=True)
def _prepared_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        prepare_process(patched)
        yield


def bearer(key: ApiKey) -> str:
    return f"Bearer {key.text}"


async def create_keys(database: Database) -> Mapping[str, str | None]:
    """The Authorization value of each kind of credential; None for a request without one."""
    keys = {role.value: new_api_key(role) for role in Role}
    for role, key in keys.items():
        await create_key(database.store, key, name=role)
    expired, revoked, tenants = (new_api_key(Role.OPERATOR) for _ in range(3))
    now = (await database.store.read_keys_version()).now
    await create_key(database.store, expired, name="expired", expires_at=now - timedelta(seconds=1))
    await create_key(database.store, revoked, name="revoked")
    await database.store.revoke_key(revoked.public_id, OPERATOR)
    # Neither the route nor the command creates such a key yet. A row of a later version must not get full access.
    await create_key(database.store, tenants, name="tenants", tenant_object_id=OTHER_TENANT)
    wrong = ApiKey(Role.OPERATOR, keys["operator"].public_id, new_api_key(Role.OPERATOR).secret)
    swapped = ApiKey(Role.OPERATOR, keys["reader"].public_id, keys["reader"].secret)
    return {
        "none": None,
        "unknown": bearer(new_api_key(Role.OPERATOR)),
        "wrong secret": bearer(wrong),
        "another role": bearer(swapped),
        "wrong checksum": bearer(keys["operator"])[:-1] + ("a" if bearer(keys["operator"])[-1] != "a" else "b"),
        "malformed": "Bearer tnr_operator",
        "other scheme": "Basic b3BlcmF0b3I6eA==",
        "expired": bearer(expired),
        "revoked": bearer(revoked),
        "of a tenant": bearer(tenants),
        **{role: bearer(key) for role, key in keys.items()},
    }


@asynccontextmanager
async def serving(database: Database) -> AsyncIterator[LocalService]:
    async with LocalService.on(database, "crm").running() as service:
        yield service
