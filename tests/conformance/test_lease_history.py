"""The terms of leases, on every engine."""

from datetime import timedelta

import pytest

from tenure.domain.leases import LeaseTerm, TermFilter, TermPosition
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import MICROSECOND, acquire_free_lease, hold_lease
from tests.support.open_requests import NOON, SECOND

pytestmark = pytest.mark.usefixtures("noon")

MINUTE = timedelta(minutes=1)


async def make_terms(database: Database) -> None:
    """Gives lease `a` four terms: one released, one resigned, one expired, and one that goes on. Gives lease `b` one
    term, which has expired, and takes the lock of the job `prune`. Leaves the clock at ten minutes after NOON.
    """
    store, clock = database.store, database.clock
    await store.release_lease(await acquire_free_lease(store, "a", "one"))
    await clock.set(NOON + 2 * MINUTE)
    await acquire_free_lease(store, "a", "two")
    await acquire_free_lease(store, "b", "two")
    await hold_lease(store, "job:prune")
    await clock.set(NOON + 2 * MINUTE + timedelta(seconds=30))
    await store.resign_lease("a", ACTOR)
    await clock.set(NOON + 4 * MINUTE)
    await acquire_free_lease(store, "a", "three")
    await clock.set(NOON + 6 * MINUTE)
    await acquire_free_lease(store, "a", "four", 3600 * SECOND)
    await clock.set(NOON + 10 * MINUTE)


def term(name: str, epoch: int, holder: str, began: float, ended: float | None, how: str | None) -> LeaseTerm:
    """An expected term. `began` and `ended` are minutes after NOON."""
    return LeaseTerm(
        name=name,
        epoch=epoch,
        holder=holder,
        acquired_at=NOON + began * MINUTE,
        ended_at=None if ended is None else NOON + ended * MINUTE,
        how=how,
    )


A4 = term("a", 4, "four", 6, None, None)
A3 = term("a", 3, "three", 4, 5, "expired")
B1 = term("b", 1, "two", 2, 3, "expired")
A2 = term("a", 2, "two", 2, 2.5, "resigned")
A1 = term("a", 1, "one", 0, 0, "released")
ALL = [A4, A3, B1, A2, A1]


async def test_list_terms__shows_end_of_each_term_and_its_cause(database: Database) -> None:
    await make_terms(database)
    assert await database.store.list_terms("a", None, 9) == [A4, A3, A2, A1]
    assert await database.store.list_terms("b", None, 9) == [B1]


async def test_list_terms__is_paged_by_epoch(database: Database) -> None:
    await make_terms(database)
    assert await database.store.list_terms("a", 4, 2) == [A3, A2]
    assert await database.store.list_terms("a", 1, 2) == []


async def test_list_terms__is_none_for_unknown_lease_and_job_lock(database: Database) -> None:
    await make_terms(database)
    for name in ("nothing", "job:prune"):
        assert await database.store.list_terms(name, None, 9) is None


async def test_list_all_terms__lists_newest_first_in_pages(database: Database) -> None:
    await make_terms(database)
    assert await database.store.list_all_terms(TermFilter(), None, 9) == ALL
    found: list[LeaseTerm] = []
    after = None
    while page := await database.store.list_all_terms(TermFilter(NOON, None), after, 1):
        found += page
        after = TermPosition(page[0].acquired_at, page[0].name, page[0].epoch)
    assert found == ALL


async def test_list_all_terms__returns_terms_that_overlap_the_span(database: Database) -> None:
    await make_terms(database)
    for begin, end, expected in (
        (0, 1, [A1]),
        (0, 2, [A1]),  # the end is excluded
        (2.4, 2.45, [B1, A2]),  # both terms began before the span
        (2.5, 3, [B1]),  # the term of `a` ended at the start of the span
        (3, 4, []),
        (5, 7, [A4]),
        (8, 9, [A4]),
        (4.5, None, [A4, A3]),
        (None, 2, [A1]),
    ):
        criteria = TermFilter(
            None if begin is None else NOON + begin * MINUTE, None if end is None else NOON + end * MINUTE
        )
        assert await database.store.list_all_terms(criteria, None, 9) == expected, (begin, end)


async def test_list_all_terms__shows_end_of_expired_lease_to_the_microsecond(database: Database) -> None:
    await acquire_free_lease(database.store, "a", "one")
    for now, ended in ((NOON + MINUTE - MICROSECOND, None), (NOON + MINUTE, NOON + MINUTE)):
        await database.clock.set(now)
        (only,) = await database.store.list_all_terms(TermFilter(), None, 9)
        assert only.ended_at == ended
