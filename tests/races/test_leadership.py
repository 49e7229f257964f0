"""Many instances, and somebody who stops, kills and deposes whoever leads: one leader at a time, ever."""

import asyncio
import random
import signal
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from tenure.clock import from_microseconds
from tests.support.asking import ask
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.terms import Term, leads, overlapping, table, terms
from tests.support.waiting import all_logs, until

Start = Callable[..., RunningInstance]

LEASE = "submission-executor"
TIMING = {
    "TENURE_LEASES__DURATION_SECONDS": "2",
    "TENURE_LEASES__RENEW_SECONDS": "1",
    "TENURE_LEASES__ACQUIRE_SECONDS": "1",
    "TENURE_LEASES__REFRESH_SECONDS": "1",
}
STARTED_WITHIN_SECONDS = 40
"""All of them at once, and each imports for a second."""
HISTORY = f"SELECT * FROM lease_history WHERE name = '{LEASE}' ORDER BY epoch"


@pytest.mark.slow
async def test_one_leads_at_a_time_whatever_happens_to_ten_instances(postgres_database: Database, start: Start) -> None:
    await churn(postgres_database, start, 10, ["kill", "stop", "stop", "resign"])


@pytest.mark.slow
async def test_one_leads_at_a_time_whatever_happens_to_four_instances_on_a_file(
    sqlite_database: Database, start: Start
) -> None:
    await churn(sqlite_database, start, 4, ["kill", "resign"])


async def churn(database: Database, start: Start, count: int, fates: list[str]) -> None:
    seed = random.SystemRandom().getrandbits(32)
    random.Random(seed).shuffle(fates)
    instances = [start(database.url, **TIMING) for _ in range(count)]
    left = list(instances)
    for fate in fates:
        await befall(await leader(left), fate, left)
    await until(lambda: all(is_ready(each) for each in left), STARTED_WITHIN_SECONDS, "all are ready", left)
    await leader(left)
    for instance in instances:
        instance.tell_to_stop()
    for instance in instances:
        await asyncio.to_thread(instance.wait_for_its_end)
    found = terms(instance.log() for instance in instances)
    shown = f"seed {seed}: {fates}\n{table(found)}\n{all_logs(instances)}"
    check_terms(found, len(fates), shown)
    check_history(await database.rows(HISTORY), found, shown)


def is_ready(instance: RunningInstance) -> bool:
    return "instance.ready" in instance.log()


async def leader(left: Sequence[RunningInstance]) -> RunningInstance:
    found: list[RunningInstance] = []

    def leading() -> list[RunningInstance]:
        found[:] = [each for each in left if leads(each.log())]
        return found

    await until(leading, STARTED_WITHIN_SECONDS, "one of them leads", left)
    return found[0]


async def befall(instance: RunningInstance, fate: str, left: list[RunningInstance]) -> None:
    if fate == "resign":
        asked = [each for each in left if is_ready(each)][-1]
        answered = await asyncio.to_thread(ask, asked.address, f"/leases/{LEASE}/resign", "POST")
        assert answered.status == 200, answered
        await until(lambda: not leads(instance.log()), 3, "it resigns", [instance])
        return
    left.remove(instance)
    if fate == "kill":
        instance.kill()
    else:
        instance.send(signal.SIGTERM)


def check_terms(found: Sequence[Term], changes: int, shown: str) -> None:
    assert overlapping(found) == [], shown
    epochs = [term.epoch for term in found]
    assert all(one < other for one, other in pairwise(epochs)), shown
    assert len(found) > changes, shown


def check_history(rows: Sequence[dict[str, Any]], found: Sequence[Term], shown: str) -> None:
    """What the database kept of it: the same, and in its own time no overlap either."""
    shown = f"{rows}\n{shown}"
    assert [(row["epoch"], row["holder"]) for row in rows] == [(term.epoch, term.holder) for term in found], shown
    ends = [(row["how"], term.reason) for row, term in zip(rows, found, strict=True)]
    assert all(how == "expired" for how, reason in ends if reason == "killed"), shown
    # Nor does one that stood still for longer than its lease, with the machine, end it itself.
    assert all(reason not in ("released", "resigned") for how, reason in ends if how == "expired"), shown
    spans = [(instant(row["acquired_at"]), instant(row["ended_at"])) for row in rows]
    assert all(began <= ended for began, ended in spans), shown
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), shown


def instant(value: datetime | int) -> datetime:
    return from_microseconds(value) if isinstance(value, int) else value
