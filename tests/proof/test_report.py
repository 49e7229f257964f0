"""The report and the picture of a run, and the command line."""

import xml.etree.ElementTree as ET

import msgspec
import pytest

from proof.checks import run_checks
from proof.cli import _kinds
from proof.picture import draw
from proof.plan import Plan
from proof.report import report_of, text_of
from proof.run import Run
from tests.proof.test_checks import history, tables


def finished_run(**changes: object) -> Run:
    seen, rows = history(), tables()
    for row in rows.lease_history:
        row["how"] = "expired"
    plan = Plan(seed=3, seconds=10)
    done = Run(plan, seen, rows, run_checks(seen, rows, plan), proxy=True, logs="")
    return done._replace(**changes)  # type: ignore[arg-type]


def test_report_has_figures_of_the_run() -> None:
    report = report_of(finished_run())
    assert (report.seed, report.requests, report.answered, report.sessions) == (3, 10, 9, 2)
    assert report.findings == []
    assert report.faults["kill"].slowest_seconds == pytest.approx(0.7)
    assert report.takeovers.slowest_seconds == pytest.approx(0.5)
    assert msgspec.json.decode(msgspec.json.encode(report))["checks"].keys() == finished_run().outcomes.keys()


def test_text_reports_whether_every_promise_held_and_whether_a_proxy_ran() -> None:
    held = text_of(report_of(finished_run()))
    assert "every promise held" in held
    assert "| kill | 1 | 0.7 | 0.7 |" in held
    assert "HAProxy is not installed" in text_of(report_of(finished_run(proxy=False)))
    done = finished_run()
    done.history.skipped["disk-full"] = "a small file system could not be mounted; mounting needs root"
    assert "Not injected: `disk-full`, because a small file" in text_of(report_of(done))
    done.outcomes["seats"] = done.outcomes["seats"]._replace(findings=["two on one seat"])
    assert "- seats: two on one seat" in text_of(report_of(done))


def test_picture_shows_load_faults_and_leaders() -> None:
    picture = draw(finished_run())
    ET.fromstring(picture)
    assert all(word in picture for word in ("every promise held", ">kill<", ">submission-executor<", "epoch 2", "10 s"))


def test_unknown_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert (_kinds(None), _kinds("none"), _kinds("kill,pause")) == (None, (), ("kill", "pause"))
    with pytest.raises(SystemExit, match="2"):
        _kinds("kill,flood")
    assert "unknown faults: flood" in capsys.readouterr().err
