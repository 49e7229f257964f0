"""Computes the expected usage from the sessions and windows, and compares it with the tables and the receiver's ledger.

This module computes with fractions and renders the chunks with none of the service's code for usage. So if the ledger
contains the same digests, the usage of each session was sent correctly for each window.
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


class SessionSpan(NamedTuple):
    """A session, with its instants in microseconds since 1970. A session that is not closed ends at its deadline."""

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


class WindowSpan(NamedTuple):
    """A window, with its instants in microseconds since 1970."""

    window_id: int
    installation_id: str
    started_at: int
    ended_at: int
    era: Era


class Billed(NamedTuple):
    """The expected usage of one session in one window, in millionths."""

    session: SessionSpan
    usage: int
    from_at: int
    to_at: int


class Chunk(NamedTuple):
    records: int
    usage: Decimal
    digest: str


class UsageTables(NamedTuple):
    """The rows of the tables. The first window starts at `began_at`, and the last one ends at `last_cut_at`."""

    sessions: Sequence[SessionSpan]
    eras: Sequence[Era]
    windows: Sequence[WindowSpan]
    began_at: int
    last_cut_at: int


# Expected usage


def usage_until(session: SessionSpan, era: Era, until: int) -> int:
    """The usage of the session from the start of the era until `until`, in millionths, rounded half to even."""
    microseconds = min(session.ended_at, until) - max(session.started_at, era.started_at)
    if microseconds <= 0:
        return 0
    return round(era.factors[session.kind - 1] * microseconds * 1_000_000 / PERIOD)


def bill_windows(tables: UsageTables) -> Mapping[int, Sequence[Billed]]:
    """Returns the expected usage of the sessions by window id; within a window, in the order of session ids."""
    bills: defaultdict[int, list[Billed]] = defaultdict(list)
    starts, ends = [each.started_at for each in tables.windows], [each.ended_at for each in tables.windows]
    for session in sorted(tables.sessions):
        first, behind = bisect_right(ends, session.started_at), bisect_left(starts, session.ended_at)
        for window in tables.windows[first:behind]:
            bills[window.window_id].append(_billed(session, window))
    return bills


def _billed(session: SessionSpan, window: WindowSpan) -> Billed:
    usage = usage_until(session, window.era, window.ended_at) - usage_until(session, window.era, window.started_at)
    from_at, to_at = max(session.started_at, window.started_at), min(session.ended_at, window.ended_at)
    return Billed(session, usage, from_at, to_at)


def total_usage(tables: UsageTables) -> Decimal:
    """The usage of all sessions, rounded once per session and era."""
    ends = [*(era.started_at for era in tables.eras[1:]), tables.last_cut_at]
    total = sum(
        usage_until(session, era, end)
        for era, end in zip(tables.eras, ends, strict=True)
        for session in tables.sessions
    )
    return _decimal(total)


def chunks_of(
    billed: Sequence[Billed], window: WindowSpan, usage_format: str = "tenure"
) -> Iterator[tuple[str, Chunk]]:
    """Yields each expected chunk with its delivery key."""
    for number, first in enumerate(range(0, len(billed), CHUNK), 1):
        part = billed[first : first + CHUNK]
        body = msgspec.json.encode([_rendered(one, window, usage_format) for one in part])
        usage = _decimal(sum(one.usage for one in part))
        yield f"{window.installation_id}-{window.window_id}-{number}", Chunk(len(part), usage, sha256(body).hexdigest())


def _rendered(one: Billed, window: WindowSpan, usage_format: str) -> dict[str, object]:
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


# Tables


async def read_usage_tables(database: Database) -> UsageTables:
    """Reads the tables. All instances must have stopped writing."""
    eras = [
        Era(_instant(row["started_at"]), tuple(Fraction(row[f"factor_{kind}"], 1_000_000) for kind in (1, 2, 3)))  # type: ignore[arg-type]
        for row in await database.rows("SELECT * FROM usage_eras ORDER BY era")
    ]
    windows = [
        WindowSpan(
            row["window_id"],
            str(row["installation_id"]),
            _instant(row["started_at"]),
            _instant(row["ended_at"]),
            eras[row["era"] - 1],
        )
        for row in await database.rows("SELECT * FROM usage_windows ORDER BY window_id")
    ]
    (installation,) = await database.rows("SELECT * FROM installation")
    sessions = [_session_span(row) for row in await database.rows("SELECT * FROM sessions")]
    return UsageTables(
        sessions, eras, windows, _instant(installation["usage_kept_from"]), _instant(installation["last_cut_at"])
    )


def _session_span(row: Mapping[str, Any]) -> SessionSpan:
    ended_at = row["deadline_at"] if row["closed_at"] is None else row["closed_at"]
    ids = (str(row[f"{name}_id"]) for name in ("session", "user_object", "tenant_object", "capacity"))
    return SessionSpan(*ids, row["kind"], _instant(row["started_at"]), _instant(ended_at))


def _instant(value: datetime | int) -> int:
    return value if isinstance(value, int) else to_microseconds(value)


# Faults


async def find_usage_faults(database: Database, ledger: Path, usage_format: str = "tenure") -> list[str]:
    """Returns at most SHOWN_MAX faults; an empty list if all usage is correct.

    Before the call, all usage must be delivered and all instances must be stopped.
    """
    tables = await read_usage_tables(database)
    bills = bill_windows(tables)
    due = dict(
        chunk for window in tables.windows for chunk in chunks_of(bills.get(window.window_id, ()), window, usage_format)
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
        _window_gaps(tables),
        _differences("saved", saved, {key: (chunk.records, chunk.usage) for key, chunk in due.items()}),
        _differences("received", received, due),
        _sums(total, received, tables),
        _overlaps(tables),
    )
    return [fault for check in checks for fault in check][:SHOWN_MAX]


def read_ledger(ledger: Path) -> tuple[Mapping[str, Chunk], Decimal]:
    """Returns the chunk of each delivery key, and the total usage of the ledger."""
    with closing(sqlite3.connect(ledger, timeout=10)) as connection:
        rows = connection.execute("SELECT key, records, usage, digest FROM deliveries").fetchall()
        ((total, conflicts),) = connection.execute("SELECT usage, conflicts FROM totals").fetchall()
    assert conflicts == 0, f"{conflicts} requests repeated a delivery key with another body"
    return {key: Chunk(records, Decimal(usage or 0), digest) for key, records, usage, digest in rows}, Decimal(total)


def _window_gaps(tables: UsageTables) -> Iterator[str]:
    """Each instant from the start of the windows to the last cut must be in exactly one window."""
    ends = [tables.began_at, *(window.ended_at for window in tables.windows)]
    starts = [*(window.started_at for window in tables.windows), tables.last_cut_at]
    for end, start in zip(ends, starts, strict=True):
        if end != start:
            yield f"a window ends at {_text(end)}, and the next begins at {_text(start)}"


def _differences(what: str, found: Mapping[str, Any], due: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*found, *due}):
        if found.get(key) != due.get(key):
            yield f"{what} under {key}: {found.get(key)}, but expected: {due.get(key)}"


def _sums(total: Decimal, received: Mapping[str, Chunk], tables: UsageTables) -> Iterator[str]:
    added, expected = sum(chunk.usage for chunk in received.values()), total_usage(tables)
    if not total == added == expected:
        yield f"the ledger's total is {total}, its entries add up to {added}, and {expected} was expected"


def _overlaps(tables: UsageTables) -> Iterator[str]:
    by_key: defaultdict[tuple[str, str], list[SessionSpan]] = defaultdict(list)
    for session in sorted(tables.sessions, key=lambda each: each.started_at):
        by_key[session.capacity, session.user].append(session)
    for sessions in by_key.values():
        for one, following in pairwise(sessions):
            if following.started_at < one.ended_at:
                yield f"overlap: {one} {following}"


# `tenure audit`


async def run_audit(database: Database, ledger: Path | None = None, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs `tenure audit` in a new process."""
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
