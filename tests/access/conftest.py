"""For the tests of access: an instance, and credentials of every kind."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tenure.config import AccessConfig
from tenure.domain.keys import ApiKey, Role, new_api_key
from tenure.domain.session_tokens import session_token
from tests.crashes.conftest import own_database, own_postgres, own_template  # noqa: F401 - fixtures
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


async def create_keys(database: Database) -> dict[str, str | None]:
    """Creates API keys in the database. Returns the `Authorization` header of each kind of credential, valid or not;
    None stands for a request without a credential.
    """
    keys = {role.value: new_api_key(role) for role in Role}
    for role, key in keys.items():
        await create_key(database.store, key, name=role)
    expired, revoked = (new_api_key(Role.OPERATOR) for _ in range(2))
    now = (await database.store.read_keys_version()).now
    await create_key(database.store, expired, name="expired", expires_at=now - timedelta(seconds=1))
    await create_key(database.store, revoked, name="revoked")
    await database.store.revoke_key(revoked.public_id, OPERATOR)
    bound = {f"{role.value} of a tenant": new_api_key(role) for role in Role}
    for name, key in bound.items():
        await create_key(database.store, key, name=name, tenant_object_id=OTHER_TENANT)
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
        **{name: bearer(key) for name, key in bound.items()},
        **{role: bearer(key) for role, key in keys.items()},
    }


async def sign_token(database: Database, session_id: str) -> str:
    """Returns an `Authorization` header with a valid session token for this session."""
    (key,) = (await database.store.read_keys_version()).signing_keys
    return f"Bearer {session_token(key, session_id)}"


@asynccontextmanager
async def serving(database: Database, **settings: Any) -> AsyncIterator[LocalService]:
    # Throttling is off, because these tests send many wrong credentials, all from one address.
    access = AccessConfig(failures_per_minute=0)
    async with LocalService.on(database, "crm", access=access, **settings).running() as service:
        yield service
