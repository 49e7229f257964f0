"""What must have been billed, worked out with fractions from sessions and windows alone, and what was not.

Nothing of the service's own arithmetic is used, nor of its formats: a window's chunks are rendered here once more, so
that the digests in a ledger tell of every session and window whether it was sent as it was lived.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tenure.clock import from_microseconds, to_microseconds
from tests.support.databases import Database

PERIOD = 30 * 24 * 3600 * 1_000_000
CHUNK = 1000
SHOWN_MAX = 12
AUDIT_SECONDS = 60


class Lived(NamedTuple):
    """A session, in microseconds since 1970; one that nobody has closed ends at its deadline."""

    session_id: str
    user: str
    tenant: str
    capacity: str
    kind: int
    started_at: int
    ended_at: int


class Era(NamedTuple):
    started_at: int
    factors: tuple[Fraction, Fraction, Fraction]


class Span(NamedTuple):
    """A window."""

    window_id: int
    installation_id: str
    started_at: int
    ended_at: int
    era: Era


class Billed(NamedTuple):
    """What one session must be billed for one window, in millionths."""

    session: Lived
    usage: int
    from_at: int
    to_at: int


class Chunk(NamedTuple):
    records: int
    usage: Decimal
    digest: str


class Books(NamedTuple):
    """All that the tables say."""

    sessions: Sequence[Lived]
    eras: Sequence[Era]
    windows: Sequence[Span]
    began_at: int
    last_cut_at: int


# What was lived


def used(session: Lived, era: Era, until: int) -> int:
    """Since the era began, in millionths; a fraction is rounded half even."""
    microseconds = min(session.ended_at, until) - max(session.started_at, era.started_at)
    if microseconds <= 0:
        return 0
    return round(era.factors[session.kind - 1] * microseconds * 1_000_000 / PERIOD)


def bill(books: Books) -> Mapping[int, Sequence[Billed]]:
    """By window, in the order of session ids."""
    bills: defaultdict[int, list[Billed]] = defaultdict(list)
    starts, ends = [each.started_at for each in books.windows], [each.ended_at for each in books.windows]
    for session in sorted(books.sessions):
        first, behind = bisect_right(ends, session.started_at), bisect_left(starts, session.ended_at)
        for window in books.windows[first:behind]:
            bills[window.window_id].append(_billed(session, window))
    return bills


def _billed(session: Lived, window: Span) -> Billed:
    usage = used(session, window.era, window.ended_at) - used(session, window.era, window.started_at)
    from_at, to_at = max(session.started_at, window.started_at), min(session.ended_at, window.ended_at)
    return Billed(session, usage, from_at, to_at)


def lived_in_all(books: Books) -> Decimal:
    """Each session's whole usage, rounded once an era."""
    ends = [*(era.started_at for era in books.eras[1:]), books.last_cut_at]
    total = sum(
        used(session, era, end) for era, end in zip(books.eras, ends, strict=True) for session in books.sessions
    )
    return _decimal(total)


def chunks_of(billed: Sequence[Billed], window: Span, usage_format: str = "tenure") -> Iterator[tuple[str, Chunk]]:
    """With the keys under which they must be sent."""
    for number, first in enumerate(range(0, len(billed), CHUNK), 1):
        part = billed[first : first + CHUNK]
        body = msgspec.json.encode([_rendered(one, window, usage_format) for one in part])
        usage = _decimal(sum(one.usage for one in part))
        yield f"{window.installation_id}-{window.window_id}-{number}", Chunk(len(part), usage, sha256(body).hexdigest())


def _rendered(one: Billed, window: Span, usage_format: str) -> dict[str, object]:
    session = one.session
    record = {
        "sessionId": session.session_id,
        "userObjectId": session.user,
        "tenantObjectId": session.tenant,
        "capacityId": session.capacity,
        "sessionKind": session.kind,
        "usage": msgspec.Raw(format(_decimal(one.usage).normalize(), "f").encode()),
        "fromUtc": _text(one.from_at),
        "toUtc": _text(one.to_at),
    }
    if usage_format == "tenure":
        return record
    return {
        "specversion": "1.0",
        "type": "tenure.usage",
        "source": f"urn:tenure:{window.installation_id}",
        "id": f"{window.window_id}-{session.session_id}",
        "subject": session.tenant,
        "time": _text(one.to_at),
        "datacontenttype": "application/json",
        "data": record,
    }


def _text(microseconds: int) -> str:
    return f"{from_microseconds(microseconds):%Y-%m-%dT%H:%M:%S.%f}Z"


def _decimal(millionths: int) -> Decimal:
    return Decimal(millionths).scaleb(-6)


# What the tables say


async def read_books(database: Database) -> Books:
    """Nobody may be writing any more."""
    eras = [
        Era(_instant(row["started_at"]), tuple(Fraction(row[f"factor_{kind}"], 1_000_000) for kind in (1, 2, 3)))  # type: ignore[arg-type]
        for row in await database.rows("SELECT * FROM usage_eras ORDER BY era")
    ]
    windows = [
        Span(
            row["window_id"],
            str(row["installation_id"]),
            _instant(row["started_at"]),
            _instant(row["ended_at"]),
            eras[row["era"] - 1],
        )
        for row in await database.rows("SELECT * FROM usage_windows ORDER BY window_id")
    ]
    (installation,) = await database.rows("SELECT * FROM installation")
    sessions = [_lived(row) for row in await database.rows("SELECT * FROM sessions")]
    return Books(
        sessions, eras, windows, _instant(installation["usage_kept_from"]), _instant(installation["last_cut_at"])
    )


def _lived(row: Mapping[str, Any]) -> Lived:
    ended_at = row["deadline_at"] if row["closed_at"] is None else row["closed_at"]
    ids = (str(row[f"{name}_id"]) for name in ("session", "user_object", "tenant_object", "capacity"))
    return Lived(*ids, row["kind"], _instant(row["started_at"]), _instant(ended_at))


def _instant(value: datetime | int) -> int:
    return value if isinstance(value, int) else to_microseconds(value)


# What is wrong


async def wrong_usage(database: Database, ledger: Path, usage_format: str = "tenure") -> list[str]:
    """Nobody may be running any more, and all be delivered; an empty list is what is wanted."""
    books = await read_books(database)
    bills = bill(books)
    due = dict(
        chunk for window in books.windows for chunk in chunks_of(bills.get(window.window_id, ()), window, usage_format)
    )
    received, total = read_ledger(ledger)
    saved = {
        f"{row['installation_id']}-{row['window_id']}-{row['chunk']}": (
            row["sessions"],
            _decimal(row["usage_millionths"]),
        )
        for row in await database.rows(
            "SELECT w.installation_id, c.* FROM usage_chunks c JOIN usage_windows w ON w.window_id = c.window_id"
        )
    }
    checks: Iterable[Iterator[str]] = (
        _apart(books),
        _differences("saved", saved, {key: (chunk.records, chunk.usage) for key, chunk in due.items()}),
        _differences("received", received, due),
        _sums(total, received, books),
        _overlaps(books),
    )
    return [sentence for check in checks for sentence in check][:SHOWN_MAX]


def read_ledger(ledger: Path) -> tuple[Mapping[str, Chunk], Decimal]:
    """What came under each key, and what all of it is said to add up to."""
    with closing(sqlite3.connect(ledger, timeout=10)) as connection:
        rows = connection.execute("SELECT key, records, usage, digest FROM deliveries").fetchall()
        ((total, conflicts),) = connection.execute("SELECT usage, conflicts FROM totals").fetchall()
    assert conflicts == 0, f"{conflicts} requests came with another body under a known key"
    return {key: Chunk(records, Decimal(usage or 0), digest) for key, records, usage, digest in rows}, Decimal(total)


def _apart(books: Books) -> Iterator[str]:
    """Every instant between the beginning and the last cut lies in one window."""
    ends = [books.began_at, *(window.ended_at for window in books.windows)]
    starts = [*(window.started_at for window in books.windows), books.last_cut_at]
    for end, start in zip(ends, starts, strict=True):
        if end != start:
            yield f"a window ends at {_text(end)}, and the next begins at {_text(start)}"


def _differences(what: str, found: Mapping[str, Any], due: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*found, *due}):
        if found.get(key) != due.get(key):
            yield f"{what} under {key}: {found.get(key)}, but lived: {due.get(key)}"


def _sums(total: Decimal, received: Mapping[str, Chunk], books: Books) -> Iterator[str]:
    added, lived = sum(chunk.usage for chunk in received.values()), lived_in_all(books)
    if not total == added == lived:
        yield f"the ledger's total is {total}, its entries add up to {added}, and {lived} was lived"


def _overlaps(books: Books) -> Iterator[str]:
    by_key: defaultdict[tuple[str, str], list[Lived]] = defaultdict(list)
    for session in sorted(books.sessions, key=lambda each: each.started_at):
        by_key[session.capacity, session.user].append(session)
    for sessions in by_key.values():
        for one, following in pairwise(sessions):
            if following.started_at < one.ended_at:
                yield f"overlap: {one} {following}"


# `tenure audit`


async def audit(database: Database, ledger: Path | None = None, *flags: str) -> subprocess.CompletedProcess[str]:
    """The command, as a person gives it."""
    with_ledger = [] if ledger is None else ["--ledger", str(ledger)]
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tenure", "audit", "--database", database.url, *with_ledger, *flags],
        capture_output=True,
        text=True,
        cwd=ledger.parent if ledger is not None else None,
        env=os.environ,
        timeout=AUDIT_SECONDS,
        check=False,
    )
