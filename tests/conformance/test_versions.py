"""The oldest PostgreSQL at hand: without `transaction_timeout`, and with an older planner."""

import pytest

from tenure.model.sessions import CloseReason, Outcome
from tenure.store.engines import open_store
from tests.support.databases import POOL_SIZE, postgres_server
from tests.support.wishes import again, end_one, open_one, wish


@pytest.mark.slow
async def test_an_older_postgres_serves_all_lanes() -> None:
    with postgres_server(version=16) as server:
        store = open_store(server.url(), POOL_SIZE)
        await store.migrate()
        one = wish(kind=1)
        higher = again(one, kind=2)
        outcomes = [(await open_one(store, each)).outcome for each in (one, again(one), higher)]
        ended = await end_one(store, higher.session_id, CloseReason.TERMINATED)
        counts = await store.count_sessions()
        await store.close()
    assert outcomes == [Outcome.CREATED, Outcome.EXISTING, Outcome.UPGRADED]
    assert ended is not None
    assert (counts.total, counts.active) == (2, 0)
