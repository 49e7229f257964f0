"""`tenure audit`: the same on every engine, whether or not the service runs."""

import asyncio
from datetime import datetime

from tenure.config import Config
from tenure.store.engines import open_store
from tenure.usage.audit import Audit, Ledger, Report


def audit(config: Config, ledger: Ledger | None, from_at: datetime | None) -> Report:
    return asyncio.run(_audit(config, ledger, from_at))


async def _audit(config: Config, ledger: Ledger | None, from_at: datetime | None) -> Report:
    store = open_store(config.database, config.pool_size, must_exist=True)
    try:
        return await Audit(store, ledger, from_at).run()
    finally:
        await store.close()
