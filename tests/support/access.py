"""Authenticators on real stores."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tenure.access.authenticator import Authenticator
from tenure.access.caller import Caller
from tenure.domain.keys import ApiKey
from tenure.errors import Problem
from tenure.store.contract import Store, Topic
from tests.support.telemetry import RecordedTelemetry

GRACE_SECONDS = 300.0


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[Authenticator]:
    """Runs the authenticator of one instance with its background tasks. Closes the store on exit."""
    authenticator = Authenticator(store, RecordedTelemetry(), GRACE_SECONDS)
    store.listen(Topic.KEYS, authenticator.wake)
    tasks = asyncio.create_task(authenticator.run())
    try:
        yield authenticator
    finally:
        tasks.cancel()
        await asyncio.gather(tasks, return_exceptions=True)
        await authenticator.save_last_uses()
        await store.close()


async def caller_of(authenticator: Authenticator, key: ApiKey | None) -> Caller:
    headers = [] if key is None else [(b"authorization", f"Bearer {key.text}".encode())]
    identified = authenticator.identify(headers)
    return await identified if inspect.isawaitable(identified) else identified  # type: ignore[return-value]


async def status_of(authenticator: Authenticator, key: ApiKey | None) -> int:
    """Returns 200 if the key is accepted, or else the status of the refusal. A `key` of None sends no credential."""
    try:
        await caller_of(authenticator, key)
    except Problem as problem:
        return problem.status
    return 200
