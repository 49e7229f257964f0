"""What several commands share: flags, and how settings are loaded from them."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tenure.config import Config, load

DatabaseFlag = Annotated[str | None, typer.Option(help="sqlite:///file, postgresql://… or mssql://…")]
ConfigFlag = Annotated[Path | None, typer.Option(help="The configuration file; tenure.toml if it is there.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="For programs.")]
UrlFlag = Annotated[str, typer.Option(help="Where the service answers, with its prefix.")]
KeyFlag = Annotated[str | None, typer.Option(help="An API key.")]


def load_settings(file: Path | None, **flags: str | bool | None) -> Config:
    """Flags are taken as typed and checked with all other settings, so that each is refused in the same words."""
    return load({name: value for name, value in flags.items() if value is not None}, os.environ, file)
