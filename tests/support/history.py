"""Checks that the responses to all clients are consistent with the session table.

The input is the exchanges of the clients, each with the instants at which it was sent and answered, and the rows of the
session table. Concurrent requests may have been executed in any order, so each check uses only conclusions that the
instants allow. Each violation is one sentence; an empty list means that every guarantee held.
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


class SessionRow(msgspec.Struct, frozen=True):
    """A session at the end of the test. A session without a recorded end ends at `NEVER`."""

    session_id: str
    key: Key
    kind: int
    started_at: int
    ended_at: int
    reason: str | None
    previous: str | None


async def read_sessions(database: Database) -> list[SessionRow]:
    found = await database.rows("SELECT * FROM sessions ORDER BY started_at")
    return [
        SessionRow(
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


def find_violations(exchanges: Sequence[Exchange], table: Sequence[SessionRow], also: Sequence[int] = ()) -> list[str]:
    """Returns at most SHOWN_MAX violations. `also` contains allowed statuses besides 200 and 201; 0 stands for a lost
    connection.
    """
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


def overlaps(table: Sequence[SessionRow]) -> Iterator[str]:
    """Each key has at most one live session at every instant, and each session ends after it starts."""
    for session in table:
        if session.ended_at <= session.started_at:
            yield f"does not end after its start: {session}"
    for sessions in _by_key(table).values():
        for one, following in pairwise(sessions):
            if following.started_at < one.ended_at:
                yield f"overlap: {one} {following}"


def _wrong_successions(table: Sequence[SessionRow]) -> Iterator[str]:
    """An upgraded session has exactly one successor, of a higher kind, which starts when the upgraded session ends."""
    by_id = {session.session_id: session for session in table}
    successors = Counter(session.previous for session in table)
    for session in table:
        if session.reason == "UPGRADED" and successors[session.session_id] != 1:
            yield f"{successors[session.session_id]} successors: {session}"
        if session.previous is not None:
            old = by_id.get(session.previous)
            if old is None or not _succeeds(old, session):
                yield f"not the successor of {old}: {session}"


def _succeeds(old: SessionRow, new: SessionRow) -> bool:
    return (old.reason, old.key, old.ended_at) == ("UPGRADED", new.key, new.started_at) and old.kind < new.kind


def _untrue_answers(opens: Sequence[Exchange], table: Sequence[SessionRow]) -> Iterator[str]:
    """The session in each response was live at some instant during the request, and of at least the requested kind."""
    by_id = {session.session_id: session for session in table}
    for exchange in _answered(opens):
        session = by_id.get(exchange.answer["sessionId"])
        if session is None:
            yield f"response names a session that does not exist: {exchange}"
        elif not (session.started_at <= exchange.received_at and session.ended_at > exchange.sent_at):
            yield f"session was not live during the request: {session} {exchange}"
        elif session.kind < exchange.kind or session.key != exchange.key:
            yield f"session does not match the request: {session} {exchange}"
        elif _shown(exchange.answer) != (session.kind, session.started_at, session.previous):
            yield f"response differs from the table: {session} {exchange}"


def _wrong_openers(opens: Sequence[Exchange], table: Sequence[SessionRow]) -> Iterator[str]:
    """Each session was reported as opened once, to a request for its key and kind, unless that response was lost."""
    reports: defaultdict[str, list[Exchange]] = defaultdict(list)
    for exchange in _answered(opens):
        if exchange.answer["wasCreated"]:
            reports[exchange.answer["sessionId"]].append(exchange)
    lost = {(exchange.key, exchange.kind) for exchange in opens if exchange.status not in OPENED}
    for session in table:
        reported = reports[session.session_id]
        if len(reported) > 1 or (not reported and (session.key, session.kind) not in lost):
            yield f"reported as opened {len(reported)} times: {session} {reported}"
        for exchange in reported:
            if not _opened_by(exchange, session):
                yield f"session cannot have been opened by this request: {session} {exchange}"


def _opened_by(exchange: Exchange, session: SessionRow) -> bool:
    outcome = "created" if session.previous is None else "upgraded"
    return (
        (exchange.status, exchange.answer["status"], exchange.kind) == (201, outcome, session.kind)
        and exchange.answer["wasUpgraded"] == (outcome == "upgraded")
        and exchange.sent_at <= session.started_at <= exchange.received_at
    )


def _wrong_kinds(opens: Sequence[Exchange], table: Sequence[SessionRow]) -> Iterator[str]:
    """A sequence of upgrades ends with the highest kind that was requested during it."""
    requested: defaultdict[Key, list[Exchange]] = defaultdict(list)
    for exchange in opens:
        requested[exchange.key].append(exchange)
    for key, sessions in _by_key(table).items():
        free_since = 0
        for last in (session for session in sessions if session.reason != "UPGRADED"):
            kinds = _requested_within(requested[key], free_since, last.ended_at)
            if kinds and max(kinds) > last.kind:
                yield f"kind {max(kinds)} was requested and not opened: {last}"
            if last.kind not in _requested_around(requested[key], free_since, last.ended_at):
                yield f"kind {last.kind} was not requested: {last}"
            free_since = last.ended_at


def _requested_within(opens: Sequence[Exchange], start: int, end: int) -> list[int]:
    """Kinds of the requests that were certainly executed between `start` and `end`."""
    return [one.kind for one in _answered(opens) if one.sent_at > start and one.received_at < end]


def _requested_around(opens: Sequence[Exchange], start: int, end: int) -> list[int]:
    """Kinds of requests that may have been executed between `start` and `end`.

    A request without a response may have been executed at any time after it was sent.
    """
    return [one.kind for one in opens if one.sent_at <= end and (one.received_at >= start or one.status not in OPENED)]


def _wrong_ends(ends: Sequence[Exchange], table: Sequence[SessionRow]) -> Iterator[str]:
    """Each response to a DELETE contains the end in the table. Each terminated session ended during a DELETE of this
    session.
    """
    by_id = {session.session_id: session for session in table}
    deletes: defaultdict[str, list[Exchange]] = defaultdict(list)
    for exchange in ends:
        session_id = exchange.path.rpartition("/")[2]
        deletes[session_id].append(exchange)
        if exchange.status == OPENED[0] and not _shows_end(exchange, by_id.get(session_id)):
            yield f"response contains another end: {by_id.get(session_id)} {exchange}"
    for session in table:
        if session.reason == "TERMINATED" and not any(_may_end(one, session) for one in deletes[session.session_id]):
            yield f"session was ended without a DELETE: {session} {deletes[session.session_id]}"


def _shows_end(exchange: Exchange, session: SessionRow | None) -> bool:
    shown = exchange.answer
    return session is not None and (shown["isActive"], shown["closeReason"], _instant(shown["sessionEndUtc"])) == (
        False,
        session.reason,
        session.ended_at,
    )


def _may_end(exchange: Exchange, session: SessionRow) -> bool:
    return exchange.sent_at <= session.ended_at and (
        exchange.status not in OPENED or session.ended_at <= exchange.received_at
    )


def _answered(opens: Sequence[Exchange]) -> Iterator[Exchange]:
    return (exchange for exchange in opens if exchange.status in OPENED)


def _by_key(table: Sequence[SessionRow]) -> dict[Key, list[SessionRow]]:
    """Groups the sessions by key, in the order of their starts."""
    groups: defaultdict[Key, list[SessionRow]] = defaultdict(list)
    for session in table:
        groups[session.key].append(session)
    return groups


def _shown(result: dict[str, Any]) -> tuple[int, int, str | None]:
    return result["sessionKind"], _instant(result["sessionStartUtc"]), result["previousSessionId"]


def _instant(text: str) -> int:
    return to_microseconds(datetime.fromisoformat(text))


def _microseconds(value: datetime | int) -> int:
    """`value` is an instant as PostgreSQL returns it, or as SQLite stores it."""
    return value if isinstance(value, int) else to_microseconds(value)
