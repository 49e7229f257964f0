"""Shell completion: the candidates, and the scripts in the shells that are installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.cli.completion import CLOSE_REASONS, FIXED, SCRIPTS, STATES, candidates
from tenure.config.profiles import PROFILES
from tenure.domain.keys import Role
from tenure.domain.sessions import CloseReason, State
from tenure.domain.submissions import SubmissionState
from tests.cli.conftest import Tenure
from tests.support.instances import RunningInstance, kill_all


def values(*words: str) -> list[str]:
    return [candidate.value for candidate in candidates(["tenure", *words])]


def test_commands_and_flags_are_completed() -> None:
    assert values("se") == ["serve", "sessions"]
    assert values("sessions", "") == ["list", "show", "open", "end"]
    assert values("sessions", "list", "--te") == ["--tenant"]
    assert "--json" not in values("sessions", "list", "--json", "--")
    assert values("usage", "s") == ["send"]
    assert values("nothing", "") == []


def test_values_are_completed() -> None:
    assert values("sessions", "list", "--state", "c") == ["created", "closing", "closed"]
    assert values("sessions", "end", "--state", "") == ["created", "active"]
    assert values("submissions", "list", "--state", "p") == ["pending"]
    assert values("submissions", "cancel", "--state", "") == ["pending", "failed"]
    assert values("sessions", "list", "--capacity", "x", "--close-reason", "LEASE") == ["LEASE_EXPIRED"]
    assert values("completion", "") == ["bash", "zsh", "fish"]
    assert values("sessions", "show", "x", "") == []


def test_fixed_values_are_those_of_the_service() -> None:
    assert set(CLOSE_REASONS) == {reason.value for reason in CloseReason}
    assert set(STATES["sessions list"]) == {state.value for state in State}
    assert set(STATES["submissions list"]) == {state.value for state in SubmissionState}
    assert set(FIXED["--role"]) == {role.value for role in Role}
    assert set(FIXED["--profile"]) == set(PROFILES)


def test_failures_give_no_candidates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENURE_URL", "http://127.0.0.1:9")
    assert values("jobs", "run", "") == []
    assert values("jobs", "run", "--url", "nonsense", "") == []
    assert values("jobs", "run", "--url=nonsense", "") == []
    broken = tmp_path / "contexts.toml"
    broken.write_text("[")
    monkeypatch.setenv("TENURE_CONTEXTS", str(broken))
    assert values("sessions", "list", "--context", "") == []


def test_names_of_contexts_are_completed(tenure: Tenure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENURE_CONTEXTS", str(tmp_path / "contexts.toml"))
    tenure("contexts", "set", "prod", "--url", "https://tenure.example")
    assert values("sessions", "list", "--context", "p") == ["prod"]
    assert values("contexts", "use", "") == ["prod"]


SHELLS = {
    "bash": """
source tenure.bash
COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=(tenure); _tenure; printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "fish": "source tenure.fish; complete -C '{line}'",
}


def test_bash_and_fish_scripts_complete_job_names_of_the_service(tenure: Tenure, tmp_path: Path) -> None:
    instance = RunningInstance(f"sqlite:///{tmp_path / 'tenure.db'}", tmp_path)
    program = tmp_path / "tenure"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tenure "$@"\n')
    program.chmod(0o755)
    try:
        url = instance.wait_until_ready().address
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "TENURE_URL": url,
            "HOME": str(tmp_path),
        }
        for shell, script in SHELLS.items():
            if shutil.which(shell) is None:
                continue
            (tmp_path / f"tenure.{shell}").write_text(tenure("completion", shell).out)
            done = subprocess.run(
                [shell, "-c", script.format(line="tenure jobs run ex")],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=environment,
                check=False,
                timeout=60,
            )
            assert done.stdout.split() == ["expire-sessions"], (shell, done)
    finally:
        kill_all([instance])


def test_completion_prints_script_and_refuses_unknown_shells(tenure: Tenure) -> None:
    for shell, script in SCRIPTS.items():
        assert tenure("completion", shell).out == script
    assert tenure("completion", "tcsh").err == "tenure: shell: must be bash, zsh, fish\n"
