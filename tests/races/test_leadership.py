"""There are never two leaders at a time while leaders are stopped, killed or made to resign."""

import asyncio
import random
import signal
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from tenure.clock import from_microseconds
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.simple_http import send_request
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
"""All instances start at the same time, and each needs a second to import its modules."""
HISTORY = f"SELECT * FROM lease_history WHERE name = '{LEASE}' ORDER BY epoch"


@pytest.mark.slow
async def test_six_instances_never_have_two_leaders(postgres_database: Database, start: Start) -> None:
    await churn(postgres_database, start, 6, ["kill", "stop", "stop", "resign"])


@pytest.mark.slow
async def test_three_instances_on_sqlite_never_have_two_leaders(sqlite_database: Database, start: Start) -> None:
    await churn(sqlite_database, start, 3, ["kill", "resign"])


async def churn(database: Database, start: Start, count: int, faults: list[str]) -> None:
    seed = random.SystemRandom().getrandbits(32)
    random.Random(seed).shuffle(faults)
    instances = [start(database.url, **TIMING) for _ in range(count)]
    left = list(instances)
    for fault in faults:
        await cause(await leader(left), fault, left)
    await until(lambda: all(is_ready(each) for each in left), STARTED_WITHIN_SECONDS, "all are ready", left)
    await leader(left)
    for instance in instances:
        instance.terminate()
    for instance in instances:
        await asyncio.to_thread(instance.wait_for_exit)
    found = terms(instance.log() for instance in instances)
    shown = f"seed {seed}: {faults}\n{table(found)}\n{all_logs(instances)}"
    check_terms(found, len(faults), shown)
    check_history(await database.rows(HISTORY), found, shown)


def is_ready(instance: RunningInstance) -> bool:
    return "instance.ready" in instance.log()


async def leader(left: Sequence[RunningInstance]) -> RunningInstance:
    found: list[RunningInstance] = []

    def leading() -> list[RunningInstance]:
        found[:] = [each for each in left if leads(each.log())]
        return found

    await until(leading, STARTED_WITHIN_SECONDS, "one leads", left)
    return found[0]


async def cause(instance: RunningInstance, fault: str, left: list[RunningInstance]) -> None:
    if fault == "resign":
        ready = [each for each in left if is_ready(each)][-1]
        answered = await asyncio.to_thread(send_request, ready.address, f"/leases/{LEASE}/resign", "POST")
        assert answered.status == 200, answered
        await until(lambda: not leads(instance.log()), 3, "the leader resigns", [instance])
        return
    left.remove(instance)
    if fault == "kill":
        instance.kill()
    else:
        instance.send(signal.SIGTERM)


def check_terms(found: Sequence[Term], changes: int, shown: str) -> None:
    assert overlapping(found) == [], shown
    epochs = [term.epoch for term in found]
    assert all(one < other for one, other in pairwise(epochs)), shown
    assert len(found) > changes, shown


def check_history(rows: Sequence[dict[str, Any]], found: Sequence[Term], shown: str) -> None:
    """Asserts that the lease history in the database has the same terms as the logs, and that these terms do not
    overlap.
    """
    shown = f"{rows}\n{shown}"
    assert [(row["epoch"], row["holder"]) for row in rows] == [(term.epoch, term.holder) for term in found], shown
    ends = [(row["how"], term.reason) for row, term in zip(rows, found, strict=True)]
    assert all(how == "expired" for how, reason in ends if reason == "killed"), shown
    # If the lease expired in the database, for example while the machine was paused, its holder must not have logged a
    # release or a resignation.
    assert all(reason not in ("released", "resigned") for how, reason in ends if how == "expired"), shown
    spans = [(instant(row["acquired_at"]), instant(row["ended_at"])) for row in rows]
    assert all(began <= ended for began, ended in spans), shown
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), shown


def instant(value: datetime | int) -> datetime:
    return from_microseconds(value) if isinstance(value, int) else value
