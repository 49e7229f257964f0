"""Jobs, their runs and locks, and pruning."""

from collections.abc import Sequence
from typing import Protocol

from tenure.domain.audit_log import Actor
from tenure.domain.jobs import BeginRunResult, Job, JobCommand, JobRun, JobSettings, Pruned, RunOutcome
from tenure.domain.leases import Fence


class JobStore(Protocol):
    async def register_jobs(self, jobs: Sequence[JobSettings]) -> None:
        """Inserts new jobs. A changed interval or lock timeout of an existing job takes effect immediately."""

    async def begin_run(self, job: str, holder: str, attempt: str) -> BeginRunResult:
        """Acquires the job's lock and records the run, if the job is due and its lock is free.

        `attempt` is the id of this try. A repeated call after a lost answer passes the same id, and a new try passes a
        new one. If the clock was stepped back so far that the next tick of a job is more than two intervals ahead, the
        job is due unless it is paused, and this call moves the job's next tick back to the last tick at or before now.
        """

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        """Records the outcome of the run and the time of the next run, and releases the lock. After a failure, the job
        is retried after `retry_microseconds`.
        """

    async def command_job(self, job: str, command: JobCommand, actor: Actor) -> Job | None:
        """Carries out the command and returns the job, or None if the job does not exist.

        Writes an audit entry if the command changes the job. Three commands do not count as changes: RUN while a
        requested run is about to begin, PAUSE of a paused job without a requested run, and RESUME of a job that is not
        paused.
        """

    async def list_jobs(self, after: str | None, limit: int) -> Sequence[Job]:
        """Up to `limit` jobs, ordered by name, starting after the name `after`."""

    async def list_runs(self, job: str, before: int | None, limit: int) -> Sequence[JobRun] | None:
        """Up to `limit` runs with epochs below `before`, newest first; None if the job does not exist."""

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        """Deletes up to `limit` rows of each kind that are past their retention time."""
