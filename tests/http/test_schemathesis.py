"""Schemathesis reads `/openapi.json`, generates requests from it, and checks the responses against it.

The settings below contain what the schema cannot express: valid cursors, and the statuses of requests that match the
schema but are refused. Such a request is, for example, a heartbeat for a session that has ended, bytes that are not a
WAV file, a submission to a gateway that is not configured, a command for many submissions without a filter, a time span
that ends before it begins, or an API key whose expiry is in the past. The check `use_after_free` is left out: it
expects 404 after a DELETE, but an ended session can still be read.

The instance is not shared with other tests, because its database contains API keys: a request without a key is refused.
"""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure.domain.keys import Role, new_api_key
from tenure.domain.sessions import Position
from tenure.http.pages import cursor_of, cursor_of_id, cursor_of_text
from tests.http.conftest import PARKED_GATEWAY
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.keys import create_key

Start = type[RunningInstance]
EXAMPLES = {"postgresql": 8, "sqlite": 4, "mssql": 8}
"""Examples per operation. The schema does not depend on the engine, so the runs on the other engines also test it, and
fewer examples are enough for SQLite."""
BOUND_SECONDS = 240
"""The time limit of the run. It suits a busy machine; an idle machine needs an eighth of this time."""

CURSOR = cursor_of(Position(datetime(9999, 1, 1, tzinfo=UTC), "00000000-0000-7000-8000-000000000000"))
SETTINGS = f"""
[checks]
negative_data_rejection.expected-statuses = ["400", "403", "404", "405", "409", "410", "413", "415", "422", "429"]

[[operations]]
include-name = "GET /sessions"
parameters = {{ "query.cursor" = "{CURSOR}" }}
# The order `lapse` refuses this cursor, which belongs to another order.
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]

[[operations]]
include-name = "GET /alerts"
parameters = {{ "query.cursor" = "{CURSOR}" }}

[[operations]]
include-name = "GET /events"
parameters = {{ "query.after" = "latest", "query.wait" = 0, "header.Last-Event-ID" = "latest" }}

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
include-name = "GET /keys"
parameters = {{ "query.cursor" = "{cursor_of_text("4fJ0aQz81LmN")}" }}

[[operations]]
include-name = "POST /keys"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "409"]

[[operations]]
include-name = "GET /audit-log"
parameters = {{ "query.cursor" = "{CURSOR}" }}

[[operations]]
include-name = "GET /activity"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]

[[operations]]
include-name = "GET /instances"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]

[[operations]]
include-name = "GET /leases/history"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]

[[operations]]
include-name = "GET /leases/{{name}}/history"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404"]

[[operations]]
include-name = "GET /sessions/{{sessionId}}/history"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404"]

[[operations]]
include-name = "POST /sessions/end"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]

[[operations]]
include-name = "POST /transcribe"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]
"""


@pytest.mark.slow
async def test_schemathesis_finds_no_failures(database: Database, start: Start, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(SETTINGS)
    key = new_api_key(Role.OPERATOR)
    await create_key(database.store, key)
    # Wrong credentials are not throttled: the run sends many of them, and expects 401 for each.
    settings = {"TENURE_GATEWAYS": PARKED_GATEWAY, "TENURE_ACCESS__FAILURES_PER_MINUTE": "0"}
    service = start(database.url, **settings).wait_until_ready()
    process = subprocess.run(  # noqa: ASYNC221 - nothing else runs in this process
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", "settings.toml", "run"),
            *("--checks", "all", "--exclude-checks", "use_after_free"),
            *(
                "--max-examples",
                str(EXAMPLES[database.engine]),
                "--continue-on-failure",
                "--request-timeout",
                "10",
                "--no-color",
            ),
            # The health checks of Schemathesis concern the generation of examples, not the service.
            *("--suppress-health-check", "all"),
            # Otherwise the run would revoke its own API key.
            *("--exclude-path", "/keys/{publicId}"),
            *("--header", f"Authorization: Bearer {key.text}"),
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
