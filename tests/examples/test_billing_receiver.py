"""`examples/billing_receiver.py` verifies signatures, and counts every delivery once, even after a restart."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tenure.signing import signed_headers
from tests.deployment.proxies import free_port, listens
from tests.support.instances import RunningInstance

EXAMPLE = Path(__file__).parents[2] / "examples" / "billing_receiver.py"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECONDS = 20
TENANT = "0190b0a0-0000-7000-8000-000000000002"
IDS = {
    "userObjectId": "0190b0a0-0000-7000-8000-000000000001",
    "tenantObjectId": TENANT,
    "capacityId": "0190b0a0-0000-7000-8000-000000000003",
    "sessionKind": 3,
}


@contextmanager
def receiver(folder: Path) -> Iterator[str]:
    port = free_port()
    with (folder / "receiver.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(EXAMPLE), str(port), str(folder / "billing.db")],
            env={**os.environ, "BILLING_SECRET": SECRET},
            stderr=log,
        )
    try:
        wait_until(lambda: listens(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def post(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str, str | None]:
    try:
        with urlopen(Request(url, data=body, headers=dict(headers)), timeout=10) as response:
            return response.status, response.read().decode().strip(), response.headers["Tenure-Receipt"]
    except HTTPError as error:
        return error.code, error.read().decode().strip(), None


def sums(url: str) -> dict[str, Decimal]:
    with urlopen(url, timeout=10) as response:
        return {tenant: Decimal(usage) for tenant, usage in json.load(response).items()}


def test_delivery_is_counted_once_with_receipt_and_only_if_signed(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60
    body = json.dumps([{"tenantObjectId": "a", "usage": 0.1}, {"tenantObjectId": "a", "usage": 0.2}]).encode()
    now = int(time.time())
    signed = signed_headers([SECRET], "one", now, body)
    with receiver(tmp_path) as url:
        status, text, receipt = post(url, body, signed)
        assert (status, text) == (200, "counted")
        assert receipt is not None
        assert receipt.startswith("sha256=")
        refused = [
            {},
            {**signed, "webhook-id": "two"},
            signed_headers(["whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"], "two", now, body),
            signed_headers([SECRET], "two", now - 301, body),
            signed_headers([SECRET], "two", now, body + b" "),
        ]
        for headers in refused:
            assert post(url, body, headers)[0] == 401
        assert sums(url) == {"a": Decimal("0.3")}
    with receiver(tmp_path) as url:
        # While the secret is being replaced, a delivery has two signatures: one for each secret.
        again = signed_headers(["whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", SECRET], "one", now, body)
        assert post(url, body, again)[:2] == (200, "already counted")
        assert sums(url) == {"a": Decimal("0.3")}


@pytest.mark.slow
def test_sums_equal_the_usage_that_the_service_delivered(tmp_path: Path, start: Callable[..., RunningInstance]) -> None:
    with receiver(tmp_path) as url:
        gateway = f'[gateways.usages]\nurl = "{url}/usages"\nsecret = "{SECRET}"\n'
        factors = "[usage]\nfactors = { 1 = 1, 2 = 2, 3 = 900000 }\n"
        (tmp_path / "tenure.toml").write_text(f"{gateway}{factors}[jobs.emit-usage]\ninterval_seconds = 1\n")
        instance = start(f"sqlite:///{tmp_path / 'tenure.db'}").wait_until_ready()
        body = json.dumps(IDS).encode()
        request = Request(f"{instance.address}/sessions", data=body, method="PUT")
        request.add_header("Content-Type", "application/json")
        urlopen(request, timeout=10).close()
        wait_until(lambda: sums(url).get(TENANT, Decimal(0)) > 0)
        instance.stop()
        counted = sums(url)[TENANT]
    audit = subprocess.run(
        [sys.executable, "-m", "tenure", "audit", "--json"], cwd=tmp_path, capture_output=True, check=False, timeout=60
    )
    report = json.loads(audit.stdout, parse_float=Decimal)
    assert (audit.returncode, report["findings"]) == (0, [])
    # The instance may have stopped before it recorded a delivery that the receiver has counted.
    assert report["delivered"] <= counted <= report["delivered"] + report["waiting"]
    assert report["chunksWithoutReceipt"] == 0
