"""`tenure jobs`: lists the jobs of the installation and their runs, and runs, pauses and resumes a job."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.flags import AllFlag, JsonFlag, LimitFlag, YesFlag, new_group
from tenure.cli.output import Cell, Column, Value, confirm, duration_text, print_table, text_cell, time_cell
from tenure.cli.service import Service, with_service

if TYPE_CHECKING:
    from tenure_client.models import Job, Run

OUTCOMES = {"succeeded": "good", "failed": "bad", "abandoned": "bad"}

jobs_commands = new_group("List jobs and their runs; run, pause and resume a job.")

JobArgument = Annotated[str, typer.Argument(help="The name of the job, as `list` prints it.", metavar="JOB")]


@jobs_commands.command("list")
@with_service
def list_jobs(service: Service, as_json: JsonFlag = False) -> None:
    """List the jobs: whether they succeed, and when they run next.

    tenure jobs list
    """
    if as_json:
        service.print_list_json(service.client.jobs.list, "jobs", None)
    else:
        print_jobs(service.items(service.client.jobs.list, "jobs", None), service.now())


def print_jobs(jobs: "Sequence[Job]", at: datetime) -> None:
    columns = (
        Column("job"),
        Column("state"),
        Column("every", 3),
        Column("next run", 1),
        Column("last success", 2),
        Column("took", 5),
        Column("runs", 6),
        Column("last error", 4, can_be_cut=True),
    )
    print_table(columns, [_row(job, at) for job in jobs], "no jobs yet")


def job_state(job: "Job") -> Cell:
    if job.paused:
        return Cell("paused", style="warn")
    if job.failures_in_a_row:
        return Cell(f"failing ({job.failures_in_a_row} in a row)", f"failing {job.failures_in_a_row}", "bad")
    return Cell("ok", style="good") if job.last_success_at is not None else Cell("not run yet", style="dim")


def _row(job: "Job", at: datetime) -> list[Value]:
    return [
        job.name,
        job_state(job),
        duration_text(job.interval_seconds),
        None if job.paused else time_cell(job.retry_at or job.next_run_at, at),
        time_cell(job.last_success_at, at),
        None if job.last_duration_seconds is None else duration_text(job.last_duration_seconds),
        job.run_count,
        text_cell(job.last_error, "bad"),
    ]


@jobs_commands.command("runs")
@with_service
def list_runs(
    service: Service, job: JobArgument, limit: LimitFlag = 20, every: AllFlag = False, as_json: JsonFlag = False
) -> None:
    """List the runs of a job, newest first.

    tenure jobs runs emit-usage
    """
    fetch = partial(service.client.jobs.runs, job)
    most = None if every else limit
    if as_json:
        service.print_list_json(fetch, "runs", most)
        return
    columns = (
        Column("started"),
        Column("took"),
        Column("outcome"),
        Column("holder", 2),
        Column("epoch", 3),
        Column("error", 1, can_be_cut=True),
    )
    at = service.now()
    print_table(columns, [_run_row(run, at) for run in service.items(fetch, "runs", most)], f"{job} has not run yet")


def _run_row(run: "Run", at: datetime) -> list[Value]:
    took = None if run.ended_at is None else duration_text((run.ended_at - run.started_at).total_seconds())
    outcome = run.outcome or "running"
    return [
        time_cell(run.started_at, at),
        took,
        Cell(outcome, style=OUTCOMES.get(outcome, "accent")),
        run.holder,
        run.epoch,
        text_cell(run.error, "bad"),
    ]


@jobs_commands.command("run")
@with_service
def run_job(service: Service, job: JobArgument, as_json: JsonFlag = False) -> None:
    """Run a job now, on the first instance that sees the request.

    tenure jobs run prune
    """
    _print_one(service, service.client.jobs.run(job), "runs now", as_json=as_json)


@jobs_commands.command("pause")
@with_service
def pause_job(service: Service, job: JobArgument, yes: YesFlag = False, as_json: JsonFlag = False) -> None:
    """Pause a job until it is resumed.

    tenure jobs pause prune --yes
    """
    confirm(f"Pause job {job} on all instances until it is resumed?", yes=yes)
    _print_one(service, service.client.jobs.pause(job), "is paused", as_json=as_json)


@jobs_commands.command("resume")
@with_service
def resume_job(service: Service, job: JobArgument, as_json: JsonFlag = False) -> None:
    """Resume a job.

    tenure jobs resume prune
    """
    _print_one(service, service.client.jobs.resume(job), "is resumed", as_json=as_json)


def _print_one(service: Service, job: "Job", done: str, *, as_json: bool) -> None:
    if as_json:
        service.print_json()
    else:
        typer.echo(f"{job.name} {done}")
