"""`tenure usage`: queries the usage of a running service, and prints it."""

from decimal import Decimal
from typing import Annotated, Any

import typer

from tenure.cli.flags import JsonFlag, KeyFlag, UrlFlag, instant_of
from tenure.cli.service import get, json_text
from tenure.cli.tables import table
from tenure.errors import ConfigurationError

PAGE = 500
NEWEST = 50


def usage(
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
    query = {"tenant": tenant, "capacity": capacity, "user": user, "groupBy": group_by, **_span(from_at, to_at)}
    if (windows or window is not None) and any(query.values()):
        raise ConfigurationError("windows: cannot be combined with a span, a filter or --group-by")
    if window is not None:
        content = get(url, key, f"/usage/windows/{window}", {}, "chunks")
        text = f"{_format_window(content)}\n\n{table([_format_row(chunk) for chunk in content['chunks']])}"
    elif windows:
        content = get(url, key, "/usage/windows", {"limit": NEWEST}, "windows")
        text = table([_format_row(each) for each in content["windows"]])
    else:
        content = _all_groups(url, key, {**query, "limit": PAGE})
        span = f"from {content['from']} to {content['to']}, final until {content['finalUntil']}"
        text = f"{table([_format_row(group) for group in content['groups']])}\n\n{span}"
    typer.echo(json_text(content) if as_json else text)


def _span(from_at: str | None, to_at: str | None) -> dict[str, str | None]:
    flags = {"from": from_at, "to": to_at}
    return {name: None if text is None else instant_of(name, text).isoformat() for name, text in flags.items()}


def _all_groups(url: str, key: str | None, query: dict[str, Any]) -> Any:
    """Read all pages, and return them as a single page."""
    content = get(url, key, "/usage", query, "groups")
    cursor = content["nextCursor"]
    while cursor is not None:
        page = get(url, key, "/usage", {**query, "cursor": cursor}, "groups")
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
