"""The search accepts good histories, rejects bad ones, and always ends."""

import random
from math import inf

import pytest

from proof.checks.linearisability import Call, Verdict, check

LEASE = 100


def opened(start: float, end: float, status: str, session: str, at: float | None = None, **given: object) -> Call:
    """`at` is the instant at which the session started. Unless `deadline_at` is given, the deadline is LEASE after
    `at`, or after `start` if `at` is None.
    """
    values = {"kind": 1, "deadline_at": (start if at is None else at) + LEASE, **given}
    return Call("open", start, end, status, session, at=at, **values)  # type: ignore[arg-type]


def ended(start: float, end: float, session: str, at: float) -> Call:
    return Call("end", start, end, "ended", session, at=at)


def renewed(start: float, end: float, session: str, at: float) -> Call:
    return Call("heartbeat", start, end, "renewed", session, at=at, deadline_at=at + LEASE)


def over(start: float, end: float, session: str) -> Call:
    return Call("heartbeat", start, end, "over", session)


def unknown(action: str, start: float, session: str = "", kind: int = 1) -> Call:
    return Call(action, start, inf, "unknown", session, kind)


GOOD = {
    "nothing": [],
    "created, then existing": [opened(0, 2, "created", "a", 1), opened(3, 4, "existing", "a", deadline_at=101)],
    "concurrent opens, one of them creates": [
        opened(0, 9, "existing", "a", deadline_at=102),
        opened(0, 5, "created", "a", 2),
        opened(1, 4, "existing", "a", deadline_at=102),
    ],
    "ended, then created": [opened(0, 2, "created", "a", 1), ended(3, 5, "a", 4), opened(6, 8, "created", "b", 7)],
    "an open that overlaps the end sees either": [
        opened(0, 2, "created", "a", 1),
        ended(3, 9, "a", 7),
        opened(4, 5, "existing", "a", deadline_at=101),
        opened(6, 10, "created", "b", 8),
    ],
    "an end that repeats an earlier one": [
        opened(0, 2, "created", "a", 1),
        ended(3, 5, "a", 4),
        ended(6, 8, "a", 4),
        over(9, 10, "a"),
    ],
    "upgraded": [
        opened(0, 2, "created", "a", 1),
        opened(3, 5, "upgraded", "b", 4, kind=2, previous_id="a"),
        over(6, 7, "a"),
        opened(8, 9, "existing", "b", kind=1, deadline_at=104),
    ],
    "lapsed at its deadline": [
        opened(0, 2, "created", "a", 1),
        over(101, 102, "a"),
        opened(110, 112, "created", "b", 111),
    ],
    "kept alive": [
        opened(0, 2, "created", "a", 1),
        renewed(50, 52, "a", 51),
        opened(140, 141, "existing", "a", deadline_at=151),
        over(151, 152, "a"),
    ],
    "lost open took effect": [unknown("open", 0), opened(10, 11, "existing", "x", deadline_at=105)],
    "lost open took effect late": [
        unknown("open", 0),
        opened(1, 3, "created", "a", 2),
        ended(4, 6, "a", 5),
        opened(10, 11, "existing", "x", deadline_at=110),
    ],
    "lost open had no effect": [unknown("open", 0), opened(10, 12, "created", "a", 11)],
    "lost upgrade": [
        opened(0, 2, "created", "a", 1),
        unknown("open", 3, kind=3),
        over(5, 6, "a"),
        opened(7, 8, "existing", "x", kind=2, deadline_at=104),
    ],
    "lost end took effect": [opened(0, 2, "created", "a", 1), unknown("end", 3, "a"), opened(5, 7, "created", "b", 6)],
    "lost heartbeat took effect": [
        opened(0, 2, "created", "a", 1),
        unknown("heartbeat", 50, "a"),
        opened(140, 141, "existing", "a", deadline_at=151),
    ],
    "lost heartbeat had no effect": [
        opened(0, 2, "created", "a", 1),
        unknown("heartbeat", 50, "a"),
        opened(140, 142, "created", "b", 141),
    ],
}

BAD = {
    "two sessions at once": [opened(0, 2, "created", "a", 1), opened(3, 5, "created", "b", 4)],
    "created while one is live, concurrently": [
        opened(0, 9, "created", "a", 1),
        opened(0, 9, "created", "b", 2),
        renewed(10, 12, "a", 11),
    ],
    "existing after its end": [
        opened(0, 2, "created", "a", 1),
        ended(3, 5, "a", 4),
        opened(6, 7, "existing", "a", deadline_at=101),
    ],
    "existing after its deadline": [
        opened(0, 2, "created", "a", 1),
        opened(102, 103, "existing", "a", deadline_at=101),
    ],
    "renewed after its end": [opened(0, 2, "created", "a", 1), ended(3, 5, "a", 4), renewed(6, 8, "a", 7)],
    "renewed after its deadline": [opened(0, 2, "created", "a", 1), renewed(102, 104, "a", 103)],
    "over although it is live": [opened(0, 2, "created", "a", 1), over(3, 4, "a")],
    "an acknowledged heartbeat is lost": [
        opened(0, 2, "created", "a", 1),
        renewed(50, 52, "a", 51),
        opened(110, 112, "created", "b", 111),
    ],
    "existing although the live session has a lower kind": [
        opened(0, 2, "created", "a", 1),
        opened(3, 4, "existing", "a", kind=2, deadline_at=101),
    ],
    "upgraded from another session": [
        opened(0, 2, "created", "a", 1),
        opened(3, 5, "upgraded", "b", 4, kind=2, previous_id="z"),
    ],
    "upgraded and the old one lives on": [
        opened(0, 2, "created", "a", 1),
        opened(3, 5, "upgraded", "b", 4, kind=2, previous_id="a"),
        renewed(6, 8, "a", 7),
    ],
    "started before the request": [opened(5, 7, "created", "a", 4)],
    "started after the answer": [opened(5, 7, "created", "a", 8)],
    "a session that no call opened": [opened(0, 1, "existing", "x", deadline_at=50)],
    "one lost open, two unknown sessions": [
        unknown("open", 0),
        opened(1, 2, "existing", "x", deadline_at=102),
        ended(3, 5, "x", 4),
        opened(6, 7, "existing", "y", deadline_at=107),
    ],
    "a session of unknown origin is live again": [
        unknown("open", 0),
        unknown("open", 1),
        opened(2, 3, "existing", "x", deadline_at=103),
        ended(4, 6, "x", 5),
        opened(7, 8, "existing", "x", deadline_at=108),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_history_is_accepted(name: str) -> None:
    assert check(GOOD[name], LEASE).verdict is Verdict.GOOD


@pytest.mark.parametrize("name", BAD)
def test_bad_history_is_rejected(name: str) -> None:
    assert check(BAD[name], LEASE).verdict is Verdict.BAD


def test_long_history_of_many_clients_is_decided_quickly() -> None:
    """Each round has four concurrent opens, a heartbeat and an end. In five rounds, one more open has no response."""
    calls: list[Call] = []
    for turn in range(60):
        start, session = turn * 20.0, f"s{turn}"
        calls += [
            opened(start, start + 9, "created", session, start + 1),
            *(opened(start, start + 8 + n, "existing", session, deadline_at=start + 101) for n in range(3)),
            renewed(start + 2, start + 12, session, start + 9.5),
            ended(start + 13, start + 19, session, start + 15),
        ]
    calls += [unknown("open", turn * 200.0) for turn in range(5)]
    result = check(calls, LEASE)
    assert result.verdict is Verdict.GOOD
    assert result.steps < 20_000


def lossy_history(seed: int, count: int = 70) -> list[Call]:
    """Returns the calls of a possible history. About a third of the calls have no response, and half of these took
    effect.
    """
    source, calls, time, live, live_kind = random.Random(seed), list[Call](), 0.0, "", 0
    for number in range(count):
        start = time + source.uniform(1, 30)
        at = start + source.uniform(0, 2)
        end = at + source.uniform(0, 2)
        time = source.choice([at, end])
        if source.random() < 0.3:
            live = ""  # the session lapsed
        lost, acts, kind = source.random() < 0.35, source.random() < 0.5, source.choice([1, 1, 2, 3])
        if source.random() < 0.7 or not live:
            if lost:
                calls.append(unknown("open", start, kind=kind))
            if acts or not lost:
                status = "existing" if live and kind <= live_kind else "upgraded" if live else "created"
                previous = live if status == "upgraded" else ""
                if status != "existing":
                    live, live_kind = f"s{number}", kind
                if not lost:
                    calls.append(opened(start, end, status, live, at, kind=kind, previous_id=previous))
        elif lost:
            calls.append(unknown("end", start, live))
            live = "" if acts else live
        else:
            calls.append(ended(start, end, live, at))
            live = ""
    return calls


def test_history_with_many_lost_answers_is_decided_quickly() -> None:
    """With `timeless`, the search ignores the instants of the database. It must try many orders that the instants would
    exclude.
    """
    for seed in range(40):
        result = check(lossy_history(seed), LEASE, timeless=True)
        assert result.verdict is Verdict.GOOD, seed
        assert result.steps < 10_000, seed


def test_search_that_reaches_its_limit_returns_undecided() -> None:
    """The last call has an impossible response. Without a limit, the search would try every order of the many calls
    without a response.
    """
    lost = [unknown("open", n, kind=1 + n % 3) for n in range(14)] + [unknown("end", n, f"s{n}") for n in range(14)]
    calls = [*lost, *(opened(50 + n, 60 + n, "created", f"s{n}", 55.0 + n) for n in range(8)), over(100, 101, "s7")]
    calls.append(opened(90, 91, "existing", "nobody", kind=3, deadline_at=1))
    result = check(calls, LEASE, steps_max=3000)
    assert result.verdict is Verdict.UNDECIDED
    assert result.steps <= 3001


def test_rejected_history_names_the_calls_that_do_not_fit() -> None:
    first, second = BAD["two sessions at once"]
    result = check([second, first], LEASE)
    assert (result.placed, list(result.stuck)) == (1, [second])
