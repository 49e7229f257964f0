"""The conditions of alerts: each is tested at the last value for which it is false, and at the next value."""

from datetime import timedelta
from typing import Any

from tenure.domain.alerts import (
    CONDITIONS_MAX,
    Activity,
    AlertName,
    Observations,
    UsageTrouble,
    WatchedJob,
    WatchedLease,
    conditions_of,
)
from tests.support.open_requests import NOON

MINUTES = timedelta(minutes=1)
MICROSECOND = timedelta(microseconds=1)


def observed(**given: Any) -> Observations:
    quiet: dict[str, Any] = {
        "now": NOON,
        "jobs": [],
        "leases": [],
        "last_cut_at": NOON,
        "delivered_until": NOON,
        "usage": UsageTrouble(),
        "activity": Activity(NOON - 10 * MINUTES, 0, 0),
    }
    return Observations(**{**quiet, **given})


def job(name: str = "tidy", **given: Any) -> WatchedJob:
    return WatchedJob(**{"name": name, "interval_microseconds": 60_000_000, "failures_in_a_row": 0, **given})


def names(**given: Any) -> list[tuple[str, str | None]]:
    return [(condition.alert.value, condition.subject) for condition in conditions_of(observed(**given))]


def test_quiet_installation_has_no_condition() -> None:
    assert names(jobs=[job()], leases=[WatchedLease(name="lead", holder="us")]) == []


def test_each_condition_holds_only_beyond_its_limit() -> None:
    lease = {"name": "lead", "holder": "us"}
    limits: list[tuple[AlertName, str | None, dict[str, Any], dict[str, Any]]] = [
        (
            AlertName.JOB_LOCK_HELD,
            "tidy",
            {"jobs": [job(held_since=NOON - 5 * MINUTES)]},
            {"jobs": [job(held_since=NOON - 5 * MINUTES - MICROSECOND)]},
        ),
        (AlertName.JOB_FAILING, "tidy", {"jobs": [job(failures_in_a_row=2)]}, {"jobs": [job(failures_in_a_row=3)]}),
        (
            AlertName.LOCK_RECLAIMED,
            "job:tidy",
            {"jobs": [job(reclaimed_at=NOON - 15 * MINUTES)]},
            {"jobs": [job(reclaimed_at=NOON - 15 * MINUTES + MICROSECOND)]},
        ),
        (
            AlertName.LEADERSHIP_FLAPPING,
            "lead",
            {"leases": [WatchedLease(**lease, changes=5)]},
            {"leases": [WatchedLease(**lease, changes=6)]},
        ),
        (AlertName.USAGE_FAILING, None, {"usage": UsageTrouble(3, "no")}, {"usage": UsageTrouble(4, "no")}),
        (AlertName.CHUNK_WITHHELD, None, {"usage": UsageTrouble(0)}, {"usage": UsageTrouble(0, None, 1, "no")}),
        (
            AlertName.USAGE_LAGGING,
            None,
            {"delivered_until": NOON - 15 * MINUTES},
            {"delivered_until": NOON - 15 * MINUTES - MICROSECOND},
        ),
        (
            AlertName.LAPSES_EXCEED_OPENINGS,
            None,
            {"activity": Activity(NOON, 99, 0)},
            {"activity": Activity(NOON, 100, 99)},
        ),
        (AlertName.CLOCK_BEHIND, None, {"last_cut_at": NOON}, {"last_cut_at": NOON + MICROSECOND}),
    ]
    assert {alert for alert, *_ in limits} == set(AlertName)
    for alert, subject, within, beyond in limits:
        assert names(**within) == [], alert
        assert names(**beyond) == [(alert.value, subject)], alert
    assert names(activity=Activity(NOON, 100, 100)) == []


def test_usage_may_lag_longer_if_the_interval_of_the_job_is_longer() -> None:
    hourly = [job("emit-usage", interval_microseconds=3_600_000_000)]
    assert names(jobs=hourly, delivered_until=NOON - 74 * MINUTES) == []
    assert names(jobs=hourly, delivered_until=NOON - 75 * MINUTES) == [("usage-lagging", None)]


def test_number_of_conditions_has_a_limit() -> None:
    jobs = [job(f"job-{number}", failures_in_a_row=3) for number in range(2 * CONDITIONS_MAX)]
    found = names(jobs=jobs, last_cut_at=NOON + MINUTES)
    assert (len(found), found[0]) == (CONDITIONS_MAX, ("clock-behind", None))
