"""Flags that several commands share, and the loading of settings from flags."""

import getpass
import os
import re
import socket
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from tenure.config import Config, load
from tenure.domain.audit_log import Actor
from tenure.domain.leases import NAME_MAX
from tenure.errors import ConfigurationError

DatabaseFlag = Annotated[str | None, typer.Option(help="The database: sqlite:///file, postgresql://… or mssql://…")]
ConfigFlag = Annotated[Path | None, typer.Option(help="The configuration file; by default tenure.toml, if it exists.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
UrlFlag = Annotated[str, typer.Option(help="The URL of the service, including its prefix.", envvar="TENURE_URL")]


KeyFlag = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="The API key. Other users of this host can read flags, so better set TENURE_KEY.",
        envvar="TENURE_KEY",
        show_envvar=False,
    ),
]


def load_settings(file: Path | None, **flags: str | bool | None) -> Config:
    """Load the configuration with these flags. Flags are validated like all other settings, with the same messages."""
    return load({name: value for name, value in flags.items() if value is not None}, os.environ, file)


def local_actor() -> Actor:
    """The user of this host who runs the command, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = "unknown"
    subject = f"cli:{user}@{socket.gethostname()}".encode("ascii", "replace").decode()[:NAME_MAX]
    return Actor(subject, subject)


_DAY = re.compile(r"\d{4}-\d\d-\d\d").fullmatch


def instant_of(flag: str, text: str) -> datetime:
    """Parse an instant with an offset, or a day, which stands for its midnight in UTC."""
    try:
        instant = datetime.fromisoformat(f"{text}T00:00:00Z" if _DAY(text) else text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise ConfigurationError(f"{flag}: must be an instant with an offset, such as 2026-01-02T03:04:05Z, or a day")
    return instant
