"""Imports live sessions of another service.

Tenure stores the time of the import as the start of an imported session, and bills the session from then on. So the
import changes no earlier window and no earlier event: usage that was already billed or sent stays correct, and every
instant is billed once, as `tenure audit` checks. The original start is kept in `imported_start_at`, and clients see the
original start as the start of the session.

First the whole file is read and checked (`read_sessions`), then all sessions are compared with the database. If no
session is refused, the sessions are written in batches of one transaction each. After an interruption, run the import
again: a session has the same id in every run, so no session is imported twice.
"""

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tenure.clock import to_microseconds
from tenure.domain.audit_log import Action, Actor, AuditDraft
from tenure.domain.capacities import SEATS_MAX, Seats
from tenure.domain.deadlines import heartbeat_microseconds
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import ImportedSession, ImportOutcome
from tenure.errors import TenureError
from tenure.ids import CELL, canonical_id, new_id
from tenure.naming import snake_case
from tenure.store.contract import Store
from tenure.store.limits import IMPORT_BATCH_MAX

LINES_MAX = 5_000_000
FAULTS_MAX = 20
PAGE = 500
MICROSECONDS = 1_000_000
LEASE_RANGE = (5, 86_400)
IDLE_RANGE = (5, 2_592_000)

SESSION_FIELDS = (
    "sessionId",
    "userObjectId",
    "tenantObjectId",
    "capacityId",
    "sessionKind",
    "sessionStartUtc",
    "sessionEndUtc",
    "leaseSeconds",
    "idleSeconds",
)
CAPACITY_FIELDS = ("capacityId", "maxSessions", "whenFull", "tenantObjectId")


class ImportRefused(TenureError):
    """The file cannot be imported. `faults` contains the first faults, and `more` is the number of further ones.

    Nothing was written, except if a conflict arose after the whole file had been checked: then the sessions without a
    conflict are written, in the batch with the conflict and in the batches before it.
    """

    def __init__(self, faults: Sequence[str], more: int = 0) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults
        self.more = more


class Mapped(NamedTuple):
    """The mapping file: the column for each of Tenure's fields, and the kind for each value in the column of kinds.

    Without `columns`, the columns have Tenure's names.
    """

    columns: Mapping[str, str]
    kinds: Mapping[str, int]


class Line(NamedTuple):
    number: int
    values: Mapping[str, str]


class FileSession(NamedTuple):
    line: int
    session: ImportedSession


class Counts(NamedTuple):
    imported: int
    existing: int
    ended_in_tenure: int
    ended_before: int


def read_lines(path: Path, fields: Sequence[str], mapped: Mapped | None) -> Iterator[Line]:
    """Yields the lines of a CSV or NDJSON file, with Tenure's field names. Empty values are left out."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        start = file.read(1)
        while start.isspace():
            start = file.read(1)
        file.seek(0)
        rows = _json_rows(file) if start == "{" else _csv_rows(file)
        names: dict[str, str] = {}
        for number, row in islice(rows, LINES_MAX):
            if mapped is None or not mapped.columns:
                names = names if set(row) <= names.keys() else names | _names_of(row, fields, number)
                yield Line(number, {names[column]: text for column, text in row.items() if text})
            else:
                missing = [column for column in mapped.columns.values() if column not in row and start != "{"]
                if missing:
                    raise ImportRefused([f"line 1: the file has no column {missing[0]}"])
                yield Line(number, {name: row[column] for name, column in mapped.columns.items() if row.get(column)})
        if next(rows, None) is not None:
            raise ImportRefused([f"the file has more than {LINES_MAX} lines"])


def _csv_rows(file: Any) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(file)
    header = next(reader, None)
    if header is None:
        return
    for row in reader:
        if row:
            if len(row) != len(header):
                raise ImportRefused([f"line {reader.line_num}: values: {len(row)}; in the header: {len(header)}"])
            values = (text.strip() for text in row)
            yield (
                reader.line_num,
                {name: "" if text == "NULL" else text for name, text in zip(header, values, strict=True)},
            )


def _json_rows(file: Any) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                content = json.loads(line)
            except ValueError:
                raise ImportRefused([f"line {number}: must be a JSON object"]) from None
            if not isinstance(content, dict):
                raise ImportRefused([f"line {number}: must be a JSON object"])
            yield number, {name: "" if value is None else str(value) for name, value in content.items()}


def _names_of(row: Mapping[str, str], fields: Sequence[str], number: int) -> dict[str, str]:
    known = {alias: field for field in fields for alias in (field, snake_case(field), field[:1].upper() + field[1:])}
    unknown = [column for column in row if column not in known]
    if unknown:
        known_fields = f"the fields are {', '.join(fields)}. Name the columns of the file with --mapping"
        raise ImportRefused([f"line {number}: {unknown[0]} is not a field; {known_fields}"])
    return {column: known[column] for column in row}


def read_sessions(
    lines: Iterator[Line], mapped: Mapped | None, now: datetime, term: timedelta
) -> Sequence[FileSession]:
    """Returns the sessions of a file, even those that have ended. Raises `ImportRefused` with the first faults if any
    line is wrong.
    """
    kinds = {} if mapped is None else mapped.kinds
    found: list[FileSession] = []
    faults: list[str] = []
    ids: dict[str, int] = {}
    keys: dict[tuple[str, str], int] = {}
    for line in lines:
        session, wrong = _session_of(line.values, kinds, now, term)
        if session is not None and session.session_id in ids:
            wrong = [f"sessionId: is also that of line {ids[session.session_id]}"]
        elif session is not None and session.ends_at > now and session.key in keys:
            wrong = [f"overlaps with line {keys[session.key]}: the same user on the same capacity"]
        faults += [f"line {line.number}: {each}" for each in wrong]
        if session is not None and not wrong:
            ids[session.session_id] = line.number
            if session.ends_at > now:
                keys[session.key] = line.number
            found.append(FileSession(line.number, session))
    _refuse(faults)
    return found


def _session_of(
    values: Mapping[str, str], kinds: Mapping[str, int], now: datetime, term: timedelta
) -> tuple[ImportedSession | None, Sequence[str]]:
    check = _Checked(values)
    user, tenant, capacity = (check.id(name) for name in ("userObjectId", "tenantObjectId", "capacityId"))
    given_id = check.id("sessionId", required=False)
    kind = check.kind(kinds)
    start = check.instant("sessionStartUtc")
    end = check.instant("sessionEndUtc", required=False)
    lease, idle = check.number("leaseSeconds", LEASE_RANGE), check.number("idleSeconds", IDLE_RANGE)
    if start is not None and start > now:
        check.wrong.append("sessionStartUtc: is in the future")
    if start is not None and end is not None and end <= start:
        check.wrong.append("sessionEndUtc: must be after the start")
    if check.wrong or None in (user, tenant, capacity, kind, start):
        return None, check.wrong
    lease_microseconds = None if lease is None else lease * MICROSECONDS
    return (
        ImportedSession(
            session_id=given_id or imported_id(start, user, tenant, capacity),  # type: ignore[arg-type]
            tenant_object_id=tenant,  # type: ignore[arg-type]
            user_object_id=user,  # type: ignore[arg-type]
            capacity_id=capacity,  # type: ignore[arg-type]
            kind=kind,  # type: ignore[arg-type]
            started_at=start,  # type: ignore[arg-type]
            ends_at=end or start + term,  # type: ignore[operator, arg-type]
            lease_microseconds=lease_microseconds,
            heartbeat_microseconds=heartbeat_microseconds(lease_microseconds, 0),
            idle_microseconds=None if idle is None else idle * MICROSECONDS,
        ),
        (),
    )


def imported_id(started_at: datetime, *identity: str) -> str:
    """Returns an id for a session without an id in the file. The session gets the same id in every import."""
    milliseconds = to_microseconds(started_at) // 1000
    digits = hashlib.sha256("/".join((str(to_microseconds(started_at)), *identity)).encode()).hexdigest()
    time = f"{milliseconds:012x}"[-12:]
    return f"{time[:8]}-{time[8:]}-7{CELL}-8{digits[:3]}-{digits[3:15]}"


class _Checked:
    """Reads the values of a line, and collects the faults in them."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.wrong: list[str] = []

    def _text(self, name: str, *, required: bool) -> str | None:
        text = self._values.get(name)
        if text is None and required:
            self.wrong.append(f"{name}: is missing")
        return text

    def id(self, name: str, *, required: bool = True) -> str | None:
        text = self._text(name, required=required)
        found = None if text is None else canonical_id(text)
        if text is not None and found is None:
            self.wrong.append(f"{name}: must be a UUID")
        return found

    def kind(self, kinds: Mapping[str, int]) -> int | None:
        text = self._text("sessionKind", required=True)
        if text is None:
            return None
        # If the mapping names kinds, refuse all other values: kind 1 of the other service may be kind 2 here.
        found = (kinds or {"1": 1, "2": 2, "3": 3}).get(text)
        if found is None:
            self.wrong.append(f"sessionKind: {text} is not in [kinds]" if kinds else "sessionKind: must be 1, 2 or 3")
        return found

    def instant(self, name: str, *, required: bool = True) -> datetime | None:
        """Parses an instant. An instant without an offset, as databases export it, is taken as UTC."""
        text = self._text(name, required=required)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text)
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        except (ValueError, OverflowError):
            self.wrong.append(f"{name}: must be an instant such as 2026-01-02T03:04:05Z or 2026-01-02 03:04:05.123")
            return None

    def number(self, name: str, allowed: tuple[int, int]) -> int | None:
        text = self._text(name, required=False)
        if text is None:
            return None
        least, most = allowed
        if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most:
            return int(text)
        self.wrong.append(f"{name}: must be a whole number from {least} to {most}")
        return None


async def import_sessions(
    store: Store,
    found: Sequence[FileSession],
    actor: Actor,
    detail: str,
    show: Callable[[str], None],
    *,
    writes: bool = True,
) -> Counts:
    """Compares all sessions with the database, and then writes them if `writes` is true.

    Raises `ImportRefused` before the first write if the check refuses a session or finds too few free seats. Raises
    `ImportRefused` after some writes only if a conflict arose after the check.
    """
    draft = AuditDraft(new_id(), actor, Action.SESSIONS_IMPORTED, "sessions", detail)
    planned: Counter[ImportOutcome] = Counter()
    faults: list[str] = []
    wanted: Counter[str] = Counter()
    for done, batch in _batches(found):
        outcomes = await store.import_sessions([each.session for each in batch], draft, writes=False)
        for each, outcome in zip(batch, outcomes, strict=True):
            planned[outcome] += 1
            faults += _faults_of(each, outcome)
            wanted[each.session.capacity_id] += outcome is ImportOutcome.IMPORTED
        show(f"checked {done} of {len(found)}")
    faults += [fault async for fault in _full(store, wanted)]
    _refuse(faults)
    if writes:
        planned.clear()
        for done, batch in _batches(found):
            outcomes = await store.import_sessions([each.session for each in batch], draft, writes=True)
            planned.update(outcomes)
            late = [fault for each, one in zip(batch, outcomes, strict=True) for fault in _faults_of(each, one)]
            if late:
                # After the check, a session was opened or a capacity was bound to a tenant. The sessions that were
                # written remain. When the conflict is gone or its line is removed, a repeated import writes the rest.
                raise ImportRefused([f"{late[0]} (this began during the import; earlier lines were imported)"])
            show(f"imported {done} of {len(found)}")
    return Counts(
        planned[ImportOutcome.IMPORTED],
        planned[ImportOutcome.EXISTING],
        planned[ImportOutcome.OVER],
        planned[ImportOutcome.ENDED],
    )


def _batches(found: Sequence[FileSession]) -> Iterator[tuple[int, Sequence[FileSession]]]:
    for start in range(0, len(found), IMPORT_BATCH_MAX):
        yield min(start + IMPORT_BATCH_MAX, len(found)), found[start : start + IMPORT_BATCH_MAX]


def _faults_of(each: FileSession, outcome: ImportOutcome) -> Sequence[str]:
    if outcome is ImportOutcome.CONFLICT:
        return [f"line {each.line}: overlaps with another session of the user on the capacity"]
    if outcome is ImportOutcome.TENANT_MISMATCH:
        return [f"line {each.line}: the capacity is bound to another tenant"]
    return []


async def _full(store: Store, wanted: Mapping[str, int]) -> Any:
    """Yields a fault for each capacity that has too few free seats for the sessions to be imported on it."""
    after: str | None = None
    while True:
        page = await store.list_capacities(None, after, PAGE, EVERYTHING)
        for each in page:
            most, new = each.seats.max_sessions, wanted.get(each.capacity_id, 0)
            if new and most is not None and each.active_sessions + new > most:
                yield (
                    f"capacity {each.capacity_id} has too few free seats: limit {most}, taken {each.active_sessions}, "
                    f"needed {new}"
                )
        if len(page) < PAGE:
            return
        after = page[-1].capacity_id


def read_capacities(lines: Iterator[Line]) -> Sequence[tuple[str, Seats]]:
    found: dict[str, Seats] = {}
    faults: list[str] = []
    for line in lines:
        check = _Checked(line.values)
        capacity, tenant = check.id("capacityId"), check.id("tenantObjectId", required=False)
        most = check.number("maxSessions", (1, SEATS_MAX))
        when_full = line.values.get("whenFull", "reject")
        if when_full not in ("reject", "evictOldest"):
            check.wrong.append("whenFull: must be reject or evictOldest")
        if capacity in found:
            check.wrong.append("capacityId: occurs twice in the file")
        faults += [f"line {line.number}: {each}" for each in check.wrong]
        if capacity is not None:
            found[capacity] = Seats(most, when_full, tenant)
    _refuse(faults)
    return list(found.items())


async def import_capacities(
    store: Store, found: Sequence[tuple[str, Seats]], actor: Actor, show: Callable[[str], None]
) -> int:
    for done, (capacity_id, seats) in enumerate(found, 1):
        await store.put_capacity(capacity_id, seats, EVERYTHING, actor)
        show(f"imported {done} of {len(found)}")
    return len(found)


def _refuse(faults: Sequence[str]) -> None:
    if faults:
        raise ImportRefused(faults[:FAULTS_MAX], max(len(faults) - FAULTS_MAX, 0))
