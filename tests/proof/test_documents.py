"""docs/reliability.md names all checks, faults, planted bugs and options of the proof. All tests named there exist."""

import re
from pathlib import Path

from proof.checks import CHECKS
from proof.cli import _parser
from proof.faults import KINDS
from proof.planted import BUGS

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def names_in(heading: str) -> set[str]:
    """Returns the names in the first column of the tables of a section."""
    section = re.split(r"^#+ ", DOCUMENT.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", section, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_named_test_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", DOCUMENT)
    named = [each for each in named if not each[0].startswith("proof/")]
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (file := ROOT / path if path.startswith("clients/") else ROOT / "tests" / path).is_file()
        or (name and f"def {name}(" not in file.read_text(encoding="utf-8"))
    ]
    assert len(named) > 25
    assert missing == []


def test_every_promise_names_checks_that_exist() -> None:
    rows = re.findall(r"^\| (?:[^|]*) \| `[^|]*\| ([^|]*) \|$", DOCUMENT.partition("## Run it")[0], flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named == set(CHECKS)


def test_every_check_fault_bug_and_option_is_documented() -> None:
    assert names_in("Checks") == set(CHECKS)
    assert names_in("Faults") == set(KINDS)
    assert names_in("Planted bugs") == set(BUGS)
    options = {action.option_strings[-1] for action in _parser()._actions if action.option_strings} - {"--help"}
    assert {name.split()[0] for name in names_in("Run it")} == options


def test_row_of_every_bug_has_its_description_and_its_checks() -> None:
    for name, bug in BUGS.items():
        row = next(line for line in DOCUMENT.splitlines() if line.startswith(f"| `{name}` |"))
        assert bug.what in row
        assert all(f"`{check}`" in row for check in bug.checks)
