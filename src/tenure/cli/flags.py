"""The flags that several commands share, their checks, and functions that load the settings and open the database."""

import os
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import urlsplit

import typer

from tenure.errors import ConfigurationError
from tenure.ids import canonical_id

if TYPE_CHECKING:
    from tenure.config import Config
    from tenure.domain.audit_log import Actor
    from tenure.store.contract import Store

T = TypeVar("T")

DatabaseFlag = Annotated[
    str | None,
    typer.Option(
        help="The database: sqlite:///file, postgresql://… or mssql://…  [sqlite:///tenure.db]", metavar="URL"
    ),
]
ConfigFlag = Annotated[
    Path | None, typer.Option(help="The configuration file.  [tenure.toml, if it exists]", metavar="FILE")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesFlag = Annotated[
    bool,
    typer.Option("--yes", help="Do not ask for confirmation. Required without a terminal, if the command would ask."),
]
LimitFlag = Annotated[int, typer.Option(help="How many to list.", metavar="NUMBER")]
AllFlag = Annotated[bool, typer.Option("--all", help="List all of them, however many there are.")]

TenantFlag = Annotated[str | None, typer.Option(help="Only of this tenant.", metavar="UUID")]
CapacityFlag = Annotated[str | None, typer.Option(help="Only on this capacity.", metavar="UUID")]
UserFlag = Annotated[str | None, typer.Option(help="Only of this user.", metavar="UUID")]
KindFlag = Annotated[
    int | None, typer.Option(help="Only of this kind: 1 basic, 2 standard, 3 premium.", metavar="KIND")
]
FromFlag = Annotated[str | None, typer.Option("--from", help="From this instant or day on.", metavar="TIME")]
ToFlag = Annotated[str | None, typer.Option("--to", help="Before this instant or day.", metavar="TIME")]

LISTED = 50
"""How many rows a list has by default."""


def new_group(text: str) -> typer.Typer:
    """Return a group of commands."""
    return typer.Typer(help=text, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def load_settings(file: Path | None, **flags: str | bool | None) -> "Config":
    """Load the configuration with these flags. Flags are validated like all other settings, with the same messages.

    The function also configures logs, so that standard output contains only the results of the command.
    """
    from tenure.config import load  # noqa: PLC0415 - commands that call the service need no settings
    from tenure.telemetry.logs import configure_logs  # noqa: PLC0415

    configure_logs()
    return load({name: value for name, value in flags.items() if value is not None}, os.environ, file)


def run_with_store(settings: "Config", work: "Callable[[Store], Awaitable[T]]", *, must_exist: bool = True) -> T:
    """Open the database of the settings and return the result of `work`. `must_exist`: do not create an SQLite file."""
    import asyncio  # noqa: PLC0415

    async def run() -> T:
        from tenure.store.engines import open_store  # noqa: PLC0415 - commands that call the service need no store

        store = open_store(settings.database, settings.pool_size, must_exist=must_exist)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def local_actor() -> "Actor":
    """The user of this host who runs the command, for the audit log."""
    import getpass  # noqa: PLC0415
    import socket  # noqa: PLC0415

    from tenure.domain.audit_log import Actor  # noqa: PLC0415
    from tenure.domain.leases import NAME_MAX  # noqa: PLC0415

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = "unknown"
    subject = f"cli:{user}@{socket.gethostname()}".encode("ascii", "replace").decode()[:NAME_MAX]
    return Actor(subject, subject)


_DAY = re.compile(r"\d{4}-\d\d-\d\d").fullmatch


def instant_of(flag: str, text: str) -> datetime:
    """Parse an instant with an offset, or a day, which means 00:00 UTC of this day."""
    try:
        instant = datetime.fromisoformat(f"{text}T00:00:00Z" if _DAY(text) else text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise ConfigurationError(f"{flag}: must be an instant with an offset, such as 2026-01-02T03:04:05Z, or a day")
    return instant


def span_of(from_at: str | None, to_at: str | None) -> tuple[datetime | None, datetime | None]:
    """Parse `--from` and `--to`."""
    return (
        None if from_at is None else instant_of("from", from_at),
        None if to_at is None else instant_of("to", to_at),
    )


def whole_id(text: str) -> str:
    """Return the id, or refuse a shortened one: tables on a narrow terminal show only the end of an id."""
    if canonical_id(text) is None:
        raise ConfigurationError("id: give the whole id, 36 characters; a wide terminal and --json show whole ids")
    return text


def checked_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port >= 0)
        usable = usable and not (parts.query or parts.fragment or parts.username or parts.password)
    except ValueError:
        usable = False
    if not usable or not text.isascii() or any(character <= " " for character in text):
        raise ConfigurationError("url: must be a valid http:// or https:// URL, such as https://tenure.example/prefix")
    return text.rstrip("/")


_TOKEN = re.compile(r"tns_\S+|[\w-]+\.[\w-]+\.[\w-]+", re.ASCII).fullmatch
"""A session token, or a JSON Web Token of an OIDC issuer."""


def checked_key(text: str) -> str:
    """Return the credential. A mistyped API key is recognised by its checksum, before it is sent anywhere."""
    from tenure.domain.keys import parse_key  # noqa: PLC0415

    key = text.strip()
    if parse_key(key) is None and not _TOKEN(key):
        # The message does not repeat the text, because it may be a secret.
        raise ConfigurationError("key: must be an API key, as `tenure keys create` prints it, or a token")
    return key
