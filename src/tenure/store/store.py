"""The contract between Tenure and its database: one method per whole transaction.

Whatever a method returns is committed. A method that raises `DatabaseUnavailable` may or may not have been carried
out; each can be repeated, and the repetition finds its own work.

An engine module implements the writes, since *when* in a transaction the clock is read and what is locked before is
where the engines differ and where the promises are kept: lock, look, read the clock, write. The reads are shared.

What only a leader or a job's run may write takes its `Fence` as the first argument. It is checked in the same
transaction, under a lock that the next acquire waits for: if the lease is not held by this holder in this epoch at
that moment, the method raises `LeaseLost` and nothing is written. A test calls each such method with fences that do
not hold.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from tenure.model.leases import (
    Acquired,
    Begun,
    Board,
    Fence,
    Job,
    JobCommand,
    JobRun,
    JobSettings,
    Lease,
    Pruned,
    RunOutcome,
)
from tenure.model.sessions import (
    Attach,
    Attached,
    Capacity,
    End,
    Ended,
    Heartbeat,
    Kept,
    Limits,
    Open,
    Opened,
    Position,
    Seats,
    Session,
    SessionCounts,
    SessionFilter,
    StreamUpdate,
    StreamUpdated,
    Swept,
)
from tenure.model.submissions import (
    Accepted,
    Attempt,
    AttemptEnd,
    BegunAttempts,
    Change,
    Moved,
    Parcel,
    Submission,
    SubmissionCommand,
    SubmissionFilter,
    Submit,
    WaitingPage,
)
from tenure.model.usage import (
    Chunk,
    ChunkDelivery,
    Cut,
    CutRules,
    Installation,
    Lag,
    Life,
    Overlap,
    Piece,
    PrunedUsage,
    Seal,
    Unchunked,
    UsageQuestion,
    UsageSums,
    Window,
)

BATCH_MAX = 128
"""Requests in one transaction. The answer to a write must fit a socket buffer: nothing ends a transaction whose client
does not read."""
SWEEP_MAX = 500
"""Sessions in one batch of the sweep, or evicted in one transaction. Of each only its end is told."""
PRUNE_MAX = 1000
LEASE_HISTORY_KEPT = timedelta(days=30)
JOB_RUNS_KEPT = timedelta(days=7)
SUBMISSIONS_KEPT = timedelta(days=7)
"""Delivered or cancelled ones. What has failed stays until somebody retries or cancels it."""
USAGE_KEPT = timedelta(days=400)
"""Windows, chunks, and sessions that are closed."""
LONG_READ_SECONDS = 30
"""For reads that grow with the table; they hold no lock that a writer waits for."""
AUDIT_SECONDS = 600
WINDOWS_MAX = 128
"""Cut in one transaction."""


class Lane(StrEnum):
    """Creating and replacing in one transaction deadlocks even with sorted keys, so an open runs in one lane at a time.

    CREATE finds what is live and inserts where there is nothing.
    REOPEN closes what has lapsed or is of a lower kind, and inserts only for what it closed.
    LIMITED does both for capacities that are limited or bound to a tenant, one batch of a capacity at a time.
    """

    CREATE = "create"
    REOPEN = "reopen"
    LIMITED = "limited"


class Topic(StrEnum):
    """What instances can give each other a hint about."""

    BOARD = "tenure"
    """Somebody has ended a lease or asked for a job's run."""
    SUBMISSIONS = "tenure_submissions"
    """Something is to be sent."""


class Store(Protocol):
    dialect_name: str
    """As the migrations know it."""
    batches_in_flight: int
    """How many batches of one lane the engine can make use of at once."""

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        """Answers in the order of `wishes`, at most BATCH_MAX of them, no key twice, in ascending order of key.

        `IdTaken` if a wish was carried out before, without an answer, and its session has ended since.
        """

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[Kept]:
        """Renews what is live, records what has lapsed. At most BATCH_MAX, no session twice, as in all that follow."""

    async def end_sessions(self, ends: Sequence[End]) -> Sequence[Ended]:
        """Ends each with its reason, or with its lapse reason if it was over already."""

    async def expire_sessions(self, fence: Fence, limit: int) -> Swept:
        """Records up to `limit` sessions that have lapsed, and finishes what a dead instance left `closing`.

        Costs what is due, not what exists.
        """

    async def attach_streams(self, attaches: Sequence[Attach]) -> Sequence[Attached]:
        """Makes each stream its session's newest, and sees to it that the session has a lease and an idle limit."""

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        """Keeps sessions with a stream alive, saves what was counted, ends what has ended: all by the same clock."""

    async def put_capacity(self, capacity_id: str, seats: Seats) -> Capacity:
        """No open that is answered later escapes the new limit. Evicts nobody."""

    async def get_capacity(self, capacity_id: str) -> Capacity | None: ...

    async def list_capacities(self, tenant: str | None, after: str | None, limit: int) -> Sequence[Capacity]:
        """By id, beginning after `after`."""

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        """What it was; None if it was never set."""

    async def get_session(self, session_id: str) -> Session | None: ...

    async def list_sessions(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        """Newest start first, beginning after `after`."""

    async def count_sessions(self) -> SessionCounts: ...

    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> Acquired:
        """Takes the lease if it is free, with the next epoch. `attempt` is a new id for each try, kept if repeated."""

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease: ...

    async def release_lease(self, fence: Fence) -> Lease:
        """Ends it now."""

    async def resign_lease(self, name: str) -> Lease | None:
        """Ends it now, whoever holds it; None if nobody ever did."""

    async def list_leases(self, after: str | None, limit: int) -> Sequence[Lease]:
        """Those that were ever held, by name, beginning after `after`."""

    async def read_board(self, names: Sequence[str]) -> Board:
        """All jobs with their locks, and the leases of these names: one statement."""

    def listen(self, topic: Topic, wake: Callable[[], None]) -> None:
        """Has `wake` called when there is news, as far as the engine can tell.

        Only a hint that it is worth a look now: it may come late, twice or never.
        """

    async def register_jobs(self, jobs: Sequence[JobSettings]) -> None:
        """Makes rows for new jobs; a changed interval or lock timeout takes effect at once."""

    async def begin_run(self, job: str, holder: str, attempt: str) -> Begun:
        """Takes the job's lock and notes the run, if the job is due and its lock is free."""

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        """Notes how the run ended, when the job is to run next or again, and releases its lock."""

    async def command_job(self, job: str, command: JobCommand) -> Job | None:
        """None if there is no such job."""

    async def list_jobs(self, after: str | None, limit: int) -> Sequence[Job]:
        """By name, beginning after `after`."""

    async def list_runs(self, job: str, before: int | None, limit: int) -> Sequence[JobRun] | None:
        """Newest first, beginning before the epoch `before`; None if there is no such job."""

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        """Deletes up to `limit` rows each of what was kept long enough."""

    async def accept_submissions(self, wishes: Sequence[Submit]) -> Sequence[Accepted]:
        """Answers in the order of `wishes`, at most BATCH_MAX of them. What is told of each was committed before."""

    async def announce_submissions(self) -> None:
        """Gives all instances that listen a hint, as far as the engine can.

        Never as part of a write: PostgreSQL lets only one transaction at a time commit if it tells something.
        """

    async def list_waiting(self, after: Change | None, limit: int) -> WaitingPage:
        """What is pending, in the order in which it was changed, beginning after `after`."""

    async def read_parcels(self, submission_ids: Sequence[str]) -> Sequence[Parcel]:
        """In any order. Not an answer of `begin_attempts`: they need not fit a socket buffer."""

    async def begin_attempts(self, fence: Fence, submission_ids: Sequence[str]) -> BegunAttempts:
        """Records an attempt of each that is due, before it is sent. Tells of all, in any order.

        Only of those whose attempt is not under way here: an open one of this epoch is taken for one of which the
        answer was lost.
        """

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[Moved]:
        """Closes each with what became of it, and tells what that made of its submission, in any order."""

    async def close_unknown(self, fence: Fence, limit: int) -> int:
        """Closes up to `limit` attempts that earlier epochs have left open; their submissions are due at once."""

    async def explain_waiting(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        """Says of what is due why it is not sent."""

    async def command_submissions(
        self, command: SubmissionCommand, submission_ids: Sequence[str]
    ) -> Mapping[str, bool]:
        """Of each that exists, whether it now is as wanted: a delivered one can be neither retried nor cancelled."""

    async def get_submission(self, submission_id: str) -> tuple[Submission, Sequence[Attempt]] | None: ...

    async def list_submissions(
        self, criteria: SubmissionFilter, before: str | None, limit: int
    ) -> Sequence[Submission]:
        """Newest id first, beginning before `before`."""

    async def cut_usage(self, fence: Fence, rules: CutRules, limit: int) -> Cut:
        """Cuts up to `limit` windows, up to the last instant of the grid; none if there is nothing to cut."""

    async def list_unchunked(self, limit: int) -> Sequence[Unchunked]:
        """Oldest first."""

    async def divide_window(self, window: Window, after: str | None, limit: int) -> Sequence[Piece]:
        """What its next chunks are, beginning after a session; fewer than `limit` if there are no more."""

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, pieces: Sequence[Piece], *, complete: bool
    ) -> None:
        """At most BATCH_MAX, numbered from `first` on, and a submission for each that is to be sent."""

    async def find_chunks(self, submission_ids: Sequence[str]) -> Sequence[tuple[Window, Chunk]]:
        """In any order."""

    async def read_lives(self, window: Window, chunk: Chunk) -> Sequence[Life]:
        """In the order of ids, as the engine sorts them: the same at any time."""

    async def list_lives(self, window: Window, after: str | None, limit: int) -> Sequence[Life]:
        """Of any span of an era, whether or not it was ever cut: the next `limit` after a session."""

    async def seal_chunks(self, fence: Fence, seals: Sequence[Seal]) -> Mapping[str, bool]:
        """Stores the digest of each that has none, and tells whether each has this one."""

    async def list_windows(self, before: int | None, limit: int) -> Sequence[Window]:
        """Newest first, beginning before the window `before`."""

    async def get_window(self, window_id: int) -> tuple[Window, Sequence[Chunk]] | None: ...

    async def sum_usage(self, question: UsageQuestion, after: str | None, limit: int) -> UsageSums:
        """By key, beginning after `after`. One group without a key if nothing is grouped by."""

    async def read_lag(self) -> Lag: ...

    async def read_installation(self) -> Installation: ...

    async def list_deliveries(self, window_id: int) -> Sequence[ChunkDelivery]:
        """Of its chunks, in their order: all as they were at one instant."""

    async def find_overlaps(self, limit: int) -> Sequence[Overlap]:
        """Looks at all sessions there are."""

    async def prune_usage(self, fence: Fence, limit: int) -> PrunedUsage:
        """Deletes up to `limit` each of what was kept long enough, never what an undelivered window needs."""

    async def schema_revision(self) -> str | None:
        """The newest migration the database has seen; None if it has seen none. Also how readiness is probed."""

    async def migrate(self) -> Sequence[str]:
        """Brings the schema up to date and returns the revisions applied. Instances may call it all at once."""

    async def close(self) -> None: ...
