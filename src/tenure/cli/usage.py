"""`tenure usage`: what was used, asked of a running service."""

from decimal import Decimal
from typing import Annotated, Any

import typer

from tenure.cli.asking import get, json_text
from tenure.cli.flags import JsonFlag, KeyFlag, UrlFlag
from tenure.cli.instants import instant_of
from tenure.cli.tables import table
from tenure.errors import ConfigurationError

PAGE = 500
NEWEST = 50


def usage(
    from_at: Annotated[str | None, typer.Option("--from", help="An instant or a day. [30 days before the end]")] = None,
    to_at: Annotated[str | None, typer.Option("--to", help="An instant or a day. [now]")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    capacity: Annotated[str | None, typer.Option(help="Only on this capacity.")] = None,
    user: Annotated[str | None, typer.Option(help="Only of this user.")] = None,
    group_by: Annotated[str | None, typer.Option(help="tenant, capacity, user, kind or session.")] = None,
    windows: Annotated[bool, typer.Option("--windows", help="The newest 50 windows instead.")] = False,
    window: Annotated[int | None, typer.Option(help="This window instead, with its chunks.")] = None,
    url: UrlFlag = "http://127.0.0.1:8080",
    key: KeyFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what was used in a span, or windows as they were billed."""
    asked = {"tenant": tenant, "capacity": capacity, "user": user, "groupBy": group_by, **_span(from_at, to_at)}
    if (windows or window is not None) and any(asked.values()):
        raise ConfigurationError("windows: are shown as they were billed, without a span, a filter or groups")
    if window is not None:
        answer = get(url, key, f"/usage/windows/{window}", {}, "chunks")
        words = f"{_facts(answer)}\n\n{table([_fixed(chunk) for chunk in answer['chunks']])}"
    elif windows:
        answer = get(url, key, "/usage/windows", {"limit": NEWEST}, "windows")
        words = table([_fixed({**each, "factors": _factors(each["factors"])}) for each in answer["windows"]])
    else:
        answer = _all_groups(url, key, {**asked, "limit": PAGE})
        final = f"from {answer['from']} to {answer['to']}, final until {answer['finalUntil']}"
        words = f"{table([_fixed(group) for group in answer['groups']])}\n\n{final}"
    typer.echo(json_text(answer) if as_json else words)


def _span(from_at: str | None, to_at: str | None) -> dict[str, str | None]:
    given = {"from": from_at, "to": to_at}
    return {name: None if text is None else instant_of(name, text).isoformat() for name, text in given.items()}


def _all_groups(url: str, key: str | None, query: dict[str, Any]) -> Any:
    answer = get(url, key, "/usage", query, "groups")
    cursor = answer["nextCursor"]
    while cursor is not None:
        page = get(url, key, "/usage", {**query, "cursor": cursor}, "groups")
        answer["groups"] += page["groups"]
        cursor = page["nextCursor"]
    return {**answer, "count": len(answer["groups"]), "nextCursor": None}


def _facts(window: Any) -> str:
    facts = {**_fixed(window), "factors": _factors(window["factors"])}
    return "\n".join(
        f"{name:12} {'-' if value is None else value}" for name, value in facts.items() if name != "chunks"
    )


def _factors(factors: dict[str, Any]) -> str:
    return " ".join(f"{kind}:{factor}" for kind, factor in factors.items())


def _fixed(row: dict[str, Any]) -> dict[str, Any]:
    """Its usage with all decimals, so that amounts stand below each other."""
    amount = row["usage"]
    return row if amount is None else {**row, "usage": f"{Decimal(str(amount)):.6f}"}
