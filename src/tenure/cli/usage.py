"""`tenure usage`: prints the usage of a running service; `tenure usage send`: sends windows that were not sent."""

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tenure.cli.exits import ExitCode, print_error
from tenure.cli.flags import (
    LISTED,
    CapacityFlag,
    ConfigFlag,
    DatabaseFlag,
    JsonFlag,
    TenantFlag,
    UserFlag,
    instant_of,
    load_settings,
    local_actor,
    run_with_store,
    span_of,
)
from tenure.cli.output import (
    Cell,
    Column,
    Value,
    counted,
    exact_text,
    id_cell,
    note,
    print_fields,
    print_json,
    print_table,
    progress,
    time_cell,
)
from tenure.cli.service import ContextFlag, KeyFlag, Service, UrlFlag, connected
from tenure.clock import instant_text
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure.config import Config
    from tenure.store.contract import Store
    from tenure.usage.send import SentUsage
    from tenure_client.models import UsageGroup, UsageWindow

SENT_PER_LINE = 10_000
"""How many windows `tenure usage send` sends between two lines of progress."""
GROUPED_BY = {
    "tenant": "tenant_object_id",
    "capacity": "capacity_id",
    "user": "user_object_id",
    "kind": "session_kind",
    "session": "session_id",
}

usage_commands = typer.Typer(add_completion=False, rich_markup_mode=None)


@usage_commands.callback(invoke_without_command=True)
def usage(
    ctx: typer.Context,
    from_at: Annotated[
        str | None, typer.Option("--from", help="An instant or a day.  [30 days before --to]", metavar="TIME")
    ] = None,
    to_at: Annotated[str | None, typer.Option("--to", help="An instant or a day.  [now]", metavar="TIME")] = None,
    tenant: TenantFlag = None,
    capacity: CapacityFlag = None,
    user: UserFlag = None,
    group_by: Annotated[
        str | None,
        typer.Option(help="Group by tenant, capacity, user, kind or session.  [one sum]", metavar="FIELD"),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="If many sessions were live, begin and end the sum at full hours or at midnight UTC.",
        ),
    ] = False,
    windows: Annotated[bool, typer.Option("--windows", help="Print the newest 50 windows instead.")] = False,
    window: Annotated[
        int | None, typer.Option(help="Print this window with its chunks instead.", metavar="NUMBER")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values, with exact amounts.")] = False,
    as_json: JsonFlag = False,
    url: UrlFlag = None,
    key: KeyFlag = None,
    context: ContextFlag = None,
) -> None:
    """Print the usage in a time span, or windows as they were billed.

    A span begins and ends at instants with a UTC offset, or at days, which begin at midnight UTC. A table has the group
    with the largest usage first; `--csv` and `--json` keep the order of the service. With `--quick`, a sum of many
    sessions may instead begin and end at a full hour or, if this is more than three days ago, at midnight UTC. Except
    with `--csv`, the command prints the span that the sum covers.

    tenure usage --from 2026-11-01 --to 2026-12-01 --group-by tenant
    tenure usage --from 2026-11-01 --to 2026-12-01 --group-by session --csv > november.csv
    tenure usage --windows
    """
    if ctx.invoked_subcommand is not None:
        _refuse_flags_before(ctx.invoked_subcommand, ctx)
        return
    from_instant, to_instant = span_of(from_at, to_at)
    filters: dict[str, Any] = {"tenant": tenant, "capacity": capacity, "user": user, "group_by": group_by}
    filters["quick"] = quick or None
    if (windows or window is not None) and any([from_at, to_at, *filters.values()]):
        raise ConfigurationError("windows: cannot be combined with a span, a filter or --group-by")
    if as_csv and (as_json or window is not None):
        raise ConfigurationError("csv: cannot be combined with --json or --window")
    with connected(url, key, context) as service:
        if window is not None:
            _print_window(service, window, as_json=as_json)
        elif windows:
            _print_windows(service, as_csv=as_csv, as_json=as_json)
        else:
            fetch = partial(service.client.usage.sum, from_=from_instant, to=to_instant, **filters)
            _print_sums(service, fetch, as_csv=as_csv, as_json=as_json)


def _refuse_flags_before(command: str, ctx: typer.Context) -> None:
    sources = [ctx.get_parameter_source(name) for name in ctx.params]
    if any(source is not None and source.name == "COMMANDLINE" for source in sources):
        raise ConfigurationError(f"usage {command}: write the flags after {command}")


def _print_sums(service: Service, fetch: Callable[..., Any], *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        service.print_list_json(fetch, "groups", None)
        return
    groups: list[UsageGroup] = []
    with progress() as shown:
        for page in service.pages(fetch, None):
            groups += page.groups
            shown.show(f"{len(groups)} groups")
    # All pages cover the same span and have the same grouping, so the last page stands for all.
    field = GROUPED_BY.get(page.group_by or "")
    if as_csv:
        head = [*([_camel(field)] if field else []), "usage", "sessions"]
        _print_csv(head, ([*([getattr(each, field)] if field else []), each.usage, each.sessions] for each in groups))
        return
    groups.sort(key=lambda group: group.usage, reverse=True)
    columns = [*([Column(str(page.group_by))] if field else []), Column("usage"), Column("sessions")]
    print_table(columns, [_group_row(group, field) for group in groups], "no usage")
    total = "" if field is None else f"{sum(group.usage for group in groups):.6f} in {counted(len(groups), 'group')}, "
    note(f"{total}from {exact_text(page.from_)} to {exact_text(page.to)}, final until {exact_text(page.final_until)}")


def _group_row(group: "UsageGroup", field: str | None) -> list[Value]:
    keys: list[Value] = [] if field is None else [getattr(group, field)]
    return [*keys, f"{group.usage:.6f}", group.sessions]


def _print_windows(service: Service, *, as_csv: bool, as_json: bool) -> None:
    found = service.client.usage.windows(limit=LISTED).first().windows
    if as_json:
        service.print_json()
    elif as_csv:
        _print_csv(
            ["windowId", "startAt", "endAt", "sessions", "usage", "deliveredAt"],
            ([w.window_id, w.start_at, w.end_at, w.sessions, w.usage, w.delivered_at] for w in found),
        )
    else:
        columns = (
            Column("window"),
            Column("start", 2),
            Column("end"),
            Column("factors", 3),
            Column("sessions", 1),
            Column("usage"),
            Column("delivered"),
        )
        at = service.now()
        print_table(columns, [_window_row(window, at) for window in found], "no windows yet")


def _window_row(window: "UsageWindow", at: datetime) -> list[Value]:
    return [
        window.window_id,
        time_cell(window.start_at, at),
        time_cell(window.end_at, at),
        _factors_text(window),
        window.sessions,
        _usage_text(window.usage),
        _window_delivered_cell(window, at),
    ]


def _print_window(service: Service, window_id: int, *, as_json: bool) -> None:
    window = service.client.usage.window(window_id)
    if as_json:
        service.print_json()
        return
    at = service.now()
    print_fields(
        {
            "window": window.window_id,
            "start": instant_text(window.start_at),
            "end": instant_text(window.end_at),
            "factors": _factors_text(window),
            "sessions": window.sessions,
            "usage": _usage_text(window.usage),
            "delivered": _window_delivered_cell(window, at),
        }
    )
    typer.echo()
    columns = (
        Column("chunk"),
        Column("submission"),
        Column("sessions"),
        Column("usage"),
        Column("delivered"),
        Column("receipt", 1),
        Column("digest", 2),
    )
    rows = [
        [
            chunk.chunk,
            id_cell(chunk.submission_id),
            chunk.sessions,
            _usage_text(chunk.usage),
            _delivered_cell(chunk.delivered_at, at),
            "yes" if chunk.receipt else "no",
            None if chunk.digest is None else Cell(chunk.digest, f"{chunk.digest[:12]}…"),
        ]
        for chunk in window.chunks
    ]
    print_table(columns, rows, "no chunks: no session was live, or the window is not divided yet")


def _window_delivered_cell(window: "UsageWindow", at: datetime) -> Cell:
    if window.delivery == "nothing":
        return Cell("nothing to send", style="dim")
    return _delivered_cell(window.delivered_at, at)


def _delivered_cell(delivered_at: datetime | None, at: datetime) -> Cell:
    return Cell("no", style="warn") if delivered_at is None else time_cell(delivered_at, at)


def _usage_text(usage: Decimal | None) -> str | None:
    return None if usage is None else f"{usage:.6f}"


def _factors_text(window: "UsageWindow") -> str:
    return " ".join(f"{kind}:{factor}" for kind, factor in window.factors.items())


def _camel(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


def _print_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_csv_value(value) for value in row] for row in rows)


def _csv_value(value: Any) -> Any:
    match value:
        case Decimal():
            return f"{value:f}"
        case datetime():
            return instant_text(value)
        case _:
            return value


@usage_commands.command()
def send(
    from_at: Annotated[
        str, typer.Option("--from", help="Windows that begin at this instant or day, or later.", metavar="TIME")
    ],
    to_at: Annotated[
        str | None, typer.Option("--to", help="Windows that begin before this instant or day.", metavar="TIME")
    ] = None,
    database: DatabaseFlag = None,
    as_json: JsonFlag = False,
    config: ConfigFlag = None,
) -> None:
    """Send windows that were cut while no gateway `usages` was configured. No window is sent twice.

    The command works directly in the database, with the settings of `[gateways.usages]`. A running instance delivers
    the windows. If a window of the span is not divided into chunks yet, the command exits with code 1: repeat the
    command while the service runs. See docs/usage.md#without-a-gateway.

    tenure usage send --from 2026-11-01 --to 2026-11-16
    """
    from tenure.domain.submissions import USAGES  # noqa: PLC0415 - `tenure usage` starts faster without it

    settings = load_settings(config, database=database)
    if USAGES not in settings.gateways:
        raise ConfigurationError("gateways.usages: must be configured to send usage")
    span = (instant_of("from", from_at), None if to_at is None else instant_of("to", to_at))
    sent = run_with_store(settings, lambda store: _send(store, settings, *span))
    if as_json:
        print_json(msgspec.structs.asdict(sent))
    else:
        typer.echo(f"handed over windows: {sent.windows}, chunks: {sent.chunks}")
    if not sent.complete:
        print_error("some windows are not divided yet; repeat the command while the service runs")
        raise typer.Exit(ExitCode.FAILED)


async def _send(store: "Store", settings: "Config", from_at: datetime, to_at: datetime | None) -> "SentUsage":
    from tenure.domain.submissions import USAGES  # noqa: PLC0415
    from tenure.submissions.gateways import Gateway  # noqa: PLC0415
    from tenure.submissions.payloads import PayloadSources  # noqa: PLC0415
    from tenure.usage.rendering import usage_contract  # noqa: PLC0415
    from tenure.usage.send import SentUsage, draft_of, send_windows  # noqa: PLC0415

    gateway = Gateway(USAGES, settings.gateways[USAGES], PayloadSources())
    contract = usage_contract(gateway.contract, settings.usage.format)
    draft = draft_of(local_actor(), from_at, to_at)
    windows = chunks = 0
    while (sent := await send_windows(store, contract, from_at, to_at, SENT_PER_LINE, draft)).windows:
        windows, chunks = windows + sent.windows, chunks + sent.chunks
        if not sent.complete:
            note(f"{windows} windows")
    return SentUsage(windows, chunks, sent.complete)
