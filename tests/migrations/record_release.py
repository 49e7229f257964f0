"""Records the statements and schema of a release. Run `python -m tests.migrations.record_release` once per release.

The version is that of pyproject.toml. Never change a record. Delete the records of all but the last two releases.
"""

import asyncio
import tomllib
from pathlib import Path

from tenure.store.engines import open_store
from tests.migrations import release
from tests.support.databases import POOL_SIZE, postgres_server

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


async def main() -> None:
    version = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    with postgres_server() as server:
        store = open_store(server.url(), POOL_SIZE)
        await store.migrate()
        await store.close()
        print(release.save(await release.record(server.url(), version)))  # noqa: T201 - it is a script


if __name__ == "__main__":
    asyncio.run(main())
