"""The documents agree with each other and with the source tree."""

import re
from pathlib import Path

from tenure.alerts.delivery import AlertPayloads
from tenure.telemetry.events import RequestAnswered, SessionClosed, SessionOpened, all_events
from tenure.usage.rendering import UsagePayloads

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("deploy/**/*.md")]
TEST_COMMAND = "pip install -e '.[dev]' && pytest"


def test_ci_runs_exact_test_command_from_readme() -> None:
    assert f"\n{TEST_COMMAND}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n{TEST_COMMAND}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_document_links_resolve() -> None:
    broken = [
        (str(path.relative_to(ROOT)), target)
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert broken == []


def test_readme_links_to_all_documents() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f"docs/{path.name}" not in readme] == []


def test_all_log_events_are_documented() -> None:
    sources = {f"{source.name}.withheld" for source in (UsagePayloads, AlertPayloads)}
    with_settings = {SessionOpened.name, "session.upgraded", RequestAnswered.name}
    events = {*SessionClosed.log_names.values()} | sources | with_settings
    events |= {kind.name for kind in all_events() if kind.level is not None}
    document = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert sorted(event for event in events if f"`{event}`" not in document) == []
