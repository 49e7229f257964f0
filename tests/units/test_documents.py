"""The documents agree with each other and with the tree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("bench/*.md")]
TEST_COMMAND = "pip install -e '.[dev]' && pytest"


def test_ci_runs_the_test_command_of_the_readme_to_the_letter() -> None:
    assert f"\n{TEST_COMMAND}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n{TEST_COMMAND}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_the_readme_leads_to_every_document(path: Path) -> None:
    assert f"docs/{path.name}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_log_event_is_documented() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    events = set(re.findall(r'log\.\w+\(\s*"([\w.]+)"', sources)) | set(re.findall(r'"(session\.\w+)"', sources))
    document = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert sorted(event for event in events if f"`{event}`" not in document) == []
