"""Several `Ensemble` objects in one process. Each stands for one instance of an application that uses only leases and
jobs; together, the instances form one ensemble.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest

from tenure.config import LeasesConfig
from tenure.ensemble import Ensemble
from tests.support.databases import Database

QUICK = LeasesConfig(duration_seconds=60.0, renew_seconds=0.02, acquire_seconds=0.05, refresh_seconds=0.05)


class Join(Protocol):
    def __call__(self, prepare: Callable[[Ensemble], object] = ..., **given: Any) -> Awaitable[Ensemble]: ...


@pytest.fixture
async def join(database: Database) -> AsyncIterator[Join]:
    """Returns a function that starts one more instance on the database of the test. Before the instance starts, the
    function calls `prepare`, which can add jobs and leaderships to the instance.
    """
    async with AsyncExitStack() as stack:

        async def _join(prepare: Callable[[Ensemble], object] = lambda _ensemble: None, **given: Any) -> Ensemble:
            ensemble = Ensemble(database.url, **{"timing": QUICK, **given})
            prepare(ensemble)
            return await stack.enter_async_context(ensemble)

        yield _join
