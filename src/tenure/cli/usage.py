"""`tenure usage`: queries the usage of a running service, and prints it; `tenure usage send`: sends unsent windows."""

import asyncio
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tenure.cli.flags import (
    ConfigFlag,
    DatabaseFlag,
    JsonFlag,
    KeyFlag,
    UrlFlag,
    instant_of,
    load_settings,
    local_actor,
)
from tenure.cli.service import FAILED, Service, get, json_text
from tenure.cli.tables import table
from tenure.config import Config
from tenure.domain.submissions import USAGES
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure.usage.send import SentUsage

PAGE = 500
NEWEST = 50
SENT_PER_LINE = 10_000
"""How many windows `tenure usage send` sends between two lines of progress."""

usage_commands = typer.Typer()


@usage_commands.callback(invoke_without_command=True)
def usage(
    context: typer.Context,
    from_at: Annotated[
        str | None, typer.Option("--from", help="An instant or a day; by default 30 days before --to.")
    ] = None,
    to_at: Annotated[str | None, typer.Option("--to", help="An instant or a day; by default now.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only the usage of this tenant.")] = None,
    capacity: Annotated[str | None, typer.Option(help="Only the usage on this capacity.")] = None,
    user: Annotated[str | None, typer.Option(help="Only the usage of this user.")] = None,
    group_by: Annotated[str | None, typer.Option(help="Group by tenant, capacity, user, kind or session.")] = None,
    windows: Annotated[bool, typer.Option("--windows", help="Print the newest 50 windows instead.")] = False,
    window: Annotated[int | None, typer.Option(help="Print this window with its chunks instead.")] = None,
    url: UrlFlag = "http://127.0.0.1:8080",
    key: KeyFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the usage in a time span, or windows as they were billed."""
    if context.invoked_subcommand is not None:
        _refuse_flags_before(context.invoked_subcommand, context)
        return
    query = {"tenant": tenant, "capacity": capacity, "user": user, "groupBy": group_by, **_span(from_at, to_at)}
    if (windows or window is not None) and any(query.values()):
        raise ConfigurationError("windows: cannot be combined with a span, a filter or --group-by")
    service = Service(url, key)
    if window is not None:
        content = get(service, f"/usage/windows/{window}", {}, "chunks")
        text = f"{_format_window(content)}\n\n{table([_format_row(chunk) for chunk in content['chunks']])}"
    elif windows:
        content = get(service, "/usage/windows", {"limit": NEWEST}, "windows")
        text = table([_format_row(each) for each in content["windows"]])
    else:
        content = _all_groups(service, {**query, "limit": PAGE})
        span = f"from {content['from']} to {content['to']}, final until {content['finalUntil']}"
        text = f"{table([_format_row(group) for group in content['groups']])}\n\n{span}"
    typer.echo(json_text(content) if as_json else text)


def _refuse_flags_before(command: str, context: typer.Context) -> None:
    sources = [context.get_parameter_source(name) for name in context.params]
    if any(source is not None and source.name == "COMMANDLINE" for source in sources):
        raise ConfigurationError(f"usage {command}: write the flags after {command}")


@usage_commands.command()
def send(
    from_at: Annotated[str, typer.Option("--from", help="Windows that begin at this instant or day, or later.")],
    to_at: Annotated[str | None, typer.Option("--to", help="Windows that begin before this instant or day.")] = None,
    database: DatabaseFlag = None,
    as_json: JsonFlag = False,
    config: ConfigFlag = None,
) -> None:
    """Send windows that were cut while no gateway `usages` was configured. No window is sent twice."""
    settings = load_settings(config, database=database)
    if USAGES not in settings.gateways:
        raise ConfigurationError("gateways.usages: must be configured to send usage")
    span = (instant_of("from", from_at), None if to_at is None else instant_of("to", to_at))
    sent = asyncio.run(_send(settings, *span))
    if as_json:
        typer.echo(msgspec.json.encode(msgspec.structs.asdict(sent)).decode())
    else:
        typer.echo(f"handed over windows: {sent.windows}, chunks: {sent.chunks}")
    if not sent.complete:
        typer.echo("tenure: some windows are not divided yet; repeat the command while the service runs", err=True)
        raise typer.Exit(FAILED)


async def _send(settings: Config, from_at: datetime, to_at: datetime | None) -> "SentUsage":
    from tenure.store.engines import open_store  # noqa: PLC0415 - other commands need no store
    from tenure.submissions.gateways import Gateway  # noqa: PLC0415
    from tenure.submissions.payloads import PayloadSources  # noqa: PLC0415
    from tenure.usage.rendering import usage_contract  # noqa: PLC0415
    from tenure.usage.send import SentUsage, draft_of, send_windows  # noqa: PLC0415

    gateway = Gateway(USAGES, settings.gateways[USAGES], PayloadSources())
    contract = usage_contract(gateway.contract, settings.usage.format)
    store = open_store(settings.database, settings.pool_size, must_exist=True)
    draft = draft_of(local_actor(), from_at, to_at)
    windows = chunks = 0
    try:
        while (sent := await send_windows(store, contract, from_at, to_at, SENT_PER_LINE, draft)).windows:
            windows, chunks = windows + sent.windows, chunks + sent.chunks
            if not sent.complete:
                typer.echo(f"{windows} windows", err=True)
    finally:
        await store.close()
    return SentUsage(windows, chunks, sent.complete)


def _span(from_at: str | None, to_at: str | None) -> dict[str, str | None]:
    flags = {"from": from_at, "to": to_at}
    return {name: None if text is None else instant_of(name, text).isoformat() for name, text in flags.items()}


def _all_groups(service: Service, query: dict[str, Any]) -> Any:
    """Read all pages, and return them as a single page."""
    content = get(service, "/usage", query, "groups")
    cursor = content["nextCursor"]
    while cursor is not None:
        page = get(service, "/usage", {**query, "cursor": cursor}, "groups")
        content["groups"] += page["groups"]
        cursor = page["nextCursor"]
    return {**content, "count": len(content["groups"]), "nextCursor": None}


def _format_window(window: dict[str, Any]) -> str:
    """Format the fields of a window, one per line, without its chunks."""
    values = {name: value for name, value in _format_row(window).items() if name != "chunks"}
    return "\n".join(f"{name:12} {'-' if value is None else value}" for name, value in values.items())


def _format_row(row: dict[str, Any]) -> dict[str, Any]:
    """Format the factors as text, and the usage with six decimals, so that decimal points are aligned."""
    formatted = dict(row)
    if row["usage"] is not None:
        formatted["usage"] = f"{Decimal(str(row['usage'])):.6f}"
    if "factors" in row:
        formatted["factors"] = " ".join(f"{kind}:{factor}" for kind, factor in row["factors"].items())
    return formatted
