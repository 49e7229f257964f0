"""Terms of leadership, read from the logs of the processes."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

BEGIN, RENEWED, END = "leader_acquired", "leader_renewed", "leader_lost"


class Term(NamedTuple):
    """One epoch, as the log of its leader shows it. If the leader was killed, the log has no end of the epoch. Then
    `ended_at` is the instant at which the lease expires.
    """

    epoch: int
    holder: str
    began_at: datetime
    ended_at: datetime
    reason: str


def logged(log: str, *events: str) -> list[dict[str, Any]]:
    """The log lines of these events, in order; `at` is the timestamp."""
    lines = [_decoded(line) for line in log.splitlines()]
    return [{**line, "at": datetime.fromisoformat(line["timestamp"])} for line in lines if line.get("event") in events]


def _decoded(line: str) -> dict[str, Any]:
    """Returns an empty dict for an incomplete line, and for a line that Python itself wrote, such as a warning."""
    try:
        decoded: Any = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def leads(log: str, lease: str = "submission-executor") -> bool:
    changes = [line for line in logged(log, BEGIN, END) if line["lease"] == lease]
    return bool(changes) and changes[-1]["event"] == BEGIN


def terms(logs: Iterable[str], lease: str = "submission-executor") -> list[Term]:
    """Returns the terms found in all logs, in the order of their start."""
    found = [term for log in logs for term in _terms(log, lease)]
    return sorted(found, key=lambda term: term.began_at)


def _terms(log: str, lease: str) -> list[Term]:
    lines = [line for line in logged(log, BEGIN, RENEWED, END) if line["lease"] == lease]
    epochs = dict.fromkeys(line["epoch"] for line in lines)
    return [_term([line for line in lines if line["epoch"] == epoch]) for epoch in epochs]


def _term(lines: Sequence[dict[str, Any]]) -> Term:
    first, last = lines[0], lines[-1]
    ended_at = last["at"] if last["event"] == END else datetime.fromisoformat(last["expires_at"])
    return Term(first["epoch"], first["holder"], first["at"], ended_at, last.get("reason", "killed"))


def overlapping(found: Sequence[Term]) -> list[tuple[Term, Term]]:
    return [(one, other) for one, other in pairwise(found) if other.began_at < one.ended_at]


def table(found: Iterable[Term]) -> str:
    return "\n".join(f"{term.began_at:%H:%M:%S.%f} to {term.ended_at:%H:%M:%S.%f} {term}" for term in found)
