"""Hostile clients do not harm a well-behaved one: no slow answer, no growing memory, no traceback."""

import asyncio
import os
import re
import sys
from pathlib import Path

import msgspec
import pytest

from tests.edge.fuzz import Fuzz
from tests.edge.neighbour import Seen
from tests.support.instances import RunningInstance

SECONDS = float(os.environ.get("TENURE_TEST_FUZZ_SECONDS", "15"))
SETTINGS = {
    "TENURE_HTTP__MAX_CONNECTIONS": "250",
    "TENURE_HTTP__HEAD_SECONDS": "2",
    "TENURE_HTTP__BODY_SECONDS": "2",
    "TENURE_HTTP__IDLE_SECONDS": "3",
    "TENURE_STREAMS__MAX_PER_INSTANCE": "50",
}
SLOWEST_SECONDS = 1.0
"""The limit on the delay of an answer of the attacked instance, compared with the same answer of the other instance,
which is not attacked."""
MEMORY_MAX_BYTES = 64 * 1024 * 1024
FOLDER = Path(__file__).parents[2]


@pytest.mark.slow
async def test_hostile_clients_do_not_harm_others(start: type[RunningInstance], tmp_path: Path, seed: int) -> None:
    """`TENURE_TEST_FUZZ_SEED` repeats a run; `TENURE_TEST_FUZZ_SECONDS` sets the duration of a run."""
    seed = int(os.environ.get("TENURE_TEST_FUZZ_SEED", seed))
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    attacked = start(f"sqlite:///{tmp_path / 'attacked.db'}", **SETTINGS)  # type: ignore[arg-type]
    control = start(f"sqlite:///{tmp_path / 'control.db'}")  # type: ignore[arg-type]
    for instance in (attacked, control):
        instance.wait_until_ready()
    fuzz = Fuzz(attacked.port, seed)
    # The first connections fill caches and load modules, so the memory is measured after them.
    await fuzz.run(3)
    arguments = [str(number) for number in (attacked.port, control.port, attacked.process.pid)]
    neighbour = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.edge.neighbour",
        *arguments,
        cwd=FOLDER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    await fuzz.run(SECONDS)
    output, _ = await neighbour.communicate(b"")
    seen = msgspec.json.decode(output, type=Seen)
    log = attacked.log()
    grown = seen.most_memory - seen.memory
    summary = f"seed {seed}: {fuzz.connections} connections, {seen.answers} answers, slowest +{seen.slowest:.2f} s"
    print(f"{summary}, +{grown / 1e6:.0f} MB")  # noqa: T201 - shown if the test fails
    assert seen.wrong == [], seed
    assert seen.answers > SECONDS, seed
    assert seen.slowest < SLOWEST_SECONDS, seed
    assert grown < MEMORY_MAX_BYTES, seed
    assert not re.search('Traceback|"exception"|"level":"error"', log), f"{seed}\n{log}"
