"""Errors of PostgreSQL and SQLite are mapped to causes, and a refusal is remembered for a few seconds."""

import sqlite3
from typing import NoReturn

import asyncpg
import pytest

from tenure.errors import DatabaseUnavailable
from tenure.store.engines.postgres.errors import Unanswered
from tenure.store.engines.postgres.errors import cause_of as postgres_cause_of
from tenure.store.engines.sqlite.errors import cause_of as sqlite_cause_of
from tenure.store.retries import REFUSAL_SECONDS, REFUSALS, TRIES, Cause, Retries
from tenure.telemetry.events import StoreRetried
from tests.support.telemetry import RecordedTelemetry


def postgres_error(state: str, message: str = "refused") -> BaseException:
    return asyncpg.PostgresError.new({"C": state, "M": message})  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("53000", Cause.OUT_OF_RESOURCES),
        ("53100", Cause.DISK_FULL),
        ("53200", Cause.OUT_OF_RESOURCES),
        ("53300", Cause.TOO_MANY_CONNECTIONS),
        ("53400", Cause.OUT_OF_RESOURCES),
        ("25006", Cause.READ_ONLY),
        ("57P01", Cause.CONNECTION),
        ("57P02", Cause.CONNECTION),
        ("57P03", Cause.CONNECTION),
        ("57P04", Cause.CONNECTION),
        ("57P05", Cause.CONNECTION),
        ("58030", Cause.IO_ERROR),
        ("08006", Cause.CONNECTION),
        ("55000", None),
        ("22012", None),
    ],
)
def test_sqlstate_is_mapped_to_cause(state: str, cause: Cause | None) -> None:
    assert postgres_cause_of(postgres_error(state)) is cause


def test_standby_is_read_only_and_missing_response_is_unanswered() -> None:
    assert postgres_cause_of(postgres_error("55000", "recovery is in progress")) is Cause.READ_ONLY
    assert postgres_cause_of(asyncpg.TargetServerAttributeNotMatched("none matches")) is Cause.READ_ONLY
    assert postgres_cause_of(Unanswered("later")) is Cause.UNANSWERED


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (sqlite3.SQLITE_FULL, Cause.DISK_FULL),
        (sqlite3.SQLITE_READONLY, Cause.READ_ONLY),
        (sqlite3.SQLITE_READONLY_DBMOVED, Cause.READ_ONLY),
        (sqlite3.SQLITE_IOERR_WRITE, Cause.IO_ERROR),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Cause.LOCK_TIMEOUT),
        (sqlite3.SQLITE_CANTOPEN, Cause.CONNECTION),
    ],
)
def test_sqlite_result_code_is_mapped_to_cause(code: int, cause: Cause) -> None:
    error = sqlite3.OperationalError("refused")
    error.sqlite_errorcode = code
    assert sqlite_cause_of(error) is cause


@pytest.mark.parametrize("cause", sorted(REFUSALS))
async def test_refusal_is_remembered_for_refusal_seconds(cause: Cause, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tenure.store.retries.monotonic", lambda: now)
    retries = Retries(lambda _error: cause, RecordedTelemetry())
    assert retries.refusal is None
    with pytest.raises(DatabaseUnavailable) as raised:
        await retries.run(fail)
    assert retries.refusal == raised.value.detail
    now += REFUSAL_SECONDS + 0.1
    assert retries.refusal is None


@pytest.mark.parametrize(("cause", "tries"), [(Cause.DISK_FULL, 1), (Cause.FILE_MOVED, 1), (Cause.READ_ONLY, TRIES)])
async def test_read_only_is_retried_but_full_disk_and_moved_file_are_not(cause: Cause, tries: int) -> None:
    telemetry = RecordedTelemetry()
    with pytest.raises(DatabaseUnavailable):
        await Retries(lambda _error: cause, telemetry).run(fail)
    assert len(telemetry.of(StoreRetried)) == tries


async def fail() -> NoReturn:
    raise RuntimeError("refused")
