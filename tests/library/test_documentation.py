"""`docs/library.md` cannot lie: what it shows is run, on a real database, by a process of its own."""

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.clock import wall_microseconds
from tests.library.conftest import Join
from tests.support.databases import Database

TEXT = (Path(__file__).parents[2] / "docs" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
URL = "sqlite:///app.db"
SAID = ["nobody else runs this now:", "mine, in epoch 1", "leading in epoch 1"]
"""What each example prints on a new database."""
LINES_MAX = 10
BOUND_SECONDS = 30


def test_every_example_is_known_here() -> None:
    assert [said for said, block in zip(SAID, BLOCKS, strict=True) if said.partition(" ")[0] not in block] == []


def test_leases_and_jobs_are_ten_lines_away() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= LINES_MAX, f"{len(lines)} lines:\n{BLOCKS[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_examples_run_as_they_stand(empty_database: Database, tmp_path: Path, number: int) -> None:
    block = BLOCKS[number]
    assert URL in block, block
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", block.replace(URL, empty_database.url)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, ""), f"{block}\n{process.stdout}\n{process.stderr}"
    assert SAID[number] in process.stdout, process.stdout


async def test_the_check_of_a_fence_on_sqlite_is_as_it_says(empty_sqlite_database: Database, tmp_path: Path) -> None:
    from tenure.ensemble import Ensemble  # noqa: PLC0415

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
        told = [holds(1, now), holds(0, now), holds(1, now + 61_000_000)]
        await lease.release()
        connection.close()
    assert told == [True, False, False]


async def test_joining_is_possible_on_a_database_with_nothing_in_it(join: Join) -> None:
    """What the first example relies on."""
    assert (await join()).holder
