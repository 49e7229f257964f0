"""Short runs of the proof with fixed seeds, and a run with a planted bug that the proof must notice."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from proof.plan import Plan
from proof.planted import BUGS, SOURCE, plant, run_planted
from proof.report import report_of, text_of, write_report
from proof.run import Run, run

SECONDS = 6.0
LONGER = 4
PLANTED = "seat-lock"

checked = pytest.mark.timeout(150)


async def run_and_check(plan: Plan, folder: Path, wanted: Callable[[Run], list[str]]) -> None:
    # On a busy machine, too little may happen in a few seconds. In that case, a second run gets more time.
    for seconds in (plan.seconds, LONGER * plan.seconds):
        done = await run(msgspec.structs.replace(plan, seconds=seconds))
        report = report_of(done)
        assert report.findings == [], f"{text_of(report)}\n{done.logs}"
        if min(report.checks.values()) > 0 and wanted(done) == []:
            break
    assert min(report.checks.values()) > 0, report.checks
    assert wanted(done) == []
    write_report(done, folder)
    assert written(folder) == ["report.json", "report.md", "run.svg"]


def written(folder: Path) -> list[str]:
    files = sorted(folder.iterdir())
    assert not any(str(folder.home()) in path.read_text() or "/tmp/" in path.read_text() for path in files)
    return [path.name for path in files]


def too_little(done: Run, requests: int, faults: int) -> list[str]:
    found = {"requests": (len(done.history.operations), requests), "faults": (len(done.history.faults), faults)}
    return [f"{count} {name}, expected {least}" for name, (count, least) in found.items() if count < least]


@pytest.mark.slow
@checked
async def test_every_promise_holds_on_postgresql(tmp_path: Path) -> None:
    plan = Plan(seed=7, seconds=SECONDS, instances=2, fault_pause_seconds=0.5)
    await run_and_check(plan, tmp_path, lambda done: too_little(done, 200, 2))


@pytest.mark.slow
@checked
async def test_every_promise_holds_on_sqlite(tmp_path: Path) -> None:
    plan = Plan(seed=8, seconds=SECONDS, engine="sqlite", instances=2, fault_pause_seconds=0.5)
    await run_and_check(plan, tmp_path, lambda done: too_little(done, 200, 2))


@pytest.mark.slow
@checked
async def test_planted_bug_is_noticed() -> None:
    """Plants one bug. The command `python -m proof planted` plants all bugs in turn, which takes minutes."""
    for seconds in (5.0, 20.0):
        caught = await run_planted(PLANTED, 1, seconds=seconds)
        if caught.as_expected:
            break
    assert caught.as_expected, caught


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_replaces_lines_that_exist(name: str) -> None:
    for path, old, new in BUGS[name].replacements:
        text = (SOURCE / path).read_text(encoding="utf-8")
        assert text.count(old) == 1, (path, old)
        assert old != new


def test_planting_changes_a_copy_of_the_source(tmp_path: Path) -> None:
    bug = BUGS["tenant-filter"]
    ((path, old, new),) = bug.replacements
    copied = (plant(bug, tmp_path) / path).read_text(encoding="utf-8")
    assert (old in copied, new in copied) == (False, True)
