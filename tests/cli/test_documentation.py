"""The commands in the documentation exist, and every command and flag is documented."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from click import ClickException, Command, Context
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
    """The sections of `docs/commands.md`, by command."""
    _, *parts = re.split(r"^## `tenure (\w+)`\n", COMMANDS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _examples() -> Iterator[tuple[str, list[str]]]:
    """Every `tenure …` in a code block of a document: its place and its words."""
    for path in DOCUMENTS:
        blocks = re.findall(r"```(?:sh|console)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\$ )?(?:[A-Z_0-9]+=\S+ )*tenure (.*?)(?: &)?$", line)
            if found:
                words = shlex.split(found[1], comments=True)
                yield f"{path.name}: {shlex.join(words)}", words


EXAMPLES = dict(_examples())


def test_documented_commands_and_flags_are_those_that_exist() -> None:
    assert set(_sections()) == set(_commands())
    for name, section in _sections().items():
        in_tables = {
            flag
            for cell in re.findall(r"^\|(.*?)\|", section, re.MULTILINE)
            for flag in re.findall(r"`(--[\w-]+)`", cell)
        }
        assert in_tables - _flags(name) == set(), name
        assert [flag for flag in _flags(name) - {"--help"} if f"`{flag}`" not in section] == [], name


def test_documented_command_lines_are_parsed() -> None:
    """The commands are not run."""
    for place, words in EXAMPLES.items():
        command = _commands()[words[0]]
        try:
            command.make_context(words[0], words[1:], parent=Context(command))
        except ClickException as error:
            pytest.fail(f"{place}: {error.format_message()}")


def test_every_command_has_a_documented_example() -> None:
    assert {words[0] for words in EXAMPLES.values()} == set(_commands())
