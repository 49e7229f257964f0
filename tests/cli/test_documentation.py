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
    """Every command by its words. A group is a command of its own if it can be called without a subcommand."""
    top = typer.main.get_command(app)
    assert isinstance(top, TyperGroup)
    found: dict[str, Command] = {}
    for name, command in top.commands.items():
        if not isinstance(command, TyperGroup) or command.invoke_without_command:
            found[name] = command
        if isinstance(command, TyperGroup):
            found |= {f"{name} {inner}": subcommand for inner, subcommand in command.commands.items()}
    return found


def _flags(name: str) -> set[str]:
    """The flags of a command, except hidden ones, which a later version will have."""
    options = [parameter for parameter in _commands()[name].params if parameter.param_type_name == "option"]
    return {flag for option in options if not getattr(option, "hidden", False) for flag in option.opts}


def _sections() -> dict[str, str]:
    """The sections of `docs/commands.md`, by command."""
    _, *parts = re.split(r"^## `tenure ([\w -]+)`\n", COMMANDS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _examples() -> Iterator[tuple[str, list[str]]]:
    """Every `tenure …` in a code block of a document: its place and its words."""
    for path in DOCUMENTS:
        blocks = re.findall(r"```(?:sh|console)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\$ )?(?:[A-Z_0-9]+=\S+ )*tenure (.*?)(?: > \S+)?(?: &)?$", line)
            if found:
                words = shlex.split(found[1], comments=True)
                yield f"{path.name}: {shlex.join(words)}", words


EXAMPLES = dict(_examples())


def test_documented_commands_and_flags_match_parser() -> None:
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
        name, arguments = _split(words)
        command = _commands()[name]
        try:
            command.make_context(name, arguments, parent=Context(command))
        except ClickException as error:
            pytest.fail(f"{place}: {error.format_message()}")


def test_every_command_has_a_documented_example() -> None:
    assert {_split(words)[0] for words in EXAMPLES.values()} == set(_commands())


def _split(words: list[str]) -> tuple[str, list[str]]:
    """The name of the command, which may have two words, and its arguments."""
    count = 2 if " ".join(words[:2]) in _commands() else 1
    return " ".join(words[:count]), words[count:]
