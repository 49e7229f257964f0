"""Documents, Prometheus rules and the Grafana dashboard name the same metrics and alerts as the code."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tenure.domain.alerts import AlertName
from tenure.telemetry.metrics import FAMILIES

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
METRIC = re.compile(r"\btenure_[a-z_]+")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def families_in(text: str) -> set[str]:
    """Returns the names of the metrics in a text: for a series of a histogram, the name without its suffix."""
    names = METRIC.findall(text)
    return {name if name in FAMILIES else re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    document = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(tenure_\w+)` \| (\w+) \| (.*?) \| (.+?) \|$", document, re.MULTILINE)
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}
    exported = {
        family.name: (family.kind, family.labels if family.of_installation else (*family.labels, "worker"))
        for family in FAMILIES.values()
    }
    assert documented == exported


def test_every_metric_that_a_document_names_exists() -> None:
    """Checks only these four pages. Other pages name database functions, whose names look like those of metrics."""
    for page in ("metrics.md", "runbook.md", "operating.md", "configuration.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert families_in(text) - set(FAMILIES) == set(), page


def test_every_alert_has_a_rule_and_a_runbook_section_with_four_parts() -> None:
    sections = dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
    text = RULES.read_text(encoding="utf-8")
    anchors = re.findall(r"runbook_url: \S+/docs/runbook\.md#([\w-]+)$", text, re.MULTILINE)
    assert text.count("- alert:") == len(anchors) == len(set(anchors))
    assert set(anchors) == set(sections)
    assert {name.value for name in AlertName} <= set(sections)
    for name, section in sections.items():
        for part in ("What it means.", "Look at first.", "Do.", "Do not"):
            assert f"\n**{part}**" in section, (name, part)


def test_console_has_the_text_of_the_runbook() -> None:
    titles = {"What it means.": "meaning", "Look at first.": "look", "Do.": "act", "Do not": "avoid"}
    sections = dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
    parts = re.compile(r"^\*\*(.+?)\*\*\s+(.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
    expected = {
        name.value: {titles[title]: " ".join(text.split()) for title, text in parts.findall(sections[name.value])}
        for name in AlertName
    }
    module = (ROOT / "src/tenure/console/static/core/runbook.js").read_text(encoding="utf-8")
    assert json.loads(module.partition("RUNBOOK = ")[2].removesuffix(";\n")) == expected


def test_rules_and_their_tests_use_exported_metrics() -> None:
    for path in RULES.parent.glob("*.yml"):
        assert families_in(path.read_text(encoding="utf-8")) - set(FAMILIES) == set(), path.name


def test_every_rule_has_a_case_in_which_it_fires() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8")))
    cases = RULES.with_name("rules.test.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:", cases)) == alerts


@needs_promtool
def test_promtool_accepts_rules_configuration_and_cases() -> None:
    for arguments in (
        ("check", "rules", "rules.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("test", "rules", "rules.test.yml"),
    ):
        result = subprocess.run(
            ["promtool", *arguments], cwd=RULES.parent, capture_output=True, check=False, text=True, timeout=60
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_dashboard_is_up_to_date_and_shows_every_exported_metric() -> None:
    specification = importlib.util.spec_from_file_location("make", ROOT / "deploy" / "grafana" / "make.py")
    assert specification is not None
    assert specification.loader is not None
    make = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(make)
    text = (ROOT / "deploy" / "grafana" / "dashboard.json").read_text(encoding="utf-8")
    assert text == make.board(), "run deploy/grafana/make.py"
    shown = {
        name
        for panel in json.loads(text)["panels"]
        for target in panel["targets"]
        for name in families_in(target["expr"])
    }
    assert shown == set(FAMILIES)
