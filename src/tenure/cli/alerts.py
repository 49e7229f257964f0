"""`tenure alerts` lists alerts. `tenure audit-log` lists changes and who made them."""

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.flags import LISTED, AllFlag, FromFlag, JsonFlag, LimitFlag, ToFlag, span_of
from tenure.cli.output import Cell, Column, Value, print_table, text_cell, time_cell
from tenure.cli.service import Service, with_service

if TYPE_CHECKING:
    from tenure_client.models import Alert, AuditEntry


@with_service
def alerts(
    service: Service,
    cleared: Annotated[
        bool, typer.Option("--cleared", help="Also list alerts that were cleared in the last 90 days.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Only alerts with this name.", metavar="NAME")] = None,
    limit: LimitFlag = LISTED,
    every: AllFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List active alerts, newest first.

    docs/runbook.md says what to do about each alert, in a section with the name of the alert.

    tenure alerts
    tenure alerts --cleared
    """
    fetch = partial(service.client.alerts.list, name=name, state=None if cleared else "active")
    most = None if every else limit
    if as_json:
        service.print_list_json(fetch, "alerts", most)
        return
    columns = (
        Column("alert"),
        Column("state"),
        Column("subject", 2),
        Column("raised"),
        *([Column("cleared", 3)] if cleared else []),
        Column("detail", 1, can_be_cut=True),
    )
    at = service.now()
    rows = [_alert_row(alert, at, cleared=cleared) for alert in service.items(fetch, "alerts", most)]
    print_table(columns, rows, "no alerts" if cleared else "no active alerts")


def _alert_row(alert: "Alert", at: datetime, *, cleared: bool) -> list[Value]:
    active = alert.state == "active"
    return [
        alert.name,
        Cell(alert.state, style="bad" if active else "dim"),
        alert.subject,
        time_cell(alert.raised_at, at),
        *([time_cell(alert.cleared_at, at)] if cleared else []),
        text_cell(alert.detail),
    ]


@with_service
def audit_log(
    service: Service,
    subject: Annotated[
        str | None,
        typer.Option(help="Only changes by this subject, such as the public id of an API key.", metavar="SUBJECT"),
    ] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action, such as session.ended.", metavar="ACTION")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Only changes of this target: an id or a name.", metavar="TARGET")
    ] = None,
    from_at: FromFlag = None,
    to_at: ToFlag = None,
    limit: LimitFlag = LISTED,
    every: AllFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List who changed what, newest first.

    Entries are kept for 400 days. See docs/securing.md#who-did-what.

    tenure audit-log --from 2026-11-01 --action key.created
    """
    from_instant, to_instant = span_of(from_at, to_at)
    fetch = partial(
        service.client.audit_log.list, subject=subject, action=action, target=target, from_=from_instant, to=to_instant
    )
    most = None if every else limit
    if as_json:
        service.print_list_json(fetch, "entries", most)
        return
    columns = (
        Column("when"),
        Column("who"),
        Column("action"),
        Column("target"),
        Column("changes", 3),
        Column("detail", 1, can_be_cut=True),
        Column("request", 4),
    )
    at = service.now()
    print_table(columns, [_entry_row(entry, at) for entry in service.items(fetch, "entries", most)], "no entries")


def _entry_row(entry: "AuditEntry", at: datetime) -> list[Value]:
    who = entry.name if entry.name == entry.subject else f"{entry.name} ({entry.subject})"
    return [
        time_cell(entry.at, at),
        Cell(who, entry.name),
        entry.action,
        entry.target,
        entry.changes,
        text_cell(entry.detail),
        entry.request_id,
    ]
