"""The schedule is kept in step with what is pending, however late that was committed, and by whatever clock."""

import pytest

from tenure.ids import id_of_number
from tenure.model.submissions import Change, SubmissionState
from tenure.submissions import intake as intake_module
from tenure.submissions.intake import COMPARED, TRAIL, Intake, ServerClock
from tests.support.submission_stores import NOON_MICROSECONDS, SubmissionStore
from tests.support.wishes import SECOND

LATER = NOON_MICROSECONDS + 3600 * SECOND
ALL = 10_000


@pytest.fixture
def store() -> SubmissionStore:
    store = SubmissionStore()
    store.set_now(0)
    return store


@pytest.fixture
async def intake(store: SubmissionStore) -> Intake:
    """Built from what was there in the beginning: nothing."""
    return await built(store)


async def built(store: SubmissionStore) -> Intake:
    intake = Intake(store, ServerClock())  # type: ignore[arg-type]
    await intake.build()
    return intake


def at(seconds: float) -> int:
    """So long after noon."""
    return NOON_MICROSECONDS + round(seconds * SECOND)


def due(intake: Intake, gateway: str = "crm") -> list[int]:
    """Which are given out by now, each time that they are."""
    return [int(each.replace("-", ""), 16) for each in intake.schedule.take(gateway, LATER, ALL)]


# Building.


async def test_builds_from_all_that_is_pending(store: SubmissionStore) -> None:
    store.add(1, 2, changed=at(-86_400))
    store.add(3, gateway="usages", changed=at(-1))
    store.add(4, state=SubmissionState.DELIVERED.value)
    intake = await built(store)
    assert (due(intake), due(intake, "usages"), len(intake.schedule)) == ([1, 2], [3], 3)


async def test_builds_page_by_page(store: SubmissionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "BUILDING_PAGE", 3)
    store.add(*range(1, 8), changed=at(-10))
    intake = await built(store)
    assert (due(intake), store.asked.count("list_waiting")) == (list(range(1, 8)), 3)


async def test_what_changes_while_it_builds_comes_with_the_first_refresh(
    store: SubmissionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a page that was read already."""
    monkeypatch.setattr(intake_module, "BUILDING_PAGE", 2)
    store.add(5, 6, 7, changed=at(-3))
    read = store._page

    def read_slowly(after: Change | None, limit: int) -> object:
        page = read(after, limit)
        store.add(4, changed=at(-4))
        store.set_now(60)
        return page

    monkeypatch.setattr(store, "_page", read_slowly)
    intake = await built(store)
    monkeypatch.setattr(store, "_page", read)
    assert due(intake) == [5, 6, 7]
    await intake.refresh()
    assert due(intake) == [4]


async def test_what_was_built_is_not_new_to_a_refresh(store: SubmissionStore) -> None:
    store.add(1, changed=at(-1))
    intake = await built(store)
    assert due(intake) == [1]
    await intake.refresh()
    assert due(intake) == []


# Refreshing.


async def test_finds_what_was_accepted_since(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    store.set_now(2)
    await intake.refresh()
    assert due(intake) == [1]


async def test_takes_what_was_accepted_at_the_same_instant(store: SubmissionStore, intake: Intake) -> None:
    """In whatever order of ids: 5 is read, then 3 and 7 appear beside it."""
    store.add(5, changed=at(1))
    store.set_now(1)
    await intake.refresh()
    assert due(intake) == [5]
    store.add(3, 7, changed=at(1))
    await intake.refresh()
    assert due(intake) == [3, 7]


async def test_takes_equal_instants_over_the_edge_of_a_page(
    store: SubmissionStore, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "PAGE", 2)
    store.add(*range(1, 8), changed=at(1))
    store.set_now(1)
    await intake.refresh()
    assert due(intake) == list(range(1, 8))


async def test_takes_what_was_committed_late(store: SubmissionStore, intake: Intake) -> None:
    """Almost as late as a write may be, several refreshes after others of that time."""
    for second in range(1, 5):
        store.set_now(second)
        await intake.refresh()
    store.add(1, changed=at(0.5))
    store.set_now(5)
    await intake.refresh()
    assert due(intake) == [1]


async def test_takes_what_was_committed_as_late_as_it_may_be(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(10)
    await intake.refresh()
    store.add(1, changed=at(10) - TRAIL)
    store.set_now(11)
    await intake.refresh()
    assert due(intake) == [1]


async def test_takes_once_what_is_read_again_and_again(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    taken = []
    for second in range(1, 9):
        store.set_now(second)
        await intake.refresh()
        taken += due(intake)
    assert taken == [1]


async def test_takes_again_what_is_to_be_retried(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.refresh()
    intake.forget(id_of_number(1))
    assert (due(intake), 1 in intake.schedule) == ([], False)
    store.add(1, changed=at(2), due=at(2))
    store.set_now(2)
    await intake.refresh()
    assert (due(intake), 1 in intake.schedule) == ([1], True)


async def test_takes_again_what_was_retried_before_it_was_forgotten(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.refresh()
    intake.forget(id_of_number(1))
    await intake.refresh()
    assert due(intake) == [1]


async def test_has_whoever_sends_ask_about_what_is_under_way(store: SubmissionStore, intake: Intake) -> None:
    """It may be an attempt of whose beginning nobody was told."""
    store.add(1, changed=at(1), due=None)
    store.set_now(1)
    await intake.refresh()
    assert (due(intake), 1 in intake.schedule) == ([1], True)


async def test_forgets_what_it_has_seen_long_ago(store: SubmissionStore, intake: Intake) -> None:
    """Or a leader's memory would grow with every submission."""
    store.add(*range(100), changed=at(1))
    store.set_now(1)
    await intake.refresh()
    store.set_now(20)
    await intake.refresh()
    assert intake._seen == {}


async def test_a_clock_that_was_set_back_loses_nothing(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(3600)
    await intake.refresh()
    store.add(1, changed=at(10))
    store.set_now(11)
    await intake.refresh()
    store.add(2, changed=at(11.5))
    store.set_now(12)
    await intake.refresh()
    assert due(intake) == [1, 2]


async def test_tells_the_time_by_the_databases_clock(store: SubmissionStore) -> None:
    clock = ServerClock()
    intake = Intake(store, clock)  # type: ignore[arg-type]
    store.set_now(777)
    await intake.build()
    assert 0 <= clock.now_microseconds() - at(777) < 60 * SECOND


# Hints.


async def test_a_hint_finds_what_was_just_accepted(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.look()
    assert due(intake) == [1]


async def test_a_refresh_finds_what_a_hint_missed(store: SubmissionStore, intake: Intake) -> None:
    """Hints look back less far: they must not move the cursor of the refreshes."""
    store.set_now(4)
    await intake.look()
    store.add(1, changed=at(1))
    await intake.look()
    assert due(intake) == []
    await intake.refresh()
    assert due(intake) == [1]


async def test_what_a_hint_found_is_not_new_to_a_refresh(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.look()
    await intake.refresh()
    assert due(intake) == [1]
    await intake.refresh()
    assert due(intake) == []


async def test_hints_find_what_overtook_each_other(store: SubmissionStore, intake: Intake) -> None:
    store.add(2, changed=at(1))
    store.set_now(1)
    await intake.look()
    store.add(1, changed=at(0.9))
    await intake.look()
    assert due(intake) == [1, 2]


# Comparing.


async def test_compares_and_finds_nothing_where_refreshes_found_all(store: SubmissionStore, intake: Intake) -> None:
    for second in range(1, 60):
        store.add(second, changed=at(second))
        store.set_now(second)
        await intake.refresh()
    assert (await intake.compare(), len(due(intake))) == (0, 59)


async def test_compares_and_counts_what_no_refresh_found(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(60)
    await intake.refresh()
    store.add(1, 2, changed=at(60) - TRAIL - 1)
    assert (await intake.compare(), due(intake)) == (2, [1, 2])


async def test_what_was_counted_is_not_counted_again(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(60)
    await intake.refresh()
    store.add(1, changed=at(50))
    assert [await intake.compare() for _ in range(2)] == [1, 0]


async def test_does_not_count_what_the_next_refresh_will_find(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(60)
    await intake.refresh()
    store.add(1, changed=at(60) - TRAIL)
    store.add(2, changed=at(61))
    assert await intake.compare() == 0
    await intake.refresh()
    assert due(intake) == [1, 2]


async def test_does_not_count_what_is_done_while_it_reads(
    store: SubmissionStore, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pending when the page was read, delivered and forgotten before the page was looked at."""
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.refresh()
    store.set_now(60)
    await intake.refresh()
    read = store._page

    def done_meanwhile(after: Change | None, limit: int) -> object:
        page = read(after, limit)
        intake.forget(id_of_number(1))
        return page

    monkeypatch.setattr(store, "_page", done_meanwhile)
    assert (await intake.compare(), due(intake)) == (0, [])


async def test_counts_what_was_done_before_and_came_back_unseen(store: SubmissionStore, intake: Intake) -> None:
    """What was forgotten during one comparison means nothing for the next."""
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.refresh()
    await intake.compare()
    store.rows[1].state = SubmissionState.DELIVERED.value
    intake.forget(id_of_number(1))
    store.set_now(60)
    await intake.refresh()
    store.rows[1].state = SubmissionState.PENDING.value
    assert await intake.compare() == 1


async def test_compares_no_further_back_than_ten_minutes(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(1200)
    await intake.refresh()
    store.add(1, changed=at(1200) - COMPARED - 1)
    store.add(2, changed=at(1200) - COMPARED + 1)
    assert (await intake.compare(), due(intake)) == (1, [2])


async def test_compares_page_by_page(store: SubmissionStore, intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "PAGE", 2)
    store.set_now(60)
    await intake.refresh()
    store.add(*range(1, 6), changed=at(50))
    assert await intake.compare() == 5
