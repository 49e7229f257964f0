"""`tenure bench`: a bounded load that is measured and leaves no session behind."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tenure.load.latencies import Latencies
from tests.cli.conftest import Tenure
from tests.support.instances import RunningInstance

SECONDS = 20


def read(instance: RunningInstance, path: str) -> Any:
    with urlopen(f"{instance.address}{path}", timeout=10) as response:
        return json.load(response)


def live(instance: RunningInstance) -> int:
    return len(read(instance, "/sessions?active=true&limit=100")["sessions"])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_loads_are_counted_and_leave_no_live_session(
    start: Callable[[str], RunningInstance], tenure: Tenure, tmp_path: Path
) -> None:
    instance = start(f"sqlite:///{tmp_path / 'tenure.db'}").wait_until_ready()
    opened = 0
    expected = {"opens": {"open"}, "heartbeats": {"heartbeat"}, "mixed": {"open", "heartbeat", "read", "end"}}
    for load, operations in expected.items():
        flags = ["--load", load, "--seconds", "1", "--connections", "4", "--sessions", "20"]
        result = tenure("bench", "--url", instance.address, *flags, "--json")
        report = json.loads(result.out)
        assert (result.code, report["failures"], report["sessionsLeft"]) == (0, {}, 0), report
        assert set(report["operations"]) == operations
        counted = sum(each["requests"] for each in report["operations"].values())
        assert report["requests"] == counted == sum(report["answers"].values()) > 0
        assert report["p50Ms"] <= report["p90Ms"] <= report["p99Ms"]
        assert report["sessionsOpened"] == report["sessionsEnded"]
        opened += report["sessionsOpened"]
    assert live(instance) == 0
    # The counts that the service shows may be a second old.
    wait_until(lambda: read(instance, "/sessions/metrics")["totalSessions"] == opened)

    table = tenure("bench", "--url", instance.address, "--seconds", "1", "--load", "opens", "--connections", "1")
    assert table.code == 0
    assert table.out.splitlines()[0].split()[:4] == ["request", "succeeded", "per", "second"]
    assert "opened and ended" in table.err

    command = [sys.executable, "-m", "tenure", "bench", "--url", instance.address, "--json", "--seconds", "60"]
    process = subprocess.Popen([*command, "--sessions", "5"], stdout=subprocess.PIPE, text=True)
    wait_until(lambda: live(instance) >= 5)
    process.send_signal(signal.SIGINT)
    stopped = json.loads(process.communicate(timeout=60)[0])
    assert (process.returncode, stopped["sessionsLeft"]) == (130, 0)
    assert live(instance) == 0

    process = subprocess.Popen([*command, "--sessions", "5", "--connections", "2"], stdout=subprocess.PIPE, text=True)
    wait_until(lambda: live(instance) >= 5)
    instance.kill()
    process.send_signal(signal.SIGINT)
    alone = json.loads(process.communicate(timeout=60)[0])
    assert process.returncode == 130
    assert alone["sessionsLeft"] > 0
    assert alone["sessionsOpened"] == alone["sessionsEnded"] + alone["sessionsLeft"]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--url", "http://192.0.2.1:8080"], 2, "192.0.2.1 is not this machine; pass --remote"),
        (["--url", "http://127.0.0.1:9", "--load", "deletes"], 2, "load: must be opens, heartbeats or mixed"),
        (["--url", "http://127.0.0.1:9"], 5, "cannot be reached"),
        (["--url", "http://127.0.0.1:9", "--seconds", "601"], 2, "less than or equal to 600"),
        (["--url", "http://127.0.0.1:9", "--connections", "257"], 2, "less than or equal to 256"),
    ],
)
def test_wrong_flags_and_unreachable_service_are_reported(
    flags: list[str], code: int, message: str, tenure: Tenure
) -> None:
    result = tenure("bench", *flags)
    assert (result.code, result.out) == (code, "")
    assert message in result.err


def test_percentiles_are_exact_to_one_percent() -> None:
    source = random.Random(3)
    durations = [source.lognormvariate(-6, 1.5) for _ in range(5000)]
    latencies, first = Latencies(), Latencies()
    for number, each in enumerate(durations):
        (first if number % 2 else latencies).add(each)
    latencies.merge(first)
    assert latencies.count == len(durations)
    assert latencies.longest == max(durations)
    for share in (0.5, 0.9, 0.99, 1):
        exact = sorted(durations)[round(share * len(durations)) - 1]
        found = latencies.percentile(share)
        assert found is not None
        assert exact * 0.999 - 1e-6 <= found <= exact * 1.01 + 1e-6
    assert Latencies().percentile(0.5) is None
