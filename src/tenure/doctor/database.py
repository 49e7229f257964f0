"""Checks of the database: its file or server, its schema, its clock, its limits and its tables."""

import shlex
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from tenure.clock import from_microseconds, wall_microseconds
from tenure.doctor.findings import Code, Finding, broken, warning
from tenure.doctor.patient import Patient
from tenure.domain.doctor import PoolerMode, ReadOnly, TableChurn
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.store.migrate import is_sufficient, required_revision

PRIVATE = 0o077
"""The permission bits of the group and of other users. A private file has none of them."""
DISK_FULL_BYTES = 32 << 20
DISK_LOW_BYTES = 256 << 20
CLOCK_WARNING = timedelta(seconds=2)
CLOCK_BROKEN = timedelta(minutes=5)
"""If the clocks of the database and of this host differ by more than this, the finding is `broken` and not a warning.
Receivers refuse a request whose timestamp differs from their clock by more than five minutes. The timestamp comes from
the clock of the host, and this clock may be the wrong one."""
SCARCE_SHARE = 0.9
POOL_SIZE_MIN = 4
DEAD_ROWS_MIN = 10_000
DEAD_SHARE = 0.5
UPDATES_MIN = 10_000
HOT_SHARE = 0.3
SESSION_MODE = (
    "sed -i 's/^pool_mode.*/pool_mode = session/' /etc/pgbouncer/pgbouncer.ini && psql -p 6432 pgbouncer -c RELOAD"
)
COLD_UPDATES_PER_ROW = 4
"""The most updates per inserted row that normally write an index. A session causes a few of them: when it ends, and
when the sweep checks whether it has lapsed. If there are more, heartbeats cause them."""


async def check_file(patient: Patient) -> Sequence[Finding]:
    file = patient.store.describe_file()
    if file is None:
        return []
    path = shlex.quote(file.path)
    if file.disk_read_only:
        mend = f'mount -o remount,rw "$(findmnt -n -o TARGET -T {path})"'
        return [broken(Code.DISK_READ_ONLY, "the disk is mounted read only", mend, file.path)]
    if not file.exists:
        return [_missing(patient, file.path)]
    findings = []
    exposed = [name for name, mode in file.modes.items() if mode & PRIVATE]
    if exposed:
        seen = ", ".join(f"{name} has mode {file.modes[name]:o}" for name in exposed)
        mend = f"chmod 600 {' '.join(map(shlex.quote, exposed))}"
        findings.append(warning(Code.FILE_PERMISSIONS, f"other users may read the database: {seen}", mend, file.path))
    if not file.writable:
        mend = f"chown $(id -u) {path} && chmod 600 {path}"
        findings.append(broken(Code.FILE_NOT_WRITABLE, "this user may not write the file", mend, file.path))
    if file.free_bytes < DISK_LOW_BYTES:
        report = broken if file.free_bytes < DISK_FULL_BYTES else warning
        seen = f"{file.free_bytes >> 20} MiB are free on the disk of the database"
        findings.append(report(Code.DISK_FULL, seen, f"df -h {path}", file.path))
    return findings


def _missing(patient: Patient, path: str) -> Finding:
    """Suggests `tenure migrate` only for an absolute path. A relative path names another file in another folder, so the
    suggested command could create a second database.
    """
    absent = f"{Path(path).absolute()} does not exist"
    if Path(patient.database.removeprefix("sqlite:///")).is_absolute():
        return broken(Code.DATABASE_MISSING, f"{absent}; check the path", patient.command("migrate"), path)
    seen = f"{absent}; run doctor in the folder of the service, or pass --database (`tenure serve` creates a database)"
    return broken(Code.DATABASE_MISSING, seen, f"cd FOLDER_OF_THE_SERVICE && {patient.command('doctor')}", path)


async def check_pooler(patient: Patient) -> Sequence[Finding]:
    """Runs before the checks that execute statements: with a pooler in transaction mode, any statement may fail with a
    misleading error.
    """
    try:
        mode = await patient.store.detect_pooler()
    except DatabaseUnavailable:
        return []  # `check_schema` reports that the database is unavailable
    if mode is not PoolerMode.TRANSACTION:
        return []
    seen = "a pooler in transaction mode is between Tenure and PostgreSQL; prepared statements and LISTEN fail there"
    return [broken(Code.POOLER_TRANSACTION_MODE, seen, SESSION_MODE)]


async def check_schema(patient: Patient) -> Sequence[Finding]:
    """Also reports a database that does not answer."""
    try:
        found = await patient.store.schema_revision()
    except DatabaseUnavailable as error:
        seen = f"{patient.database}: {error.detail}{_cause(error)}"
        return [broken(Code.DATABASE_UNREACHABLE, seen, _reach(patient))]
    except ConfigurationError as error:
        return [broken(Code.DATABASE_UNREACHABLE, str(error), _reach(patient))]
    needed = required_revision()
    if found is None:
        return [broken(Code.SCHEMA_MISSING, "the database has no tables of Tenure", patient.command("migrate"))]
    if not is_sufficient(found):
        seen = f"the schema has revision {found}, and this version of Tenure needs {needed}"
        return [broken(Code.SCHEMA_OLD, seen, patient.command("migrate"))]
    if found > needed:
        seen = f"the schema has revision {found}, and this version of Tenure is made for {needed}"
        return [warning(Code.SCHEMA_NEW, seen, "pip install --upgrade tenure")]
    return []


def _reach(patient: Patient) -> str:
    """Return a command that shows whether the database server answers. For SQLite, the command lists the file."""
    file = patient.store.describe_file()
    if file is not None:
        return f"ls -l {shlex.quote(file.path)}"
    is_postgresql = patient.settings.database.startswith("postgresql://")
    return f"pg_isready -d {shlex.quote(patient.database)}" if is_postgresql else "sqlcmd -Q ''"


def _cause(error: DatabaseUnavailable) -> str:
    """Return the first line of the driver's message, in parentheses. It says more than `error`, such as for which user
    the password was refused.
    """
    cause = error.__cause__
    lines = str(getattr(cause, "orig", None) or cause or "").splitlines()
    return f" ({lines[0]})" if lines else ""


async def check_writable(patient: Patient) -> Sequence[Finding]:
    reason = (await patient.store.read_server()).read_only
    if reason is None:
        return []
    name = urlsplit(patient.settings.database).path.strip("/")
    mend = {
        ReadOnly.STANDBY: f"tenure serve --database 'postgresql://PRIMARY,STANDBY/{name}?target_session_attrs=read-write'",
        # A setting for a role in a database overrides the settings of the role, the database and the server.
        ReadOnly.SETTING: patient.psql(
            f'ALTER ROLE CURRENT_USER IN DATABASE "{name}" SET default_transaction_read_only = off'
        ),
        ReadOnly.DATABASE: f'sqlcmd -Q "ALTER DATABASE [{name}] SET READ_WRITE"',
    }
    return [broken(Code.DATABASE_READ_ONLY, f"the database refuses writes: {reason}", mend[reason])]


async def check_clock(patient: Patient) -> Sequence[Finding]:
    """Compares the clocks of this host and of the database. The time that the call takes is not counted as a
    difference.
    """
    before = from_microseconds(wall_microseconds())
    now = (await patient.store.read_server()).now
    after = from_microseconds(wall_microseconds())
    difference = max(before - now, now - after, timedelta(0))
    if difference <= CLOCK_WARNING:
        return []
    direction = "ahead of" if now > after else "behind"
    seconds = difference.total_seconds()
    seen = f"the clock of the database is {seconds:.1f} seconds {direction} the clock of this host"
    report = broken if difference > CLOCK_BROKEN else warning
    return [report(Code.CLOCK_DIFFERS, seen, "chronyc makestep")]


async def check_connections(patient: Patient) -> Sequence[Finding]:
    server = await patient.store.read_server()
    limit = server.connections_max
    if limit is None:
        return []
    findings = []
    instances, pool_size = await patient.instance_count(), patient.settings.pool_size
    wanted = pool_size * instances
    if wanted > limit:
        seen = (
            f"with pool_size = {pool_size}, the instances ({instances}) may open {wanted} connections, "
            f"but the server allows {limit}"
        )
        fitting = limit // instances
        mend = (
            f"TENURE_POOL_SIZE={fitting} {patient.command('serve')}"
            if fitting >= POOL_SIZE_MIN
            else patient.psql(f"ALTER SYSTEM SET max_connections = {wanted + wanted // 4}")
        )
        findings.append(broken(Code.POOL_TOO_LARGE, seen, mend))
    used = server.connections_used
    if used is not None and used > limit * SCARCE_SHARE:
        seen = f"{used} of {limit} connections are in use, by Tenure and other programs"
        show = "SELECT application_name, count(*) FROM pg_stat_activity GROUP BY 1 ORDER BY 2 DESC"
        findings.append(warning(Code.CONNECTIONS_SCARCE, seen, patient.psql(show)))
    return findings


async def check_tables(patient: Patient) -> Sequence[Finding]:
    findings: list[Finding] = []
    for churn in await patient.store.read_churn():
        findings += _of_table(churn, patient)
    return findings


def _of_table(churn: TableChurn, patient: Patient) -> Sequence[Finding]:
    findings = []
    if churn.dead_rows > max(DEAD_ROWS_MIN, churn.live_rows * DEAD_SHARE):
        seen = f"{churn.dead_rows} dead rows and {churn.live_rows} live ones: vacuum does not keep up"
        mend = patient.psql(f"VACUUM (ANALYZE) {churn.table}")
        findings.append(warning(Code.TABLE_BLOATED, seen, mend, churn.table))
    cold = churn.updates - churn.hot_updates
    if (
        churn.updates >= UPDATES_MIN
        and churn.hot_updates < churn.updates * HOT_SHARE
        and cold > COLD_UPDATES_PER_ROW * churn.inserts
    ):
        share = churn.hot_updates / churn.updates
        seen = f"only {share:.0%} of {churn.updates} updates were HOT: heartbeats write all indexes"
        show = "SELECT pid, xact_start, query FROM pg_stat_activity WHERE xact_start IS NOT NULL ORDER BY 2"
        findings.append(warning(Code.HOT_UPDATES_RARE, seen, patient.psql(show), churn.table))
    return findings
