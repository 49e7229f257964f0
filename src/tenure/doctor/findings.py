"""Findings, which the checks return, with stable codes."""

from enum import StrEnum

import msgspec

DOCS = "docs/doctor.md"


class Severity(StrEnum):
    BROKEN = "broken"
    """Something does not work now."""
    WARNING = "warning"
    """Something may soon fail, or is probably not what the operator wants."""


class Code(StrEnum):
    """The codes are part of the interface: programs compare them, and each is an anchor in `docs/doctor.md`."""

    CHECK_FAILED = "check-failed"
    CHECK_TIMED_OUT = "check-timed-out"
    # The database.
    DATABASE_MISSING = "database-missing"
    DATABASE_UNREACHABLE = "database-unreachable"
    DATABASE_READ_ONLY = "database-read-only"
    FILE_PERMISSIONS = "file-permissions"
    FILE_NOT_WRITABLE = "file-not-writable"
    DISK_READ_ONLY = "disk-read-only"
    DISK_FULL = "disk-full"
    POOLER_TRANSACTION_MODE = "pooler-transaction-mode"
    SCHEMA_MISSING = "schema-missing"
    SCHEMA_OLD = "schema-old"
    SCHEMA_NEW = "schema-new"
    CLOCK_DIFFERS = "clock-differs"
    POOL_TOO_LARGE = "pool-too-large"
    CONNECTIONS_SCARCE = "connections-scarce"
    TABLE_BLOATED = "table-bloated"
    HOT_UPDATES_RARE = "hot-updates-rare"
    # The instances.
    NOT_RUNNING = "not-running"
    LEASE_UNHELD = "lease-unheld"
    VERSIONS_DIFFER = "versions-differ"
    EXECUTOR_LEASES_DIFFER = "executor-leases-differ"
    JOB_PAUSED = "job-paused"
    JOB_OVERDUE = "job-overdue"
    PRUNE_NOT_RUNNING = "prune-not-running"
    # The conditions of alerts. The codes are the names of the alerts.
    JOB_LOCK_HELD = "job-lock-held"
    JOB_FAILING = "job-failing"
    LOCK_RECLAIMED = "lock-reclaimed"
    LEADERSHIP_FLAPPING = "leadership-flapping"
    USAGE_FAILING = "usage-failing"
    USAGE_LAGGING = "usage-lagging"
    CHUNK_WITHHELD = "chunk-withheld"
    LAPSES_EXCEED_OPENINGS = "lapses-exceed-openings"
    CLOCK_BEHIND = "clock-behind"
    # Usage and deliveries.
    NO_USAGE_GATEWAY = "no-usage-gateway"
    WINDOWS_UNSENT = "windows-unsent"
    SUBMISSIONS_FAILED = "submissions-failed"
    SUBMISSIONS_STRANDED = "submissions-stranded"
    GATEWAY_UNREACHABLE = "gateway-unreachable"
    GATEWAY_SILENT = "gateway-silent"
    GATEWAY_CLOCK_DIFFERS = "gateway-clock-differs"
    # Access.
    NO_KEYS = "no-keys"
    KEY_UNUSED = "key-unused"
    KEY_WITHOUT_EXPIRY = "key-without-expiry"
    KEY_EXPIRING = "key-expiring"


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    code: Code
    severity: Severity
    subject: str | None = None
    """What has the problem, such as a job, lease, gateway, key, table or file."""
    seen: str
    """The observation of the check, in one line."""
    mend: str
    """The command that solves the problem, or shows more about it."""

    @property
    def docs(self) -> str:
        return f"{DOCS}#{self.code.value}"


def broken(code: Code, seen: str, mend: str, subject: str | None = None) -> Finding:
    return Finding(code=code, severity=Severity.BROKEN, seen=seen, mend=mend, subject=subject)


def warning(code: Code, seen: str, mend: str, subject: str | None = None) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, seen=seen, mend=mend, subject=subject)
