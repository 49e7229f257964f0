"""docs/commands.md agrees with the commands, and the commands in README.md and docs/*.md exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from docs.tools.generate_commands import FILE, document
from tenure.cli.exits import ExitCode
from tenure.cli.main import COMMANDS, all_commands, load_command

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _examples() -> Iterator[tuple[str, list[str]]]:
    """Yields each `tenure` command line in a code block of a document: where it is, and its words."""
    for path in DOCUMENTS:
        blocks = re.findall(r"```(?:sh|console)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\$ )?(?:[A-Z_0-9]+=\S+ )*tenure (.*?)(?: \| .*)?(?: > \S+)?(?: &)?$", line)
            if found:
                words = shlex.split(found[1], comments=True)
                yield f"{path.name}: {shlex.join(words)}", words


EXAMPLES = dict(_examples())
EVERY = all_commands()


def test_document_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == document(), "run: python docs/tools/generate_commands.py"


def test_every_flag_and_argument_has_a_help_text() -> None:
    for name, command in EVERY.items():
        silent = [each.name for each in command.params if not each.hidden and not each.help]
        assert silent == [], name


def test_summaries_are_the_first_sentences_of_the_commands() -> None:
    for name, entry in COMMANDS.items():
        sentence = re.split(r"(?<=\.)\s", load_command(name).help)[0]
        assert entry.summary == " ".join(sentence.split()), name


def test_exit_codes_are_documented() -> None:
    (table,) = re.findall(r"^## Exit codes\n(.*?)^## ", FILE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {code.value for code in ExitCode}


def test_documented_command_lines_are_parsed() -> None:
    """The commands are parsed, but not run."""
    for place, words in EXAMPLES.items():
        name, arguments = _split(words)
        try:
            EVERY[name].make_context(name, arguments)
        except Exception as error:
            error.add_note(place)
            raise


def test_every_command_has_a_documented_example() -> None:
    assert {_split(words)[0] for words in EXAMPLES.values()} == set(EVERY)


def _split(words: list[str]) -> tuple[str, list[str]]:
    """Splits a command line into the name of the command, which may have two words, and its arguments."""
    count = 2 if " ".join(words[:2]) in EVERY else 1
    return " ".join(words[:count]), words[count:]
