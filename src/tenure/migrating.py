"""`tenure migrate`: the same migration that `serve` runs, by hand or only shown."""

import asyncio

from tenure.config import Config
from tenure.store import migrate as migrations
from tenure.store.engines import open_store


def migrate(config: Config, *, dry_run: bool) -> str:
    return asyncio.run(_migrate(config, dry_run=dry_run))


async def _migrate(config: Config, *, dry_run: bool) -> str:
    store = open_store(config.database, config.pool_size)
    try:
        if dry_run:
            script = migrations.script(await store.schema_revision(), store.dialect_name)
            return script or f"-- up to date ({migrations.required_revision()})"
        applied = await store.migrate()
    finally:
        await store.close()
    return f"migrated to {applied[-1]}" if applied else f"up to date ({migrations.required_revision()})"
