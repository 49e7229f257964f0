"""Was everything that clients were told true, and is the table one that can have come about?

Judges from two things alone: the exchanges of the clients, each with the instants at which it was sent and answered,
and the rows of the session table. Requests under way at the same time may have been carried out in any order, so each
check speaks only of what the instants prove. What is found is told in sentences; none means that all promises held.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec

from tenure.clock import to_microseconds
from tests.support.databases import Database
from tests.support.load import Exchange, Key

NEVER = 2**62
SHOWN_MAX = 12
OPENED = (200, 201)


class Lived(msgspec.Struct, frozen=True):
    """A row of the table: a session as it was in the end. A live one ends `NEVER`."""

    session_id: str
    key: Key
    kind: int
    started_at: int
    ended_at: int
    reason: str | None
    previous: str | None


async def lived(database: Database) -> list[Lived]:
    found = await database.rows("SELECT * FROM sessions ORDER BY started_at")
    return [
        Lived(
            str(row["session_id"]),
            (str(row["capacity_id"]), str(row["user_object_id"])),
            row["kind"],
            _microseconds(row["started_at"]),
            NEVER if row["closed_at"] is None else _microseconds(row["closed_at"]),
            row["close_reason"],
            None if row["previous_session_id"] is None else str(row["previous_session_id"]),
        )
        for row in found
    ]


def broken_promises(exchanges: Sequence[Exchange], table: Sequence[Lived], also: Sequence[int] = ()) -> list[str]:
    """`also`: statuses that may occur although nothing failed for good; 0 stands for a lost connection."""
    opens = [exchange for exchange in exchanges if exchange.method == "PUT"]
    ends = [exchange for exchange in exchanges if exchange.method == "DELETE"]
    checks: Iterable[Iterator[str]] = (
        _unexpected_statuses(exchanges, also),
        overlaps(table),
        _wrong_successions(table),
        _untrue_answers(opens, table),
        _wrong_openers(opens, table),
        _wrong_kinds(opens, table),
        _wrong_ends(ends, table),
    )
    return [sentence for check in checks for sentence in check][:SHOWN_MAX]


def _unexpected_statuses(exchanges: Sequence[Exchange], also: Sequence[int]) -> Iterator[str]:
    for exchange in exchanges:
        if exchange.status not in (*OPENED, *also):
            yield f"status {exchange.status}: {exchange}"


def overlaps(table: Sequence[Lived]) -> Iterator[str]:
    """One live session at every instant, and each ends after it starts."""
    for session in table:
        if session.ended_at <= session.started_at:
            yield f"ends before it starts: {session}"
    for sessions in _by_key(table).values():
        for one, following in pairwise(sessions):
            if following.started_at < one.ended_at:
                yield f"overlap: {one} {following}"


def _wrong_successions(table: Sequence[Lived]) -> Iterator[str]:
    """What was upgraded ends as its one successor, of a higher kind, starts."""
    by_id = {session.session_id: session for session in table}
    successors = Counter(session.previous for session in table)
    for session in table:
        if session.reason == "UPGRADED" and successors[session.session_id] != 1:
            yield f"{successors[session.session_id]} successors: {session}"
        if session.previous is not None:
            old = by_id.get(session.previous)
            if old is None or not _succeeds(old, session):
                yield f"not the successor of {old}: {session}"


def _succeeds(old: Lived, new: Lived) -> bool:
    return (old.reason, old.key, old.ended_at) == ("UPGRADED", new.key, new.started_at) and old.kind < new.kind


def _untrue_answers(opens: Sequence[Exchange], table: Sequence[Lived]) -> Iterator[str]:
    """The session named was live at some instant while the request was under way, and enough for it."""
    by_id = {session.session_id: session for session in table}
    for exchange in _answered(opens):
        session = by_id.get(exchange.answer["sessionId"])
        if session is None:
            yield f"told of a session that is not there: {exchange}"
        elif not (session.started_at <= exchange.received_at and session.ended_at > exchange.sent_at):
            yield f"not live while this was under way: {session} {exchange}"
        elif session.kind < exchange.kind or session.key != exchange.key:
            yield f"not what was asked for: {session} {exchange}"
        elif _told(exchange.answer) != (session.kind, session.started_at, session.previous):
            yield f"not as in the table: {session} {exchange}"


def _wrong_openers(opens: Sequence[Exchange], table: Sequence[Lived]) -> Iterator[str]:
    """Each session was reported as opened once, to a request for just that. A lost answer may have been the one."""
    reports: defaultdict[str, list[Exchange]] = defaultdict(list)
    for exchange in _answered(opens):
        if exchange.answer["wasCreated"]:
            reports[exchange.answer["sessionId"]].append(exchange)
    lost = {(exchange.key, exchange.kind) for exchange in opens if exchange.status not in OPENED}
    for session in table:
        told = reports[session.session_id]
        if len(told) > 1 or (not told and (session.key, session.kind) not in lost):
            yield f"reported as opened {len(told)} times: {session} {told}"
        for exchange in told:
            if not _opened_by(exchange, session):
                yield f"cannot have been opened by this: {session} {exchange}"


def _opened_by(exchange: Exchange, session: Lived) -> bool:
    outcome = "created" if session.previous is None else "upgraded"
    return (
        (exchange.status, exchange.answer["status"], exchange.kind) == (201, outcome, session.kind)
        and exchange.answer["wasUpgraded"] == (outcome == "upgraded")
        and exchange.sent_at <= session.started_at <= exchange.received_at
    )


def _wrong_kinds(opens: Sequence[Exchange], table: Sequence[Lived]) -> Iterator[str]:
    """A run of upgrades ends with the highest kind that was asked for while it lasted."""
    asked: defaultdict[Key, list[Exchange]] = defaultdict(list)
    for exchange in opens:
        asked[exchange.key].append(exchange)
    for key, sessions in _by_key(table).items():
        free_since = 0
        for last in (session for session in sessions if session.reason != "UPGRADED"):
            surely = _asked_within(asked[key], free_since, last.ended_at)
            if surely and max(surely) > last.kind:
                yield f"kind {max(surely)} was asked for and not given: {last}"
            if last.kind not in _asked_around(asked[key], free_since, last.ended_at):
                yield f"nobody asked for kind {last.kind}: {last}"
            free_since = last.ended_at


def _asked_within(opens: Sequence[Exchange], start: int, end: int) -> list[int]:
    """Kinds of the requests that were carried out after `start` and before `end`, whatever the order of the others."""
    return [one.kind for one in _answered(opens) if one.sent_at > start and one.received_at < end]


def _asked_around(opens: Sequence[Exchange], start: int, end: int) -> list[int]:
    """Kinds of requests that may have been carried out between the two; a lost one at any time after it was sent."""
    return [one.kind for one in opens if one.sent_at <= end and (one.received_at >= start or one.status not in OPENED)]


def _wrong_ends(ends: Sequence[Exchange], table: Sequence[Lived]) -> Iterator[str]:
    """Whoever asked for an end was told the one that is in the table, and it came while somebody asked for it."""
    by_id = {session.session_id: session for session in table}
    asked: defaultdict[str, list[Exchange]] = defaultdict(list)
    for exchange in ends:
        session_id = exchange.path.rpartition("/")[2]
        asked[session_id].append(exchange)
        if exchange.status == OPENED[0] and not _told_end(exchange, by_id.get(session_id)):
            yield f"told another end: {by_id.get(session_id)} {exchange}"
    for session in table:
        if session.reason == "TERMINATED" and not any(_may_end(one, session) for one in asked[session.session_id]):
            yield f"nobody asked for this end: {session} {asked[session.session_id]}"


def _told_end(exchange: Exchange, session: Lived | None) -> bool:
    told = exchange.answer
    return session is not None and (told["isActive"], told["closeReason"], _instant(told["sessionEndUtc"])) == (
        False,
        session.reason,
        session.ended_at,
    )


def _may_end(exchange: Exchange, session: Lived) -> bool:
    return exchange.sent_at <= session.ended_at and (
        exchange.status not in OPENED or session.ended_at <= exchange.received_at
    )


def _answered(opens: Sequence[Exchange]) -> Iterator[Exchange]:
    return (exchange for exchange in opens if exchange.status in OPENED)


def _by_key(table: Sequence[Lived]) -> dict[Key, list[Lived]]:
    """In the order of their starts."""
    groups: defaultdict[Key, list[Lived]] = defaultdict(list)
    for session in table:
        groups[session.key].append(session)
    return groups


def _told(answer: dict[str, Any]) -> tuple[int, int, str | None]:
    return answer["sessionKind"], _instant(answer["sessionStartUtc"]), answer["previousSessionId"]


def _instant(text: str) -> int:
    return to_microseconds(datetime.fromisoformat(text))


def _microseconds(value: datetime | int) -> int:
    """An instant as PostgreSQL gives it, or as SQLite keeps it."""
    return value if isinstance(value, int) else to_microseconds(value)
