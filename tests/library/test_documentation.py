"""The examples in `docs/library.md` run in processes of their own, on a real database.

Only the database URL is replaced.
"""

import asyncio
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.clock import wall_microseconds
from tenure.ensemble import Ensemble
from tests.support.databases import Database

TEXT = (Path(__file__).parents[2] / "docs" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
URL = "sqlite:///app.db"
LINES_MAX = 10
BOUND_SECONDS = 30


def expected_output(block: str) -> str:
    """The text that the example prints. If it ends with an epoch, the epoch is 1, because the database is new."""
    (printed,) = re.findall(r'print\("([^"]+)"', block)
    return f"{printed} 1" if printed.endswith("epoch") else str(printed)


def test_first_example_has_at_most_ten_lines() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= LINES_MAX, f"{len(lines)} lines:\n{BLOCKS[0]}"


def run_example(block: str, url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    assert URL in block, block
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", block.replace(URL, url)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
        check=False,
    )


@pytest.mark.slow
async def test_examples_run(empty_database: Database, tmp_path: Path) -> None:
    """The examples run at the same time, on one new database."""
    assert len(BLOCKS) == 3
    processes = await asyncio.gather(
        *(asyncio.to_thread(run_example, block, empty_database.url, tmp_path) for block in BLOCKS)
    )
    for block, process in zip(BLOCKS, processes, strict=True):
        assert (process.returncode, process.stderr) == (0, ""), f"{block}\n{process.stdout}\n{process.stderr}"
        assert expected_output(block) in process.stdout, process.stdout


async def test_documented_sqlite_fence_check_works(empty_sqlite_database: Database, tmp_path: Path) -> None:
    (statement,) = re.findall(r"`(SELECT 1 FROM leases [^`]*)`", TEXT)
    async with Ensemble(empty_sqlite_database.url) as ensemble:
        lease = await ensemble.try_acquire("import")
        assert lease is not None
        connection = sqlite3.connect(tmp_path / "empty.db", isolation_level=None)

        def holds(epoch: int, now: int) -> bool:
            connection.execute("BEGIN IMMEDIATE")
            found = connection.execute(statement, (lease.fence.name, lease.fence.holder, epoch, now)).fetchall()
            connection.execute("COMMIT")
            return bool(found)

        now = wall_microseconds()
        results = [holds(1, now), holds(0, now), holds(1, now + 61_000_000)]
        await lease.release()
        connection.close()
    assert results == [True, False, False]


async def test_ensemble_starts_on_empty_database(empty_database: Database) -> None:
    async with Ensemble(empty_database.url) as ensemble:
        assert ensemble.holder
