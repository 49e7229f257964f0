"""`tenure submissions`: lists submissions to gateways and their attempts; retries and cancels submissions."""

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.flags import LISTED, AllFlag, JsonFlag, LimitFlag, YesFlag, new_group
from tenure.cli.output import (
    Cell,
    Column,
    Value,
    confirm,
    duration_text,
    note,
    print_fields,
    print_table,
    text_cell,
    time_cell,
)
from tenure.cli.service import Service, with_service
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure_client.models import Attempt, ListedSubmission, Submission

STYLES = {"pending": "accent", "failed": "bad", "delivered": "good", "cancelled": "dim"}
OUTCOMES = {"delivered": "good", "failed": "bad", "unknown": "warn", "abandoned": "warn"}

submissions_commands = new_group("List, count, show, retry and cancel submissions to gateways.")

GatewayFlag = Annotated[str | None, typer.Option(help="Only to this gateway.", metavar="GATEWAY")]
SubmissionsArgument = Annotated[
    list[str] | None, typer.Argument(help="The ids of the submissions.", metavar="SUBMISSION", show_default=False)
]
AllMatchingFlag = Annotated[
    bool, typer.Option("--all", help="All submissions in the state of --state, to all gateways unless one is given.")
]


@submissions_commands.command("list")
@with_service
def list_submissions(
    service: Service,
    gateway: GatewayFlag = None,
    state: Annotated[
        str | None,
        typer.Option(help="Only in this state: pending, delivered, failed or cancelled.", metavar="STATE"),
    ] = None,
    limit: LimitFlag = LISTED,
    every: AllFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List submissions, newest first.

    tenure submissions list --state failed
    tenure submissions list --gateway usages --state pending
    """
    fetch = partial(service.client.submissions.list, gateway=gateway, state=state)
    most = None if every else limit
    if as_json:
        service.print_list_json(fetch, "submissions", most)
        return
    columns = (
        Column("submission"),
        Column("gateway"),
        Column("state"),
        Column("request", 5, can_be_cut=True),
        Column("attempts", 3),
        Column("created", 4),
        Column("next or end", 1),
        Column("last error", 2, can_be_cut=True),
    )
    at = service.now()
    rows = [_row(each, at) for each in service.items(fetch, "submissions", most)]
    print_table(columns, rows, "no submissions match" if gateway or state else "no submissions")


def _row(submission: "ListedSubmission", at: datetime) -> list[Value]:
    return [
        submission.submission_id,
        submission.gateway,
        Cell(submission.state, style=STYLES.get(submission.state)),
        text_cell(submission.request_id),
        submission.attempt_count,
        time_cell(submission.created_at, at),
        time_cell(submission.ended_at or submission.next_attempt_at, at),
        text_cell(submission.last_error, "bad" if submission.state == "failed" else "warn"),
    ]


@submissions_commands.command("counts")
@with_service
def count_submissions(service: Service, as_json: JsonFlag = False) -> None:
    """Count submissions by gateway and state.

    A number with a `+` is a lower bound: counting stops at a limit.

    tenure submissions counts
    """
    counts = service.client.submissions.counts().counts
    if as_json:
        service.print_json()
        return
    found = {(each.gateway, each.state): f"{each.count:,}{'' if each.exact else '+'}" for each in counts}
    rows: list[list[Value]] = [
        [gateway, *(_count_cell(found.get((gateway, state)), state) for state in STYLES)]
        for gateway in dict.fromkeys(each.gateway for each in counts)
    ]
    print_table(("gateway", *STYLES), rows, "no submissions")


def _count_cell(count: str | None, state: str) -> Cell:
    return Cell("0") if count is None else Cell(count, style="bad" if state == "failed" else None)


@submissions_commands.command("show")
@with_service
def show_submission(
    service: Service,
    submission_id: Annotated[str, typer.Argument(help="The id of the submission.", metavar="SUBMISSION")],
    as_json: JsonFlag = False,
) -> None:
    """Show a submission with every attempt to deliver it.

    tenure submissions show 01a1e0e8-4a5d-7768-a74d-758932e546ff
    """
    submission = service.client.submissions.get(submission_id)
    if as_json:
        service.print_json()
    else:
        _print_submission(submission, service.now())


def _print_submission(submission: "Submission", at: datetime) -> None:
    fields: dict[str, Value] = {
        "submission": Cell(submission.submission_id, style="bold"),
        "gateway": submission.gateway,
        "state": Cell(submission.state, style=STYLES.get(submission.state)),
        "request": text_cell(submission.request_id),
        "created": time_cell(submission.created_at, at),
    }
    if submission.ended_at is not None:
        fields["ended"] = time_cell(submission.ended_at, at)
    elif submission.next_attempt_at is not None:
        fields["next attempt"] = time_cell(submission.next_attempt_at, at)
    if submission.last_error is not None:
        fields["last error"] = submission.last_error
    print_fields(fields)
    typer.echo()
    columns = (
        Column("attempt"),
        Column("started"),
        Column("took", 2),
        Column("outcome"),
        Column("status"),
        Column("early", 4),
        Column("receipt", 5),
        Column("error", 1, can_be_cut=True),
    )
    print_table(columns, [_attempt_row(attempt, at) for attempt in submission.attempts], "no attempts yet")


def _attempt_row(attempt: "Attempt", at: datetime) -> list[Value]:
    outcome = attempt.outcome or "in progress"
    took = None if attempt.ended_at is None else duration_text((attempt.ended_at - attempt.started_at).total_seconds())
    return [
        attempt.number,
        time_cell(attempt.started_at, at),
        took,
        Cell(outcome, style=OUTCOMES.get(outcome)),
        attempt.status,
        "yes" if attempt.early else "no",
        "yes" if attempt.receipt else "no",
        text_cell(attempt.error),
    ]


@submissions_commands.command("retry")
@with_service
def retry_submissions(
    service: Service,
    submission_ids: SubmissionsArgument = None,
    gateway: GatewayFlag = None,
    state: Annotated[
        str | None,
        typer.Option(help="Only in this state: pending, failed or cancelled.  [failed]", metavar="STATE"),
    ] = None,
    every: AllMatchingFlag = False,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Retry submissions now. Their earlier attempts no longer count against `max_attempts`.

    Give ids, or filters to retry all that match. Pending submissions become due at once.

    tenure submissions retry 01a1e0e8-4a5d-7768-a74d-758932e546ff
    tenure submissions retry --gateway orders --yes
    """
    client = service.client.submissions
    if _has_ids(submission_ids, filtered=bool(gateway or state or every)):
        for submission_id in submission_ids or []:
            _print_command(service, client.retry(submission_id), as_json=as_json)
        return
    state = state or "failed"
    confirm(f"Retry all {state} submissions {_to(gateway)}?", yes=yes)
    _print_count(service, "retried", client.retry_all(gateway=gateway, state=state), as_json=as_json)


@submissions_commands.command("cancel")
@with_service
def cancel_submissions(
    service: Service,
    submission_ids: SubmissionsArgument = None,
    gateway: GatewayFlag = None,
    state: Annotated[
        str | None, typer.Option(help="Only in this state: pending or failed.  [pending]", metavar="STATE")
    ] = None,
    every: AllMatchingFlag = False,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Cancel submissions: no further attempt is started.

    Give ids, or filters to cancel all that match. Submissions that carry usage cannot be cancelled.

    tenure submissions cancel 01a1e0e8-4a5d-7768-a74d-758932e546ff --yes
    tenure submissions cancel --gateway orders --yes
    """
    client = service.client.submissions
    if _has_ids(submission_ids, filtered=bool(gateway or state or every)):
        ids = submission_ids or []
        confirm(f"Cancel {'submission ' + ids[0] if len(ids) == 1 else f'{len(ids)} submissions'}?", yes=yes)
        for submission_id in ids:
            _print_command(service, client.cancel(submission_id), as_json=as_json)
        return
    state = state or "pending"
    confirm(f"Cancel all {state} submissions {_to(gateway)}?", yes=yes)
    _print_count(service, "cancelled", client.cancel_all(gateway=gateway, state=state), as_json=as_json)


def _has_ids(submission_ids: list[str] | None, *, filtered: bool) -> bool:
    if bool(submission_ids) == filtered:
        raise ConfigurationError("submission: give ids, or --gateway, --state or --all, but not both")
    return bool(submission_ids)


def _to(gateway: str | None) -> str:
    return "to all gateways" if gateway is None else f"to gateway {gateway}"


def _print_command(service: Service, submission: "Submission", *, as_json: bool) -> None:
    if as_json:
        service.print_json()
    else:
        typer.echo(f"{submission.submission_id} is {submission.state}")


def _print_count(service: Service, done: str, count: int, *, as_json: bool) -> None:
    if as_json:
        service.print_json()
    else:
        note(f"{done} {count}")
