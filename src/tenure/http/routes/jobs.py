"""The job routes: list jobs and their runs; run, pause and resume a job."""

from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec

from tenure.access.grants import OPERATORS, READERS
from tenure.domain.jobs import Job, JobCommand, JobRun, RunOutcome
from tenure.errors import Invalid, NotFound, Unavailable
from tenure.http.answers import Answer
from tenure.http.decoding import name_of
from tenure.http.fields import Cursor, Instant, PageLimit, instant, seconds_number
from tenure.http.pages import cursor_of_text, number_of, page, text_of
from tenure.http.pipeline import Call, Route
from tenure.store.contract import Store

T = TypeVar("T")


class JobQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    limit: PageLimit = 100
    cursor: Cursor | None = None


class JobAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: str
    interval_seconds: float | int
    lock_timeout_seconds: float | int
    next_run_at: Instant
    retry_at: Instant | None
    last_start_at: Instant | None
    last_success_at: Instant | None
    last_duration_seconds: float | int | None
    run_count: int
    failures_in_a_row: int
    last_error: str | None
    paused: bool


class JobList(msgspec.Struct, frozen=True, rename="camel"):
    jobs: list[JobAnswer]
    count: int
    next_cursor: str | None


class RunAnswer(msgspec.Struct, frozen=True, rename="camel"):
    started_at: Instant
    ended_at: Instant | None
    holder: str
    epoch: int
    outcome: RunOutcome | None
    error: str | None


class RunList(msgspec.Struct, frozen=True, rename="camel"):
    runs: list[RunAnswer]
    count: int
    next_cursor: str | None


class JobRoutes:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._path = f"{prefix}/jobs"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/jobs",
                handler=self.list,
                grants=READERS,
                tag="jobs",
                summary="List jobs, by name",
                query=JobQuery,
                answers={200: JobList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/jobs/{name}/runs",
                handler=self.runs,
                grants=READERS,
                tag="jobs",
                summary="List the runs of a job, newest first",
                description="Runs are kept for 7 days. A run that has not ended has no end and no outcome.",
                query=JobQuery,
                answers={200: RunList},
                refusals=(Invalid, NotFound, Unavailable),
            ),
            self._command(JobCommand.RUN, "Run a job now", "Also runs a job that is paused or waits for a retry."),
            self._command(JobCommand.PAUSE, "Pause a job", "A run that is in progress continues."),
            self._command(JobCommand.RESUME, "Resume a paused job", "One run covers all missed ticks."),
        ]

    def _command(self, command: JobCommand, summary: str, description: str) -> Route:
        async def handler(call: Call) -> Answer:
            name = name_of(call.path["name"])
            return Answer(job_answer(_found(name, await self._store.command_job(name, command, call.actor))), 202)

        return Route(
            method="POST",
            path=f"/jobs/{{name}}/{command}",
            handler=handler,
            grants=OPERATORS,
            tag="jobs",
            summary=summary,
            description=description,
            answers={202: JobAnswer},
            refusals=(Invalid, NotFound, Unavailable),
        )

    async def list(self, call: Call) -> Answer:
        query: JobQuery = call.query
        after = None if query.cursor is None else text_of(query.cursor)
        found = await self._store.list_jobs(after, query.limit + 1)
        return page(found, query, self._path, lambda job: cursor_of_text(job.name), _listed_jobs)

    async def runs(self, call: Call) -> Answer:
        query: JobQuery = call.query
        name = name_of(call.path["name"])
        before = None if query.cursor is None else number_of(query.cursor)
        found = _found(name, await self._store.list_runs(name, before, query.limit + 1))
        path = f"{self._path}/{quote(name, safe='')}/runs"
        return page(found, query, path, lambda run: cursor_of_text(str(run.epoch)), _listed_runs)


def _found(name: str, found: T | None) -> T:
    if found is None:
        raise NotFound(f"job {name[:64]} does not exist")
    return found


def _listed_jobs(jobs: Sequence[Job], count: int, cursor: str | None) -> JobList:
    return JobList([job_answer(job) for job in jobs], count, cursor)


def _listed_runs(runs: Sequence[JobRun], count: int, cursor: str | None) -> RunList:
    return RunList([run_answer(run) for run in runs], count, cursor)


def job_answer(job: Job) -> JobAnswer:
    return JobAnswer(
        name=job.name,
        interval_seconds=seconds_number(job.interval_microseconds) or 0,
        lock_timeout_seconds=seconds_number(job.lock_timeout_microseconds) or 0,
        next_run_at=instant(job.next_run_at),
        retry_at=job.retry_at and instant(job.retry_at),
        last_start_at=job.last_start_at and instant(job.last_start_at),
        last_success_at=job.last_success_at and instant(job.last_success_at),
        last_duration_seconds=seconds_number(job.last_duration_microseconds),
        run_count=job.run_count,
        failures_in_a_row=job.failures_in_a_row,
        last_error=job.last_error,
        paused=job.paused,
    )


def run_answer(run: JobRun) -> RunAnswer:
    ended_at = run.ended_at and instant(run.ended_at)
    outcome = run.outcome and RunOutcome(run.outcome)
    return RunAnswer(instant(run.started_at), ended_at, run.holder, run.epoch, outcome or None, run.error)
