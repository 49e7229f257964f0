"""The tables of the database at the end of a run, read once, with instants in microseconds and ids as text."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from proof.ensemble import Ensemble
from tenure.clock import to_microseconds
from tenure.domain.sessions import LAPSE_REASONS

Row = dict[str, Any]
TABLES = (
    *("installation", "sessions", "capacities", "leases", "lease_history", "jobs", "job_runs", "submissions"),
    *("submission_attempts", "usage_eras", "usage_windows", "usage_chunks", "keys", "event_batches"),
)


class Tables(msgspec.Struct, kw_only=True):
    installation: list[Row] = []
    sessions: list[Row] = []
    capacities: list[Row] = []
    leases: list[Row] = []
    lease_history: list[Row] = []
    jobs: list[Row] = []
    job_runs: list[Row] = []
    submissions: list[Row] = []
    submission_attempts: list[Row] = []
    usage_eras: list[Row] = []
    usage_windows: list[Row] = []
    usage_chunks: list[Row] = []
    keys: list[Row] = []
    event_batches: list[Row] = []
    ledgers: dict[str, dict[str, list[Row]]] = {}
    """The tables `deliveries`, `totals` and `events` of each receiver."""

    def ended_at(self, session: Row) -> int:
        """The recorded end of a session, or its deadline if no end is recorded."""
        return int(session["deadline_at"] if session["closed_at"] is None else session["closed_at"])

    def by_session(self) -> dict[str, Row]:
        return {session["session_id"]: session for session in self.sessions}


async def read_tables(ensemble: Ensemble) -> Tables:
    """Reads the tables and the ledgers. The instances must have stopped, so that nothing changes meanwhile."""
    tables = Tables()
    for name in TABLES:
        setattr(tables, name, [_plain(row) for row in await ensemble.rows(f"SELECT * FROM {name}")])
    for name in ensemble.receivers:
        tables.ledgers[name] = {
            table: ensemble.ledger_rows(name, f"SELECT * FROM {table}") for table in ("deliveries", "totals", "events")
        }
    return tables


def _plain(row: Row) -> Row:
    plain = {name: _value(value) for name, value in row.items()}
    if isinstance(plain.get("lapse_reason"), bytes):
        plain["lapse_reason"] = _LAPSE_REASONS[plain["lapse_reason"]]
    return plain


_LAPSE_REASONS = {reason.value[:1].encode(): reason.value for reason in LAPSE_REASONS}
"""The lapse reasons by their first letter. PostgreSQL stores only this letter."""


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_microseconds(value)
    return str(value) if isinstance(value, UUID) else value


def instant(text: str) -> int:
    """An instant in a response, in microseconds."""
    return to_microseconds(datetime.fromisoformat(text))
