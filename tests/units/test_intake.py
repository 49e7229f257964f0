"""The intake keeps the schedule in step with the pending submissions, even after late commits and clock changes."""

import pytest

from tenure.clock import ServerClock
from tenure.domain.submissions import Change, SubmissionState
from tenure.ids import id_of_number
from tenure.submissions import intake as intake_module
from tenure.submissions.intake import COMPARED, TRAIL, Intake
from tests.support.open_requests import SECOND
from tests.support.submission_stores import NOON_MICROSECONDS, SubmissionStore

MUCH_LATER = NOON_MICROSECONDS + 3600 * SECOND
ALL = 10_000


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SubmissionStore:
    """A store whose clock stands still until a test sets it. The monotonic clock of the process moves together with
    this clock, so the intake notices no step of the database's clock.
    """
    store = SubmissionStore()
    store.set_now(0)
    monkeypatch.setattr(intake_module, "monotonic", lambda: (store.now - NOON_MICROSECONDS) / SECOND)
    return store


@pytest.fixture
async def intake(store: SubmissionStore) -> Intake:
    """An intake that was built from an empty store."""
    return await built(store)


async def built(store: SubmissionStore) -> Intake:
    intake = Intake(store, ServerClock())  # type: ignore[arg-type]
    await intake.build()
    return intake


def at(seconds: float) -> int:
    """Returns the instant this many seconds after noon, in microseconds since 1970."""
    return NOON_MICROSECONDS + round(seconds * SECOND)


def due(intake: Intake, gateway: str = "crm") -> list[int]:
    """Takes all submissions that are due by MUCH_LATER, and returns their numbers."""
    return [int(each.replace("-", ""), 16) for each in intake.schedule.take(gateway, MUCH_LATER, ALL)]


# Building.


async def test_build_loads_all_pending_submissions(store: SubmissionStore) -> None:
    store.add(1, 2, changed=at(-86_400))
    store.add(3, gateway="usages", changed=at(-1))
    store.add(4, state=SubmissionState.DELIVERED.value)
    intake = await built(store)
    assert (due(intake), due(intake, "usages"), len(intake.schedule)) == ([1, 2], [3], 3)


async def test_build_reads_pages(store: SubmissionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "BUILDING_PAGE", 3)
    store.add(*range(1, 8), changed=at(-10))
    intake = await built(store)
    assert (due(intake), store.calls.count("list_pending")) == (list(range(1, 8)), 3)


async def test_first_refresh_finds_submissions_changed_during_build(
    store: SubmissionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its time of change, the new submission belongs on a page that the build has already read."""
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


async def test_refresh_does_not_repeat_built_submissions(store: SubmissionStore) -> None:
    store.add(1, changed=at(-1))
    intake = await built(store)
    assert due(intake) == [1]
    await intake.refresh()
    assert due(intake) == []


# Refreshing.


async def test_refresh_finds_newly_accepted_submission(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    store.set_now(2)
    await intake.refresh()
    assert due(intake) == [1]


async def test_refresh_finds_later_submissions_with_equal_timestamp(store: SubmissionStore, intake: Intake) -> None:
    """The order of ids does not matter: 5 is read, then 3 and 7 appear."""
    store.add(5, changed=at(1))
    store.set_now(1)
    await intake.refresh()
    assert due(intake) == [5]
    store.add(3, 7, changed=at(1))
    await intake.refresh()
    assert due(intake) == [3, 7]


async def test_refresh_reads_equal_timestamps_across_pages(
    store: SubmissionStore, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "PAGE", 2)
    store.add(*range(1, 8), changed=at(1))
    store.set_now(1)
    await intake.refresh()
    assert due(intake) == list(range(1, 8))


async def test_refresh_finds_submission_committed_late(store: SubmissionStore, intake: Intake) -> None:
    """The submission commits 4.5 seconds after its timestamp, almost the maximum delay, and after several refreshes."""
    for second in range(1, 5):
        store.set_now(second)
        await intake.refresh()
    store.add(1, changed=at(0.5))
    store.set_now(5)
    await intake.refresh()
    assert due(intake) == [1]


async def test_refresh_finds_submission_committed_at_maximum_delay(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(10)
    await intake.refresh()
    store.add(1, changed=at(10) - TRAIL)
    store.set_now(11)
    await intake.refresh()
    assert due(intake) == [1]


async def test_repeatedly_read_submission_is_scheduled_once(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    taken = []
    for second in range(1, 9):
        store.set_now(second)
        await intake.refresh()
        taken += due(intake)
    assert taken == [1]


async def test_refresh_schedules_retried_submission_again(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.refresh()
    intake.forget(id_of_number(1))
    assert (due(intake), 1 in intake.schedule) == ([], False)
    store.add(1, changed=at(2), due=at(2))
    store.set_now(2)
    await intake.refresh()
    assert (due(intake), 1 in intake.schedule) == ([1], True)


async def test_refresh_schedules_submission_retried_before_its_end_was_known(
    store: SubmissionStore, intake: Intake
) -> None:
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.refresh()
    intake.forget(id_of_number(1))
    await intake.refresh()
    assert due(intake) == [1]


async def test_refresh_schedules_submission_with_open_attempt(store: SubmissionStore, intake: Intake) -> None:
    """If the response of `begin_attempts` was lost, this executor does not know that it began the attempt."""
    store.add(1, changed=at(1), due=None)
    store.set_now(1)
    await intake.refresh()
    assert (due(intake), 1 in intake.schedule) == ([1], True)


async def test_refresh_drops_old_entries_of_seen_submissions(store: SubmissionStore, intake: Intake) -> None:
    """Otherwise the memory of a leader would grow with every submission."""
    store.add(*range(100), changed=at(1))
    store.set_now(1)
    await intake.refresh()
    store.set_now(20)
    await intake.refresh()
    assert intake._seen == {}


async def test_refresh_finds_submissions_after_clock_is_set_back(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(3600)
    await intake.refresh()
    store.add(1, changed=at(10))
    store.set_now(11)
    await intake.refresh()
    store.add(2, changed=at(11.5))
    store.set_now(12)
    await intake.refresh()
    assert due(intake) == [1, 2]


@pytest.mark.parametrize("corrected_by", [300, 660, 3600])
async def test_refresh_finds_submission_accepted_while_clock_was_behind(
    store: SubmissionStore, intake: Intake, monkeypatch: pytest.MonkeyPatch, corrected_by: int
) -> None:
    """The clock is stepped back by ten minutes, and forward by `corrected_by` seconds before the next refresh."""
    elapsed = 0.0
    monkeypatch.setattr(intake_module, "monotonic", lambda: elapsed)
    store.set_now(1)
    elapsed = 1.0
    await intake.refresh()
    store.add(1, changed=at(-600))
    store.set_now(-600 + corrected_by)
    elapsed = 2.0
    await intake.refresh()
    assert due(intake) == [1]


async def test_refresh_after_clock_step_does_not_schedule_submissions_again(
    store: SubmissionStore, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(1, 2, changed=at(1))
    store.set_now(1)
    await intake.refresh()
    assert due(intake) == [1, 2]
    intake.forget(id_of_number(2))
    store.rows[2].state = SubmissionState.DELIVERED.value
    monkeypatch.setattr(intake_module, "monotonic", lambda: 1.0)
    store.set_now(100)
    await intake.refresh()
    assert due(intake) == []


async def test_build_sets_server_clock_from_database(store: SubmissionStore) -> None:
    clock = ServerClock()
    intake = Intake(store, clock)  # type: ignore[arg-type]
    store.set_now(777)
    await intake.build()
    assert 0 <= clock.now_microseconds() - at(777) < 60 * SECOND


# Reads after hints.


async def test_read_after_hint_finds_just_accepted_submission(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.read_recent()
    assert due(intake) == [1]


async def test_refresh_finds_submission_missed_by_read_after_hint(store: SubmissionStore, intake: Intake) -> None:
    """The read after a hint covers less time than a refresh, so this read must not move the cursor of the refreshes."""
    store.set_now(4)
    await intake.read_recent()
    store.add(1, changed=at(1))
    await intake.read_recent()
    assert due(intake) == []
    await intake.refresh()
    assert due(intake) == [1]


async def test_refresh_does_not_repeat_submission_found_after_hint(store: SubmissionStore, intake: Intake) -> None:
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.read_recent()
    await intake.refresh()
    assert due(intake) == [1]
    await intake.refresh()
    assert due(intake) == []


async def test_reads_after_hints_find_submission_committed_late(store: SubmissionStore, intake: Intake) -> None:
    """Submission 1 becomes visible after submission 2, although its time of change is earlier."""
    store.add(2, changed=at(1))
    store.set_now(1)
    await intake.read_recent()
    store.add(1, changed=at(0.9))
    await intake.read_recent()
    assert due(intake) == [1, 2]


# Comparing.


async def test_compare_finds_nothing_after_complete_refreshes(store: SubmissionStore, intake: Intake) -> None:
    for second in range(1, 60):
        store.add(second, changed=at(second))
        store.set_now(second)
        await intake.refresh()
    assert (await intake.compare(), len(due(intake))) == (0, 59)


async def test_compare_counts_submissions_missed_by_refreshes(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(60)
    await intake.refresh()
    store.add(1, 2, changed=at(60) - TRAIL - 1)
    assert (await intake.compare(), due(intake)) == (2, [1, 2])


async def test_compare_counts_missed_submission_once(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(60)
    await intake.refresh()
    store.add(1, changed=at(50))
    assert [await intake.compare() for _ in range(2)] == [1, 0]


async def test_compare_ignores_submissions_that_next_refresh_reads(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(60)
    await intake.refresh()
    store.add(1, changed=at(60) - TRAIL)
    store.add(2, changed=at(61))
    assert await intake.compare() == 0
    await intake.refresh()
    assert due(intake) == [1, 2]


async def test_compare_ignores_submission_finished_while_reading(
    store: SubmissionStore, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submission was pending when the page was read. Before the page was compared, the submission was delivered and
    removed from the schedule.
    """
    store.add(1, changed=at(1))
    store.set_now(1)
    await intake.refresh()
    store.set_now(60)
    await intake.refresh()
    read = store._page

    def read_and_finish(after: Change | None, limit: int) -> object:
        page = read(after, limit)
        intake.forget(id_of_number(1))
        return page

    monkeypatch.setattr(store, "_page", read_and_finish)
    assert (await intake.compare(), due(intake)) == (0, [])


async def test_compare_counts_finished_submission_that_is_pending_again(store: SubmissionStore, intake: Intake) -> None:
    """The submission was removed from the schedule between two comparisons. The second comparison finds it, because the
    submission is pending in the database again.
    """
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


async def test_compare_reads_back_ten_minutes(store: SubmissionStore, intake: Intake) -> None:
    store.set_now(1200)
    await intake.refresh()
    store.add(1, changed=at(1200) - COMPARED - 1)
    store.add(2, changed=at(1200) - COMPARED + 1)
    assert (await intake.compare(), due(intake)) == (1, [2])


async def test_compare_reads_all_pending_submissions_once_an_hour(store: SubmissionStore, intake: Intake) -> None:
    """The submission has such an old time of change if, for example, it was accepted between two refreshes, while the
    database's clock was behind.
    """
    store.set_now(1200)
    await intake.refresh()
    store.add(1, changed=at(1))
    assert [await intake.compare() for _ in range(61)] == [*([0] * 59), 1, 0]
    assert due(intake) == [1]


async def test_compare_reads_pages(store: SubmissionStore, intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "PAGE", 2)
    store.set_now(60)
    await intake.refresh()
    store.add(*range(1, 6), changed=at(50))
    assert await intake.compare() == 5
