"""API keys for tests."""

from typing import Any

from tenure.domain.audit_log import Actor
from tenure.domain.keys import ApiKey, CreateKeyOutcome, NewKey, Role, StoredKey, new_api_key
from tenure.store.contract import Store

OPERATOR = Actor("4fJ0aQz81LmN", "console", "request-7")


def new_key(key: ApiKey | None = None, **values: Any) -> NewKey:
    key = key or new_api_key(values.get("role", Role.CLIENT))
    return NewKey(**{"public_id": key.public_id, "name": "web", "role": key.role, "digest": key.digest, **values})


async def create_key(store: Store, key: ApiKey | None = None, **values: Any) -> StoredKey:
    """Creates an API key, and asserts that the store does not refuse it."""
    result = await store.create_key(new_key(key, **values), OPERATOR)
    assert result.outcome is CreateKeyOutcome.CREATED
    assert result.key is not None
    return result.key
