"""The job routes: what the ensemble does by itself, what it did, and how to have it done now or not at all."""

from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec

from tenure.errors import Invalid, NotFound, Unavailable
from tenure.http.cursors import cursor_of_text, number_of, text_of
from tenure.http.pages import page
from tenure.http.requests import name_of
from tenure.http.routing import Answer, Call, Route
from tenure.http.shapes import (
    Cursor,
    JobAnswer,
    JobList,
    PageLimit,
    RunList,
    job_answer,
    run_answer,
)
from tenure.model.leases import Job, JobCommand, JobRun
from tenure.store import Store

T = TypeVar("T")


class JobQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    limit: PageLimit = 100
    cursor: Cursor | None = None


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
                tag="jobs",
                summary="List the jobs, by name",
                query=JobQuery,
                answers={200: JobList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/jobs/{name}/runs",
                handler=self.runs,
                tag="jobs",
                summary="List the runs of a job, newest first",
                description="Runs are kept for 7 days. One that is under way has no end and no outcome.",
                query=JobQuery,
                answers={200: RunList},
                refusals=(Invalid, NotFound, Unavailable),
            ),
            self._command(JobCommand.RUN, "Run a job now", "Also while it is paused, or waits after a failure."),
            self._command(JobCommand.PAUSE, "Run a job no more until it is resumed", "A run under way goes on."),
            self._command(JobCommand.RESUME, "Let a paused job run again", "Ticks that were missed are run once."),
        ]

    def _command(self, command: JobCommand, summary: str, description: str) -> Route:
        async def handler(call: Call) -> Answer:
            name = name_of(call.path["name"])
            return Answer(job_answer(_known(name, await self._store.command_job(name, command))), 202)

        return Route(
            method="POST",
            path=f"/jobs/{{name}}/{command}",
            handler=handler,
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
        found = _known(name, await self._store.list_runs(name, before, query.limit + 1))
        path = f"{self._path}/{quote(name, safe='')}/runs"
        return page(found, query, path, lambda run: cursor_of_text(str(run.epoch)), _listed_runs)


def _known(name: str, found: T | None) -> T:
    if found is None:
        raise NotFound(f"there is no job {name[:64]}")
    return found


def _listed_jobs(jobs: Sequence[Job], count: int, cursor: str | None) -> JobList:
    return JobList([job_answer(job) for job in jobs], count, cursor)


def _listed_runs(runs: Sequence[JobRun], count: int, cursor: str | None) -> RunList:
    return RunList([run_answer(run) for run in runs], count, cursor)
