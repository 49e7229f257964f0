"""Schemathesis reads `/openapi.json` and generates requests that must not contradict it.

The settings below contain what the schema cannot express: valid cursors; that an ended session can still be read; and
that a request that matches the schema may still be rejected: a heartbeat for a session that has ended, bytes that are
not a WAV file, a gateway that is not configured, a command without a filter, and a span that ends before it begins.
"""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure.domain.sessions import Position
from tenure.http.pages import cursor_of, cursor_of_id, cursor_of_text
from tests.support.instances import RunningInstance

EXAMPLES = 15
BOUND_SECONDS = 90
"""Enough for a busy machine; a quiet one needs a tenth of it."""

CURSOR = cursor_of(Position(datetime(9999, 1, 1, tzinfo=UTC), "00000000-0000-7000-8000-000000000000"))
SETTINGS = f"""
[[operations]]
include-name = "GET /sessions"
parameters = {{ "query.cursor" = "{CURSOR}" }}

[[operations]]
include-name = "GET /leases"
parameters = {{ "query.cursor" = "{cursor_of_text("a-lease")}" }}

[[operations]]
include-name = "GET /jobs"
parameters = {{ "query.cursor" = "{cursor_of_text("a-job")}" }}

[[operations]]
include-name = "GET /jobs/{{name}}/runs"
parameters = {{ "query.cursor" = "{cursor_of_text("99")}" }}

[[operations]]
include-name = "GET /usage/windows"
parameters = {{ "query.cursor" = "{cursor_of_text("99")}" }}

[[operations]]
include-name = "GET /usage"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]

[[operations]]
include-name = "GET /submissions"
parameters = {{ "query.cursor" = "{cursor_of_id("01890000-0000-7000-8000-000000000000")}" }}

[[operations]]
include-name = "POST /submissions"
checks.positive_data_acceptance.expected-statuses = ["2xx", "404", "422"]

[[operations]]
include-name = "POST /submissions/retry"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]

[[operations]]
include-name = "POST /submissions/cancel"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]

[[operations]]
include-name = "POST /sessions/{{sessionId}}/heartbeat"
checks.positive_data_acceptance.expected-statuses = ["2xx", "404", "410"]

[[operations]]
include-name = "POST /transcribe"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]
"""


@pytest.mark.slow
def test_schemathesis_finds_no_failures(service: RunningInstance, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(SETTINGS)
    process = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", "settings.toml", "run"),
            *("--checks", "all", "--exclude-checks", "use_after_free"),
            *("--max-examples", str(EXAMPLES), "--continue-on-failure", "--request-timeout", "10", "--no-color"),
            # Its health checks concern the generation of examples, not the service.
            *("--suppress-health-check", "all"),
            f"{service.address}/openapi.json",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
        check=False,
    )
    assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"
    assert " generated, " in process.stdout, process.stdout
    assert "http.failed" not in service.log()
