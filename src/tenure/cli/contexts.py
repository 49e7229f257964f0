"""Named services: a file with their URLs and keys, and `tenure contexts`, which maintains it.

The file is `contexts.toml` in the folder `tenure` of the user's configuration (`$XDG_CONFIG_HOME`, by default
`~/.config`), or the file that `TENURE_CONTEXTS` names. It can contain keys, so only its owner may read it.
"""

import json
import os
import re
import stat
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tenure.cli.exits import ExitCode, fail
from tenure.cli.flags import JsonFlag, YesFlag, checked_key, checked_url, new_group
from tenure.cli.output import confirm, note, print_json, print_table
from tenure.errors import ConfigurationError

NAME_MAX = 64
PRIVATE = 0o600
PRIVATE_FOLDER = 0o700
KEY_SHOWN = re.compile(r"tnr_[a-z]+_[0-9A-Za-z]{12}_").match
"""The parts of an API key that are not secret."""


class Context(NamedTuple):
    """The URL of a service, and the key for it, under a name. The `repr` does not show the key."""

    name: str
    url: str
    key: str | None

    def __repr__(self) -> str:
        return f"Context({self.name!r}, {self.url!r})"


class Contexts(NamedTuple):
    current: str | None
    by_name: Mapping[str, Context]

    def get(self, name: str) -> Context:
        if name not in self.by_name:
            known = ", ".join(self.by_name) or "none; add one with `tenure contexts set`"
            raise ConfigurationError(f"context: {name} does not exist. Contexts: {known}")
        return self.by_name[name]


def contexts_file() -> Path:
    if named := os.environ.get("TENURE_CONTEXTS"):
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tenure" / "contexts.toml"


def read_contexts() -> Contexts:
    path = contexts_file()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        _warn_if_public(path)
    except FileNotFoundError:
        return Contexts(None, {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from None
    found = content.get("contexts", {})
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path}: contexts: must be tables such as [contexts.prod]")
    by_name = {name: _context(path, name, fields) for name, fields in found.items()}
    current = content.get("current")
    return Contexts(current if current in by_name else None, by_name)


def _context(path: Path, name: str, fields: object) -> Context:
    if not isinstance(fields, dict) or not isinstance(fields.get("url"), str):
        raise ConfigurationError(f"{path}: contexts.{name}: must have a url")
    if unknown := sorted(set(fields) - {"url", "key"}):
        raise ConfigurationError(f"{path}: contexts.{name}: has the unknown field {unknown[0]}")
    key = fields.get("key")
    if not isinstance(key, str | None):
        raise ConfigurationError(f"{path}: contexts.{name}.key: must be text")
    return Context(name, fields["url"], key)


def _warn_if_public(path: Path) -> None:
    if path.is_file() and stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        note(f"tenure: other users can read {path}, which can contain keys; chmod 600 {path}")


def write_contexts(contexts: Contexts) -> None:
    """Replace the file. Other users can never read it, and a crash leaves either the old or the new file."""
    lines = [] if contexts.current is None else [f"current = {json.dumps(contexts.current)}", ""]
    for context in contexts.by_name.values():
        lines += [f"[contexts.{json.dumps(context.name)}]", f"url = {json.dumps(context.url)}"]
        lines += [] if context.key is None else [f"key = {json.dumps(context.key)}"]
        lines.append("")
    path = contexts_file()
    if path.exists() and not path.is_file():
        # Replacing a device or a folder would destroy it.
        raise ConfigurationError(f"{path}: must be a file")
    try:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        # `NamedTemporaryFile` creates a file that only its owner can read.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8") as new:
            new.write("\n".join(lines))
        Path(new.name).chmod(PRIVATE)
        Path(new.name).replace(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None


def shown_key(key: str | None) -> str | None:
    """Return a key without its secret."""
    if key is None:
        return None
    found = KEY_SHOWN(key)
    return f"{found[0] if found else ''}[redacted]"


# The commands.

contexts_commands = new_group("Name services and their keys, and choose the one that commands call.")

_IS_NAME = re.compile(rf"[0-9A-Za-z][0-9A-Za-z._-]{{0,{NAME_MAX - 1}}}").fullmatch

NameArgument = Annotated[str, typer.Argument(help="The name of the context.", metavar="NAME")]


@contexts_commands.command("list")
def list_contexts(as_json: JsonFlag = False) -> None:
    """List the contexts. The context in use is marked with `*`. No secret is shown.

    tenure contexts list
    """
    found = read_contexts()
    every = found.by_name.values()
    if as_json:
        listed = [
            {"name": each.name, "url": each.url, "key": shown_key(each.key), "current": each.name == found.current}
            for each in every
        ]
        print_json({"contexts": listed, "count": len(listed)})
        return
    rows = [("*" if each.name == found.current else "", each.name, each.url, shown_key(each.key)) for each in every]
    print_table(
        ("", "name", "url", "key"), rows, f"no contexts in {contexts_file()}; add one with `tenure contexts set`"
    )


@contexts_commands.command("set")
def set_context(
    name: NameArgument,
    url: Annotated[str | None, typer.Option(help="The URL of the service, including its prefix.")] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="The API key, or - to read it from standard input, which keeps it out of the shell's history."
        ),
    ] = None,
) -> None:
    """Add a context, or change its URL or key. If no context is in use, this one is used from then on.

    tenure contexts set prod --url https://tenure.example --key -
    """
    if not _IS_NAME(name):
        raise ConfigurationError(f"name: must be letters, digits, dots, - and _, at most {NAME_MAX} characters")
    found = read_contexts()
    old = found.by_name.get(name)
    if url is None and old is None:
        raise ConfigurationError("url: is required for a new context")
    new_key = _key_from_input() if key == "-" else key
    if url is not None and old is not None and new_key is None and old.key is not None and url != old.url:
        # Without this check, the key would be sent to a service that it does not belong to.
        raise ConfigurationError(f"key: {name} has a key for {old.url}; give --key for the new URL too")
    made = Context(
        name,
        checked_url(url or (old.url if old else "")),
        checked_key(new_key) if new_key is not None else (old.key if old else None),
    )
    write_contexts(Contexts(found.current or name, {**found.by_name, name: made}))
    note(f"{name} is {made.url}{'' if made.key is None else f', with key {shown_key(made.key)}'}")


@contexts_commands.command("use")
def use_context(name: NameArgument) -> None:
    """Use a context for all commands that name no other service.

    tenure contexts use prod
    """
    found = read_contexts()
    context = found.get(name)
    write_contexts(Contexts(name, found.by_name))
    note(f"commands now call {context.url}")


@contexts_commands.command("remove")
def remove_context(name: NameArgument, yes: YesFlag = False) -> None:
    """Remove a context and its key from the file.

    tenure contexts remove old --yes
    """
    found = read_contexts()
    if name not in found.by_name:
        fail(f"context {name} does not exist", ExitCode.NOT_FOUND)
    confirm(f"Remove context {name} ({found.by_name[name].url}) and its key?", yes=yes)
    left = {other: context for other, context in found.by_name.items() if other != name}
    write_contexts(Contexts(None if found.current == name else found.current, left))
    note(f"removed {name}")


def _key_from_input() -> str:
    if sys.stdin.isatty():
        import getpass  # noqa: PLC0415

        return getpass.getpass("API key: ")
    return sys.stdin.readline().strip()
