"""Jobs, their runs, and the board: a snapshot of jobs and leases."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from tenure.domain.leases import Fence, Lease


class JobSettings(msgspec.Struct, frozen=True):
    """The settings of a job on an instance. `paused` applies only when the job's row is created."""

    name: str
    interval_microseconds: int
    lock_timeout_microseconds: int
    paused: bool = False


class Job(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    interval_microseconds: int
    lock_timeout_microseconds: int
    next_run_at: datetime
    """The oldest tick that no successful run has completed."""
    retry_at: datetime | None = None
    requested_at: datetime | None = None
    last_start_at: datetime | None = None
    last_success_at: datetime | None = None
    last_duration_microseconds: int | None = None
    run_count: int
    failures_in_a_row: int
    last_error: str | None = None
    paused: bool


class JobCommand(StrEnum):
    RUN = "run"
    PAUSE = "pause"
    RESUME = "resume"


class RunOutcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    epoch: int
    holder: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    error: str | None = None


class BeginRunOutcome(StrEnum):
    BEGUN = "begun"
    HELD = "held"
    """The lock of the job is not free."""
    IDLE = "idle"
    """The job is not due (a paused job is due only if a caller requested a run), or it does not exist."""


class BeginRunResult(msgspec.Struct, frozen=True):
    """The result of an attempt to begin a run of a job. All fields except `found` are set only if the run began."""

    found: BeginRunOutcome
    fence: Fence | None = None
    started_at: datetime | None = None
    expires_at: datetime | None = None
    tick_at: datetime | None = None
    """The oldest tick that the run covers; None if a caller requested the run and no tick is due."""
    lock_timeout_microseconds: int = 0
    failures_in_a_row: int = 0
    reclaimed: Fence | None = None
    """The fence of the previous run, if this call found it still open and recorded it as abandoned; otherwise None."""
    clock_behind: datetime | None = None
    """The `next_run_at` of the job before the store moved it back to `tick_at`, because the clock was stepped back.
    None if the store did not move it."""


class BoardJob(msgspec.Struct, frozen=True):
    """A job on the board, with its lock if the lock was ever taken."""

    job: Job
    lock: Lease | None
    now: datetime
    """The time of the database when the board was read."""


class Board(msgspec.Struct, frozen=True):
    """The snapshot that each instance reads every `refresh_seconds`: all jobs, and the leases that the instance
    requested by name.

    A lease that was never held is not on the board.
    """

    leases: Sequence[Lease]
    board_jobs: Sequence[BoardJob]


class Pruned(msgspec.Struct, frozen=True):
    """The numbers of rows that one batch of `prune` deleted."""

    lease_history: int
    job_runs: int
    submissions: int
    audit_log: int = 0
    alerts: int = 0
    instances: int = 0
    activity: int = 0
