"""Each check accepts a history in which its promise held, and notices a history in which the promise was broken."""

import time
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from proof.checks import CHECKS
from proof.crowding import STAT, CrowdingWatch
from proof.history import Belief, ClockStep, Crowding, Fault, Feed, History, KeyLife, Operation, Sighting, Stream
from proof.plan import Plan
from proof.tables import Tables
from tenure.clock import from_microseconds, instant_text, to_microseconds

SECOND = 1_000_000
NOON = to_microseconds(datetime.fromisoformat("2026-01-01T12:00:00+00:00"))
TENANT, FOREIGN, CAPACITY, INSTALLATION = "tenant", "foreign", "capacity", "installation"
PERIOD = 30 * 24 * 3600 * SECOND


def at(seconds: float) -> int:
    return NOON + round(seconds * SECOND)


def text(seconds: float) -> str:
    return instant_text(from_microseconds(at(seconds)))


def operation(start: float, end: float, **given: Any) -> Operation:
    values = {"client": "user", "action": "open", "key": (CAPACITY, "user"), "credential": "client", **given}
    return Operation(called_at=at(start), returned_at=at(end), **values)


def opened(start: float, end: float, session: str, began: float, status: str = "created", **given: Any) -> Operation:
    answer = {
        "sessionId": session,
        "status": status,
        "sessionStartUtc": text(began),
        "previousSessionId": None,
        "leaseExpiresAt": text(began + 2),
    }
    return operation(start, end, kind=1, status=200 if status == "existing" else 201, answer=answer, **given)


def ended(start: float, end: float, session: str, when: float) -> Operation:
    answer = {"sessionId": session, "sessionEndUtc": text(when), "closeReason": "STOPPED", "isActive": False}
    return operation(start, end, action="end", session_id=session, status=200, answer=answer)


def session_row(session: str, began: float, closed: float, reason: str = "STOPPED", **given: Any) -> dict[str, Any]:
    deadline = closed if reason == "LEASE_EXPIRED" else began + 2
    return {
        "session_id": session,
        "capacity_id": CAPACITY,
        "user_object_id": "user",
        "tenant_object_id": TENANT,
        "kind": 1,
        "started_at": at(began),
        "closed_at": at(closed),
        "close_reason": reason,
        "deadline_at": at(deadline),
        "lapse_reason": "LEASE_EXPIRED",
        "previous_session_id": None,
        "stream_chunks": 3,
        **given,
    }


def event(kind: str, session: str, when: float, reason: str | None = None) -> dict[str, Any]:
    fields = {"type": f"session.{kind}", "sessionId": session, "at": text(when)}
    return fields if reason is None else {**fields, "closeReason": reason}


def attempt(submission: str, number: int, start: float, end: float, outcome: str = "delivered") -> dict[str, Any]:
    times = {"started_at": at(start), "ended_at": at(end)}
    return {"submission_id": submission, "number": number, "epoch": 2, "holder": "two", "outcome": outcome, **times}


def submission(name: str, gateway: str) -> dict[str, Any]:
    return {
        "submission_id": name,
        "gateway": gateway,
        "state": "delivered",
        "attempts": 1,
        "created_at": at(3),
        "delivery_key": name if gateway == "orders" else f"{INSTALLATION}-1-1",
    }


def term(epoch: int, holder: str, start: float, end: float | None) -> dict[str, Any]:
    ends = None if end is None else at(end)
    return {"name": "submission-executor", "epoch": epoch, "holder": holder, "acquired_at": at(start), "ended_at": ends}


def usage_of(seconds: float) -> Decimal:
    return Decimal(round(Decimal(seconds) * SECOND * 1_000_000_000_000 / PERIOD)).scaleb(-6)


def usage_body() -> bytes:
    """Returns the body of the only chunk of the first window: sessions a and b, with a factor of a million."""
    spans = {"a": (1, 2), "b": (3, 5.5)}
    names = {"userObjectId": "user", "tenantObjectId": TENANT, "capacityId": CAPACITY, "sessionKind": 1}
    records = [
        {
            "sessionId": name,
            **names,
            "usage": msgspec.Raw(format(usage_of(end - start).normalize(), "f").encode()),
            "fromUtc": text(start),
            "toUtc": text(end),
        }
        for name, (start, end) in spans.items()
    ]
    return msgspec.json.encode(records)


def history() -> History:
    return History(
        began_at=at(0),
        ended_at=at(20),
        operations=[
            opened(0.9, 1.1, "a", 1),
            ended(1.9, 2.1, "a", 2),
            opened(2.9, 3.1, "b", 3),
            operation(
                *(3.4, 3.6),
                action="heartbeat",
                session_id="b",
                status=200,
                answer={"leaseExpiresAt": text(5.5)},
            ),
            operation(1.4, 1.5, client="seats", status=429, credential="client"),
            operation(
                6,
                6.1,
                client="intruder",
                action="list",
                credential="tenant reader",
                status=200,
                answer={"tenants": [TENANT]},
            ),
            operation(6, 6.1, client="intruder", action="foreign session", credential="tenant client", status=404),
            operation(6, 6.1, client="key user", action="me", credential="short 1", status=200),
            operation(12, 12.1, client="key user", action="me", credential="short 1", status=401),
            operation(8, 8.1, status=0, failure="lost"),
        ],
        beliefs=[Belief(session_id="b", lease_seconds=2, opened_at=at(3), believed_at=at(5.4), looks=50)],
        streams=[Stream(session_id="a", sent=3, echoed=3, stopped=True, counted=3)],
        sightings=[
            Sighting(name="x", epoch=1, holder="one", held=True, asked_at=at(1), seen_at=at(2)),
            Sighting(name="x", epoch=2, holder="two", held=True, asked_at=at(3), seen_at=at(4)),
        ],
        feeds=[
            Feed(
                name="long polls",
                events=[
                    event("opened", "a", 1),
                    event("closed", "a", 2, "STOPPED"),
                    event("opened", "b", 3),
                    event("closed", "b", 5.5, "LEASE_EXPIRED"),
                ],
            )
        ],
        key_lives=[KeyLife(label="short 1", public_id="p", revoked_at=at(7))],
        faults=[Fault(kind="kill", target="instance 0", began_at=at(7), healed_at=at(7.5), recovered_at=at(8.2))],
        accepted={"order": 1},
    )


def tables() -> Tables:
    body = usage_body()
    chunk = {"key": f"{INSTALLATION}-1-1", "received_at": at(11), "times_seen": 1, "records": 2}
    total = str(usage_of(1) + usage_of(2.5))
    totals = [{"conflicts": 0, "refused": 0, "usage": total}]
    hooks = [{"position": n, "content": msgspec.json.encode(each)} for n, each in enumerate(history().feeds[0].events)]
    order = {"key": "order", "received_at": at(5), "times_seen": 1}
    return Tables(
        installation=[{"usage_kept_from": at(0), "last_cut_at": at(10)}],
        sessions=[session_row("a", 1, 2), session_row("b", 3, 5.5, "LEASE_EXPIRED")],
        capacities=[{"capacity_id": CAPACITY, "max_sessions": 1, "when_full": "reject"}],
        leases=[{"name": "submission-executor", "epoch": 2}],
        lease_history=[term(1, "one", 0, 3), term(2, "two", 3.5, None)],
        job_runs=[
            {"job": "j", "epoch": 1, "started_at": at(1), "ended_at": at(2)},
            {"job": "j", "epoch": 2, "started_at": at(2), "ended_at": None},
        ],
        submissions=[submission("order", "orders"), submission("chunk", "usages")],
        submission_attempts=[attempt("order", 1, 4, 6), attempt("chunk", 1, 10.5, 12)],
        usage_eras=[{"era": 1, "started_at": at(0), "factor_1": 10**12, "factor_2": 1, "factor_3": 1}],
        usage_windows=[
            {"window_id": 1, "installation_id": INSTALLATION, "started_at": at(0), "ended_at": at(10), "era": 1}
        ],
        usage_chunks=[
            {
                "window_id": 1,
                "chunk": 1,
                "sessions": 2,
                "usage_millionths": int((usage_of(1) + usage_of(2.5)).scaleb(6)),
            }
        ],
        keys=[
            {"name": "tenant-client", "tenant_object_id": TENANT},
            {"name": "tenant-reader", "tenant_object_id": TENANT},
        ],
        ledgers={
            "usages": {
                "deliveries": [{**chunk, "usage": total, "digest": sha256(body).hexdigest()}],
                "totals": totals,
                "events": [],
            },
            "orders": {"deliveries": [order], "totals": totals, "events": []},
            "hooks": {"deliveries": [], "totals": totals, "events": hooks},
        },
    )


def findings(check: str, seen: History, rows: Tables) -> list[str]:
    return CHECKS[check](seen, rows, Plan()).findings


@pytest.mark.parametrize("check", CHECKS)
def test_check_accepts_history_in_which_promises_held(check: str) -> None:
    outcome = CHECKS[check](history(), tables(), Plan())
    assert outcome.findings == []
    assert outcome.checked > 0


Change = Callable[[History, Tables], object]


def changed(name: str, *path: Any, to: Any) -> Change:
    """Returns a change that sets a field of the history or of the tables, as in
    `changed("sessions", 0, "closed_at", to=1)`.
    """

    def change(seen: History, rows: Tables) -> None:
        owner: Any = seen if name in History.__struct_fields__ else rows
        place = getattr(owner, name)
        for part in path[:-1]:
            place = place[part] if isinstance(place, list | dict) else getattr(place, part)
        if isinstance(place, list | dict):
            place[path[-1]] = to
        else:
            setattr(place, path[-1], to)

    return change


def added(name: str, item: Any) -> Change:
    return lambda seen, rows: getattr(seen if name in History.__struct_fields__ else rows, name).append(item)


BROKEN: dict[str, tuple[str, Change, str]] = {
    "not linearisable": ("one session", added("operations", opened(1.2, 1.4, "z", 1.3)), "linearisable"),
    "rows overlap": ("one session", changed("sessions", 1, "started_at", to=at(1.5)), "before session a"),
    "acknowledged session is missing": ("one session", lambda _, rows: rows.sessions.pop(0), "not in the table"),
    "acknowledged end differs": ("one session", changed("sessions", 0, "closed_at", to=at(1.8)), "was answered"),
    "acknowledged session got 404": (
        "one session",
        added("operations", operation(1.3, 1.4, action="heartbeat", session_id="a", status=404)),
        "404",
    ),
    "too many sessions": ("seats", changed("sessions", 1, "started_at", to=at(1.5)), "live sessions: 2, seats: 1"),
    "refused while empty": (
        "seats",
        added("operations", operation(6, 6.2, client="seats", status=429)),
        "at most 0 of 1",
    ),
    "lapsed late": ("deadlines", changed("sessions", 1, "closed_at", to=at(6)), "after its deadline"),
    "lapsed early": ("deadlines", changed("sessions", 1, "closed_at", to=at(4.5)), "lapsed at"),
    "lapse not recorded": ("deadlines", changed("sessions", 1, "closed_at", to=None), "not recorded"),
    "heartbeat forgotten": ("deadlines", changed("sessions", 1, "deadline_at", to=at(5.4)), "was promised until"),
    "heartbeat after the end": ("deadlines", changed("operations", 3, "called_at", to=at(5.6)), "was renewed at"),
    "over before the end": (
        "deadlines",
        added("operations", operation(3.5, 3.6, action="heartbeat", session_id="b", status=410)),
        "before its end",
    ),
    "two holders of an epoch": ("leases", changed("sightings", 1, "epoch", to=1), "held by one and by two"),
    "epoch goes back": ("leases", changed("sightings", 0, "epoch", to=7), "after it was in epoch 7"),
    "terms overlap": ("leases", changed("lease_history", 1, "acquired_at", to=at(2.5)), "before the end of epoch 1"),
    "an epoch is missing": ("leases", changed("lease_history", 0, "epoch", to=0), "follows 0"),
    "runs overlap": ("leases", changed("job_runs", 0, "ended_at", to=at(2.5)), "overlap"),
    "attempt outside its epoch": ("leases", changed("submission_attempts", 0, "epoch", to=1), "did not hold"),
    "attempt before its epoch": ("leases", changed("submission_attempts", 0, "started_at", to=at(3.2)), "outside"),
    "recorded after the epoch": ("leases", changed("lease_history", 1, "ended_at", to=at(5)), "was recorded at"),
    "accepted and not delivered": ("submissions", changed("submissions", 0, "state", to="pending"), "is pending"),
    "accepted and lost": ("submissions", changed("accepted", "other", to=1), "is missing"),
    "delivered and never received": ("submissions", lambda _, rows: rows.ledgers["orders"]["deliveries"].clear(), ""),
    "sent before it was recorded": (
        "submissions",
        changed("submission_attempts", 0, "started_at", to=at(5.5)),
        "before an attempt",
    ),
    "sent more often than recorded": (
        "submissions",
        changed("ledgers", "orders", "deliveries", 0, "times_seen", to=2),
        "2 times, with 1 attempts",
    ),
    "other bytes": ("submissions", changed("ledgers", "orders", "totals", 0, "conflicts", to=1), "other bytes"),
    "first attempt far too late": ("submissions", changed("submissions", 0, "created_at", to=at(-30)), "waited for"),
    "event missing": ("events", lambda seen, _: seen.feeds[0].events.pop(1), "3 of 4 events"),
    "event twice": ("events", added("feeds", Feed(name="f", events=[event("opened", "a", 1)] * 5)), "more than once"),
    "events in another order": ("events", lambda seen, _: seen.feeds[0].events.reverse(), "event 1 is"),
    "gateway misses one": ("events", lambda _, rows: rows.ledgers["hooks"]["events"].pop(), "the gateway"),
    "usage of a millionth": ("usage", changed("usage_chunks", 0, "usage_millionths", to=1), "was saved as"),
    "other digest": ("usage", changed("ledgers", "usages", "deliveries", 0, "digest", to="0"), "arrived as"),
    "session unbilled": ("usage", added("sessions", session_row("c", 6, 7)), ""),
    "gap between windows": ("usage", changed("usage_windows", 0, "started_at", to=at(0.5)), "a gap or overlap"),
    "total differs": ("usage", changed("ledgers", "usages", "totals", 0, "usage", to="1"), "counted 1"),
    "belief outlives the session": ("belief", changed("beliefs", 0, "believed_at", to=at(5.51)), "after its end"),
    "belief in an unknown session": ("belief", changed("beliefs", 0, "session_id", to="z"), "not in the table"),
    "message not counted": ("streams", changed("streams", 0, "sent", to=4), "4 messages were sent"),
    "stopped stream lapsed": (
        "streams",
        changed("sessions", 0, "close_reason", to="LEASE_EXPIRED"),
        "was stopped, and",
    ),
    "no answer": ("answers", changed("operations", 9, "failure", to="timeout"), "timeout"),
    "late answer": ("answers", changed("operations", 3, "returned_at", to=at(12)), "took"),
    "failed far from any fault": (
        "answers",
        added("operations", operation(19, 19.1, status=503, answer={"code": "OVERLOADED"})),
        "far from any fault",
    ),
    "500": ("answers", added("operations", operation(8, 8.1, status=500)), "got 500"),
    "deadlock": ("answers", lambda seen, _: setattr(seen, "deadlocks", 2), "2 deadlocks"),
    "unsettled": ("answers", added("unsettled", "something"), "something"),
    "foreign tenant in a list": (
        "access",
        changed("operations", 5, "answer", to={"tenants": [FOREIGN, TENANT]}),
        "showed sessions",
    ),
    "foreign session": ("access", changed("operations", 6, "status", to=200), "got 200"),
    "end of a foreign session": ("access", changed("operations", 6, "status", to=410), "got 410"),
    "revoked key works": ("access", changed("operations", 8, "status", to=200), "after the key was revoked"),
    "valid key refused": ("access", added("operations", operation(9, 9.1, status=401)), "got 401"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_check_notices_broken_promise(name: str) -> None:
    check, change, words = BROKEN[name]
    seen, rows = history(), tables()
    change(seen, rows)
    found = findings(check, seen, rows)
    assert found
    assert any(words in finding for finding in found), found


@pytest.mark.parametrize(("kind", "expected"), [("database-link-cut", 0), ("disk-full", 0), ("kill", 1)])
def test_stopped_stream_may_lapse_only_while_the_database_is_unavailable(kind: str, expected: int) -> None:
    seen, rows = history(), tables()
    ended_at = rows.sessions[0]["closed_at"]
    seen.faults = [Fault(kind=kind, target="x", began_at=ended_at - SECOND, healed_at=ended_at + SECOND)]
    rows.sessions[0]["close_reason"] = "LEASE_EXPIRED"
    assert len(findings("streams", seen, rows)) == expected
    rows.sessions[0]["close_reason"] = "STOPPED"
    rows.sessions[0]["stream_chunks"] -= 1
    assert len(findings("streams", seen, rows)) == expected
    rows.sessions[0]["stream_chunks"] += 2
    assert len(findings("streams", seen, rows)) == 1


@pytest.mark.parametrize(("check", "change"), [("answers", "late answer"), ("access", "revoked key works")])
def test_limits_on_time_grow_only_while_other_work_crowds_the_machine(check: str, change: str) -> None:
    for tasks_per_core, expected in ((3.0, 1), (30.0, 0)):
        seen, rows = history(), tables()
        BROKEN[change][1](seen, rows)
        seen.crowding = [Crowding(at=at(second), tasks_per_core=tasks_per_core) for second in range(20)]
        assert len(findings(check, seen, rows)) == expected, tasks_per_core


def test_crowding_is_sampled() -> None:
    seen = History()
    with CrowdingWatch(seen):
        began = time.monotonic()
        while STAT.exists() and not seen.crowding and time.monotonic() - began < 10:
            time.sleep(0.05)
    assert [each.tasks_per_core > 0 for each in seen.crowding[:1]] == [True] * STAT.exists()


def test_refusal_before_an_end_was_committed_is_no_finding() -> None:
    """Session a ends at second 2, and the client that ends it gets the response at second 2.1. Until then, an open may
    be refused.
    """
    seen = history()
    seen.operations.append(operation(2.02, 2.05, client="seats", status=429))
    assert findings("seats", seen, tables()) == []
    seen.operations.append(operation(2.2, 2.3, client="seats", status=429))
    assert "at most 0 of 1" in findings("seats", seen, tables())[0]


STEPPED: dict[str, tuple[str, Change]] = {
    name: BROKEN[name][:2]
    for name in (
        *("refused while empty", "heartbeat after the end", "over before the end", "terms overlap", "runs overlap"),
        *("attempt before its epoch", "recorded after the epoch", "sent before it was recorded"),
        "belief outlives the session",
    )
}
"""Broken promises that a check notices by comparing two clocks, or instants from before and after a step of the
clock."""


@pytest.mark.parametrize("name", sorted(STEPPED))
def test_check_does_not_compare_times_while_the_clock_of_the_database_is_stepped(name: str) -> None:
    check, change = STEPPED[name]
    seen, rows = history(), tables()
    change(seen, rows)
    seen.steps.append(ClockStep(offset=3 * SECOND, began_at=at(5), ended_at=at(7)))
    assert findings(check, seen, rows) == []
    seen.steps = [ClockStep(offset=3 * SECOND, began_at=at(105), ended_at=at(107))]
    assert findings(check, seen, rows) != []


@pytest.mark.parametrize("name", sorted(set(BROKEN) - set(STEPPED)))
def test_check_notices_broken_promise_while_the_clock_of_the_database_is_stepped(name: str) -> None:
    check, change, words = BROKEN[name]
    seen, rows = history(), tables()
    change(seen, rows)
    if name == "not linearisable":
        # After a step, the check ignores all instants. With this call, the order of the calls alone is impossible.
        seen.operations.append(opened(2.5, 2.6, "a", 1, "existing"))
    seen.steps.append(ClockStep(offset=3 * SECOND, began_at=at(5), ended_at=at(7)))
    assert any(words in finding for finding in findings(check, seen, rows))


def test_check_shows_limited_number_of_findings() -> None:
    seen = history()
    seen.operations += [operation(9, 9.1, status=401)] * 100
    found = findings("access", seen, tables())
    assert len(found) == 21
    assert found[-1] == "… and 80 more"
