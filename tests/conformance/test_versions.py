"""Tenure also works on PostgreSQL 16, which has an older planner and no `transaction_timeout`."""

import pytest

from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, OpenOutcome
from tenure.store.engines import open_store
from tests.support.databases import POOL_SIZE, postgres_server
from tests.support.open_requests import end_one, open_one, request, same_key_request


@pytest.mark.slow
async def test_postgresql_16_opens_upgrades_and_ends_sessions() -> None:
    with postgres_server(version=16) as server:
        store = open_store(server.url(), POOL_SIZE)
        await store.migrate()
        one = request(kind=1)
        higher = same_key_request(one, kind=2)
        outcomes = [(await open_one(store, each)).outcome for each in (one, same_key_request(one), higher)]
        ended = await end_one(store, higher.session_id, CloseReason.TERMINATED)
        counts = await store.count_sessions(EVERYTHING)
        await store.close()
    assert outcomes == [OpenOutcome.CREATED, OpenOutcome.EXISTING, OpenOutcome.UPGRADED]
    assert ended is not None
    assert (counts.total, counts.active) == (2, 0)
