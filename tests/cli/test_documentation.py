"""What the documents tell people to type exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from click import Command, Context
from typer.core import TyperGroup

from tenure.cli.main import app

ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / "docs" / "commands.md"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _commands() -> dict[str, Command]:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return dict(group.commands)


def _flags(name: str) -> set[str]:
    return {flag for parameter in _commands()[name].params for flag in parameter.opts}


def _sections() -> dict[str, str]:
    """Of `docs/commands.md`, by command."""
    _, *parts = re.split(r"^## `tenure (\w+)`\n", COMMANDS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _shown() -> Iterator[tuple[str, list[str]]]:
    """The words of every `tenure …` that stands in a block of a document, and where."""
    for path in DOCUMENTS:
        blocks = re.findall(r"```(?:sh|console)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\$ )?(?:[A-Z_0-9]+=\S+ )*tenure (.*?)(?: &)?$", line)
            if found:
                words = shlex.split(found[1], comments=True)
                yield f"{path.name}: {shlex.join(words)}", words


SHOWN = dict(_shown())


def test_every_documented_command_exists() -> None:
    assert set(_sections()) == set(_commands())


@pytest.mark.parametrize("name", list(_sections()))
def test_every_documented_flag_exists(name: str) -> None:
    documented = {flag for row in re.findall(r"^\|(.*?)\|", _sections()[name], re.MULTILINE) for flag in _named(row)}
    assert documented - _flags(name) == set()


def _named(row: str) -> list[str]:
    return re.findall(r"`(--[\w-]+)`", row)


@pytest.mark.parametrize("words", list(SHOWN.values()), ids=list(SHOWN))
def test_what_is_shown_is_understood(words: list[str]) -> None:
    """As far as the command line goes: nothing is run."""
    command = _commands()[words[0]]
    command.make_context(words[0], words[1:], parent=Context(command))


def test_every_command_is_shown() -> None:
    assert {words[0] for words in SHOWN.values()} == set(_commands())
