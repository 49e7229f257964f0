"""The checks, one promise per file. They compare the records of clients and receivers with the final tables."""

from collections.abc import Callable, Mapping

from proof.checks import (
    access,
    answers,
    belief,
    deadlines,
    events,
    leases,
    one_session,
    seats,
    streams,
    submissions,
    usage,
)
from proof.checks.outcome import Outcome
from proof.history import History
from proof.plan import Plan
from proof.tables import Tables

Check = Callable[[History, Tables, Plan], Outcome]

CHECKS: Mapping[str, Check] = {
    "one session": one_session.check,
    "seats": seats.check,
    "deadlines": deadlines.check,
    "leases": leases.check,
    "submissions": submissions.check,
    "events": events.check,
    "usage": usage.check,
    "belief": belief.check,
    "streams": streams.check,
    "answers": answers.check,
    "access": access.check,
}


def run_checks(history: History, tables: Tables, plan: Plan) -> dict[str, Outcome]:
    return {name: check(history, tables, plan) for name, check in CHECKS.items()}
