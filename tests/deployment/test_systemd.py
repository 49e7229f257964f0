"""The systemd unit, and the notifications of an instance to systemd."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tenure.server.process import DRAIN_SECONDS
from tests.deployment.proxies import DEPLOY, replaced
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.load import clients

UNIT = DEPLOY / "systemd" / "tenure.service"
EXPOSURE_MAX = 20
"""The highest exposure score, out of 100, that `systemd-analyze security` may report."""
WAIT_SECONDS = 30
DRAIN_SECONDS_ADVISED = 5
"""The `drain_seconds` that the READMEs of `deploy/` advise."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")

Start = Callable[..., RunningInstance]


@needs_systemd
def test_systemd_accepts_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    program = tmp_path / "tenure"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit.write_text(replaced(UNIT.read_text(), r"/opt/tenure/bin/tenure", str(program)))
    verified = analyze("verify", "--man=no", str(unit))
    # Other units of the machine may cause warnings.
    assert [line for line in (verified.stdout + verified.stderr).splitlines() if UNIT.name in line] == []
    assert verified.returncode == 0, verified.stderr
    security = analyze("security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}", str(unit))
    assert security.returncode == 0, security.stdout.splitlines()[-1]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_unit_runs_a_command_of_tenure_and_gives_it_time_to_stop() -> None:
    settings = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#")
    program, *arguments = settings["ExecStart"].split()
    assert Path(program).name == "tenure"
    shown = subprocess.run(
        [sys.executable, "-m", "tenure", *arguments, "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    assert shown.returncode == 0, shown.stderr
    assert int(settings["TimeoutStopSec"].removesuffix("s")) > DRAIN_SECONDS_ADVISED + DRAIN_SECONDS


@pytest.mark.slow
async def test_instance_notifies_service_manager_and_survives_reload_without_tls(
    sqlite_database: Database, start: Start
) -> None:
    for workers in ("1", "2"):
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager,
        ):
            address = os.path.join(folder, "notify")  # noqa: PTH118 - the address of a socket is text
            manager.bind(address)
            manager.settimeout(WAIT_SECONDS)
            instance = start(sqlite_database.url, "--workers", workers, NOTIFY_SOCKET=address)
            assert manager.recv(1000) == b"READY=1"
            # READY=1 is sent as soon as one worker is ready, so a request may reach a worker that is not ready yet.
            instance.wait_until_ready()
            instance.send(signal.SIGHUP)
            async with clients([instance.address], 1) as (client,):
                assert (await client.get("/healthz")).status == 200
            instance.terminate()
            messages = [b"READY=1"]
            while messages[-1] == b"READY=1":
                messages.append(manager.recv(1000))
            assert messages[-1].startswith(b"STOPPING=1\n")
            assert instance.wait_for_exit() == 0, workers
