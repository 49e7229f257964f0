"""The code blocks of the documents and the examples run. The documents name every option, method, error and reason."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Service

from tenure_client import Client, LostReason, errors
from tenure_client._routes import ROUTES

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs" / "clients" / "python.md").read_text(encoding="utf-8")
HOLD = (ROOT / "docs" / "hold.md").read_text(encoding="utf-8")
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_code_blocks_and_examples_run(service: Service, tmp_path: Path) -> None:
    """Each piece of code runs in its own process, all at the same time, because a process takes long to start."""
    environment = {**os.environ, "TENURE_URL": service.url}
    found = [block for text in (README, REFERENCE, HOLD) for block in blocks(text)]
    assert len(found) >= 7
    # Shorten the pauses of the code, to save time.
    shown = [block.replace("time.sleep(1)", "time.sleep(0.01)") for block in found]
    commands = [["-c", block.replace("http://127.0.0.1:8080", service.url)] for block in shown]
    commands += [
        [str(ROOT / "examples" / "worker.py"), "--steps", "2", "--seconds", "0.1"],
        [str(ROOT / "examples" / "proxy.py"), "--sessions", "50", "--seconds", "2"],
    ]
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", *command],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    for command, process in zip(commands, running, strict=True):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, f"{command}\n{output}"


def test_reference_names_every_option_method_and_error() -> None:
    options = [name for name in inspect.signature(Client).parameters if f"| `{name}` |" not in REFERENCE]
    methods = [name for name in ROUTES if name.rpartition(".")[2] not in REFERENCE]
    classes = [
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.TenureError) and f"`{name}`" not in REFERENCE
    ]
    reasons = [reason for reason in LostReason if f"`{reason}`" not in HOLD]
    assert (options, methods, reasons) == ([], [], [])
    assert sorted(classes) == ["Problem", "TenureError"] or classes == []
