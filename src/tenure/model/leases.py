"""Leases and their fences; jobs and their runs."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

NAME_MAX = 200
"""Characters in the name of a lease, a job or a holder: printable ASCII."""
JOB_LOCK = "job:"
"""What the names of the leases that are jobs' locks begin with."""


class Fence(msgspec.Struct, frozen=True):
    """The proof that goes with every write of a leader or of a job's run: who holds which lease, in which epoch."""

    name: str
    holder: str
    epoch: int

    @property
    def job(self) -> str:
        """The job whose lock this is."""
        return self.name.removeprefix(JOB_LOCK)


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as it was when it was read: `held` by the database's clock at that moment."""

    name: str
    holder: str
    epoch: int
    held: bool
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime
    released: bool = False
    """Given up, by its holder or on request, rather than run out."""
    resigned: bool = False
    """On request: its holder may not know yet."""

    @property
    def fence(self) -> Fence:
        return Fence(self.name, self.holder, self.epoch)


class Acquired(msgspec.Struct, frozen=True):
    """What a try to acquire found: the lease as it is now, ours if it was `taken`."""

    lease: Lease
    taken: bool
    reclaimed: bool = False
    """Its last holder had let it run out."""


class JobSettings(msgspec.Struct, frozen=True):
    """What an instance knows of a job. `paused` holds only when the job's row is first made."""

    name: str
    interval_microseconds: int
    lock_timeout_microseconds: int
    paused: bool = False


class Job(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    interval_microseconds: int
    lock_timeout_microseconds: int
    next_run_at: datetime
    """The oldest tick that has not been run."""
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


ERROR_MAX = 1000
"""Characters that are kept of what went wrong in a run."""


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    epoch: int
    holder: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    error: str | None = None


class BeginFound(StrEnum):
    BEGUN = "begun"
    HELD = "held"
    """Somebody else is running it."""
    IDLE = "idle"
    """It is not due, or there is no such job."""


class Begun(msgspec.Struct, frozen=True):
    """What a try to begin a job's run found. The rest is there if it was begun."""

    found: BeginFound
    fence: Fence | None = None
    started_at: datetime | None = None
    expires_at: datetime | None = None
    tick_at: datetime | None = None
    """The oldest tick it is for; None if it was only asked for."""
    lock_timeout_microseconds: int = 0
    failures_in_a_row: int = 0
    reclaimed: Fence | None = None
    """Of a run that was abandoned under this lock before."""


class Posting(msgspec.Struct, frozen=True):
    """A job on the board, with its lock if that was ever taken."""

    job: Job
    lock: Lease | None
    now: datetime


class Board(msgspec.Struct, frozen=True):
    """What an instance looks at every second: the jobs, and the leases it asked for that were ever held."""

    leases: Sequence[Lease]
    postings: Sequence[Posting]


class Pruned(msgspec.Struct, frozen=True):
    """One batch of what was kept long enough."""

    lease_history: int
    job_runs: int
    submissions: int
