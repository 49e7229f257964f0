"""`tenure usage`: what was used, asked of a running service."""

from typing import Annotated, Any

import typer

from tenure.cli.asking import get, json_text
from tenure.cli.flags import JsonFlag, KeyFlag, UrlFlag
from tenure.cli.tables import table

PAGE = 500
NEWEST = 50


def usage(
    from_at: Annotated[str | None, typer.Option("--from", help="An instant. [30 days before the end]")] = None,
    to_at: Annotated[str | None, typer.Option("--to", help="An instant. [now]")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    capacity: Annotated[str | None, typer.Option(help="Only on this capacity.")] = None,
    user: Annotated[str | None, typer.Option(help="Only of this user.")] = None,
    group_by: Annotated[str | None, typer.Option(help="tenant, capacity, user, kind or session.")] = None,
    windows: Annotated[bool, typer.Option("--windows", help="The newest windows instead.")] = False,
    window: Annotated[int | None, typer.Option(help="This window instead, with its chunks.")] = None,
    url: UrlFlag = "http://127.0.0.1:8080",
    key: KeyFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what was used in a span, or windows as they were billed."""
    if window is not None:
        answer = get(url, key, f"/usage/windows/{window}", {}, "chunks")
        rows = answer["chunks"]
    elif windows:
        answer = get(url, key, "/usage/windows", {"limit": NEWEST}, "windows")
        rows = [{**each, "factors": _factors(each["factors"])} for each in answer["windows"]]
    else:
        filters = {"tenant": tenant, "capacity": capacity, "user": user}
        span = {"from": from_at, "to": to_at}
        answer = _all_groups(url, key, {**span, **filters, "groupBy": group_by, "limit": PAGE})
        rows = answer["groups"]
    typer.echo(json_text(answer) if as_json else f"{table(rows)}{_foot(answer)}")


def _all_groups(url: str, key: str | None, query: dict[str, Any]) -> Any:
    answer = get(url, key, "/usage", query, "groups")
    cursor = answer["nextCursor"]
    while cursor is not None:
        page = get(url, key, "/usage", {**query, "cursor": cursor}, "groups")
        answer["groups"] += page["groups"]
        cursor = page["nextCursor"]
    return {**answer, "count": len(answer["groups"]), "nextCursor": None}


def _factors(factors: dict[str, Any]) -> str:
    return " ".join(str(factor) for factor in factors.values())


def _foot(answer: Any) -> str:
    if "finalUntil" not in answer:
        return ""
    return f"\n\nfrom {answer['from']} to {answer['to']}, final until {answer['finalUntil']}"
