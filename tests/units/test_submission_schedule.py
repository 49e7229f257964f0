"""The schedule of the executor, compared with a plain list."""

from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.submissions import PendingEntry
from tenure.ids import id_of_number, new_id, number_of_id
from tenure.submissions.schedule import Entry, Schedule, entry_of

NOW = 2_000_000_000_000_000
ALL = 1_000

entries = st.lists(
    st.builds(
        Entry,
        st.integers(0, 2**128 - 1),
        st.sampled_from(["crm", "usages"]),
        st.integers(NOW - 1000, NOW + 1000),
    ),
    unique_by=lambda entry: entry.number,
    max_size=50,
)


def some_entry(number: int, due: int = NOW, gateway: str = "crm") -> Entry:
    return Entry(number, gateway, due)


def loaded(*given_entries: Entry) -> Schedule:
    schedule = Schedule()
    schedule.load(PendingEntry(*entry, NOW - 7) for entry in given_entries)
    schedule.put_in_order()
    return schedule


@given(entries, entries)
def test_take_returns_due_submissions_of_gateway_earliest_due_first(first: list[Entry], later: list[Entry]) -> None:
    schedule = loaded(*first)
    for entry in later:
        schedule.add(entry)
    due = sorted((entry.due_microseconds, entry.number) for entry in {*first, *later} if entry.gateway == "crm")
    expected = list(dict.fromkeys(id_of_number(number) for at, number in due if at <= NOW))
    assert schedule.take("crm", NOW, ALL) == expected


@given(entries)
def test_schedule_contains_entries_until_removed(given_entries: list[Entry]) -> None:
    schedule = loaded(*given_entries)
    assert len(schedule) == len(given_entries)
    for entry in given_entries:
        assert entry.number in schedule
        schedule.forget(entry.number)
        assert entry.number not in schedule
    assert schedule.take("crm", NOW + ALL, ALL) == []


def test_take_returns_entry_exactly_at_due_time() -> None:
    schedule = loaded(some_entry(1))
    assert (schedule.take("crm", NOW - 1, ALL), schedule.take("crm", NOW, ALL)) == ([], [id_of_number(1)])


def test_take_respects_limit() -> None:
    schedule = loaded(*(some_entry(number) for number in range(5)))
    assert [len(schedule.take("crm", NOW, 3)) for _ in range(3)] == [3, 2, 0]


def test_take_returns_duplicate_entry_once() -> None:
    schedule = loaded(some_entry(1), some_entry(1, NOW - 5))
    assert schedule.take("crm", NOW, ALL) == [id_of_number(1)]


def test_taken_entry_stays_known_and_can_be_added_again() -> None:
    schedule = loaded(some_entry(1))
    schedule.take("crm", NOW, ALL)
    assert 1 in schedule
    schedule.add(some_entry(1, NOW + 5))
    assert schedule.take("crm", NOW + 5, ALL) == [id_of_number(1)]


def test_loaded_pages_are_ordered_by_due_time() -> None:
    schedule = Schedule()
    for number in (3, 1, 2):
        schedule.load([PendingEntry(number, "crm", NOW - number, NOW)])
    schedule.put_in_order()
    assert schedule.take("crm", NOW, ALL) == [id_of_number(number) for number in (3, 2, 1)]


def test_load_treats_open_attempt_as_due() -> None:
    """A due time of None means that an attempt was in progress when the submission was read."""
    schedule = Schedule()
    schedule.load([PendingEntry(1, "crm", None, NOW)])
    schedule.put_in_order()
    assert (1 in schedule, schedule.next_due("crm")) == (True, 0)


def test_entry_of_converts_id_to_number() -> None:
    submission_id = new_id()
    assert entry_of(submission_id, "crm", NOW) == Entry(number_of_id(submission_id), "crm", NOW)
    assert id_of_number(number_of_id(submission_id)) == submission_id


def test_next_due_returns_earliest_due_time_of_gateway() -> None:
    schedule = loaded(some_entry(1, NOW + 7), some_entry(2, NOW + 3), some_entry(3, NOW + 1, "usages"))
    assert (schedule.next_due("crm"), schedule.next_due("usages"), schedule.next_due("none")) == (
        NOW + 3,
        NOW + 1,
        None,
    )


def test_gateways_omits_gateway_whose_entries_are_all_taken() -> None:
    schedule = loaded(some_entry(1), some_entry(2, NOW, "usages"))
    schedule.take("usages", NOW, ALL)
    assert schedule.gateways() == ["crm"]
