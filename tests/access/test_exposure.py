"""Whether `tenure serve` requires credentials on the addresses on which it listens, and what it logs at the start. The
instances are real processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.instances import RunningInstance, kill_all

EVERYWHERE = ("--host", "0.0.0.0")


def create_key(database: str, role: str = "operator") -> str:
    command = [*(sys.executable, "-m", "tenure", "keys", "create"), "--name", role, "--role", role]
    return subprocess.run(
        [*command, "--database", database], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def opened(instance: RunningInstance) -> list[dict[str, object]]:
    """Returns the log lines `access.open`, which say that the instance accepts requests without a credential."""
    lines = [json.loads(line) for line in instance.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "access.open"]


def test_start_on_all_addresses_without_keys_is_refused_with_command_for_first_key(tmp_path: Path) -> None:
    path = tmp_path / "tenure.db"
    for _ in ("without a file", "without keys"):
        instance = RunningInstance(f"sqlite:///{path}", tmp_path, *EVERYWHERE)
        assert instance.wait_for_exit() == 2
        assert "tenure keys create --name admin --role operator --expires 90d" in instance.log()
        assert "listening" not in instance.log()
        command = [sys.executable, "-m", "tenure", "migrate", "--database", f"sqlite:///{path}"]
        subprocess.run(command, capture_output=True, check=True, timeout=60)


@pytest.mark.slow
def test_instance_on_all_addresses_requires_key_and_command_line_sends_it(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'tenure.db'}"
    key = create_key(database)
    instance = RunningInstance(database, tmp_path, *EVERYWHERE)
    try:
        url = f"http://127.0.0.1:{instance.port}"
        instance.wait_until_ready()
        assert httpx.get(f"{url}/sessions").status_code == 401
        assert httpx.get(f"{url}/sessions", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert opened(instance) == []
        usage = [sys.executable, "-m", "tenure", "usage", "--json", "--url", url]
        refused = subprocess.run(usage, capture_output=True, text=True, check=False, timeout=60)
        assert refused.returncode == 6
        assert refused.stderr.startswith("tenure: the request has no credential; set TENURE_KEY, ")
        accepted = subprocess.run(
            usage, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "TENURE_KEY": key}
        )
        assert accepted.returncode == 0, accepted.stderr
        assert "groups" in json.loads(accepted.stdout)
    finally:
        kill_all([instance])


@pytest.mark.slow
def test_instance_on_all_addresses_with_issuer_requires_credentials(tmp_path: Path) -> None:
    issuer = {
        "TENURE_OIDC__ISSUER": "https://login.example",
        "TENURE_OIDC__AUDIENCE": "tenure",
        "TENURE_OIDC__JWKS_URL": "http://127.0.0.1:9/keys",
    }
    instance = RunningInstance(f"sqlite:///{tmp_path / 'tenure.db'}", tmp_path, *EVERYWHERE, **issuer)
    try:
        instance.wait_until_ready()
        assert httpx.get(f"http://127.0.0.1:{instance.port}/sessions").status_code == 401
        assert opened(instance) == []
    finally:
        kill_all([instance])
    assert "oidc.fetch_failed" in instance.log()


@pytest.mark.slow
def test_start_without_keys_logs_once_which_clients_can_reach_the_instance(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'tenure.db'}"
    for flags, expected in (((), "this machine"), ((*EVERYWHERE, "--insecure", "--workers", "2"), "every client")):
        instance = RunningInstance(database, tmp_path, *flags)
        try:
            instance.wait_until_ready()
            for _ in range(200):
                if opened(instance):
                    break
                instance.process.poll()
                httpx.get(f"http://127.0.0.1:{instance.port}/healthz")
            assert [line["reachable_by"] for line in opened(instance)] == [expected]
        finally:
            kill_all([instance])
