"""Traces of a real process, received and decoded by a collector in the test."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.http.client import open_body
from tests.http.local import eventually
from tests.support.collectors import CollectedSpan, Collector, collector
from tests.support.instances import RunningInstance, kill_all
from tests.support.odd_receivers import TOKEN, OddReceiver, http_response, odd_receiver

SERVER, CLIENT = 2, 3
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OTHER_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
REQUEST_ID = "customer-asks-about-this"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PAYLOAD = "hunter2-payload"


def traced(folder: Path, endpoint: str, receiver: OddReceiver) -> RunningInstance:
    gateway = {"crm": {"url": receiver.address, "secret": SECRET}}
    return RunningInstance(
        f"sqlite:///{folder / 'tenure.db'}",
        folder,
        "--log-level",
        "debug",
        TENURE_LOGS__ACCESS="true",
        TENURE_GATEWAYS=json.dumps(gateway),
        TENURE_TRACES__HEADERS='{"x-token": "of-the-collector"}',
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=endpoint,
        OTEL_SERVICE_NAME="seats",
        TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS="1",
        OTEL_BSP_SCHEDULE_DELAY="100",
    )


def lines(instance: RunningInstance, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in instance.log().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


async def use(http: httpx.AsyncClient) -> tuple[str, str, httpx.Response]:
    """Submits two payloads with the same idempotency key, both with REQUEST_ID, and opens sessions concurrently. Then
    sends a request whose caller does not record its trace.

    Returns the API key of the requests, the id of the accepted submission, and the response to the refused one.
    """
    key = (await http.post("/keys", json={"name": "web", "role": "operator"})).json()["key"]
    http.headers["Authorization"] = f"Bearer {key}"
    named = {"X-Request-ID": REQUEST_ID, "traceparent": f"00-{TRACE}-{SPAN}-01", "Idempotency-Key": "k"}
    submitted = await http.post("/submissions", json={"gateway": "crm", "payload": PAYLOAD}, headers=named)
    assert submitted.status_code == 202, submitted.text
    refused = await http.post("/submissions", json={"gateway": "crm", "payload": "other"}, headers=named)
    parent = {"traceparent": f"00-{OTHER_TRACE}-{SPAN}-01"}
    opens = [http.put("/sessions", json=open_body(), headers=parent) for _ in range(8)]
    assert {response.status_code for response in await asyncio.gather(*opens)} == {201}
    unsampled = {"traceparent": f"00-{'b' * 32}-{SPAN}-00", "X-Request-ID": "not-sampled"}
    await http.get("/sessions/metrics", headers=unsampled)
    return key, submitted.json()["submissionId"], refused


async def test_request_id_is_in_logs_problem_submission_attempt_and_trace(tmp_path: Path) -> None:
    with collector() as collected:
        async with odd_receiver(http_response("200 OK")) as receiver:
            instance = traced(tmp_path, collected.endpoint, receiver)
            try:
                instance.wait_until_ready()
                async with httpx.AsyncClient(base_url=instance.address, timeout=30, verify=False) as http:
                    key, submission_id, refused = await use(http)
                    await eventually(lambda: bool(receiver.received))
                    await eventually(lambda: bool(lines(instance, "submission.attempt_ended")))
                    shown = (await http.get(f"/submissions/{submission_id}")).json()
                await eventually(lambda: any(span.name.startswith("job ") for span in collected.spans))
            finally:
                instance.process.terminate()
                instance.process.wait(20)
                kill_all([instance])

    # The request id is in the access log, the problem, the submission, and the log line of the attempt.
    assert {line["status"] for line in lines(instance, "http.request") if line["request_id"] == REQUEST_ID} == {
        202,
        422,
    }
    assert (refused.status_code, refused.json()["requestId"]) == (422, REQUEST_ID)
    assert shown["requestId"] == REQUEST_ID
    (attempted,) = lines(instance, "submission.attempt_ended")
    assert (attempted["request_id"], attempted["submission_id"]) == (REQUEST_ID, submission_id)

    # The span of each request is a child of the caller's span. The spans of the store operations and of the attempt are
    # children of the spans of the requests.
    followed = [span for span in collected.spans if span.attributes.get("tenure.request_id") == REQUEST_ID]
    assert {span.trace_id for span in followed} == {TRACE}
    by_status = {span.attributes["http.response.status_code"]: span for span in followed if span.kind == SERVER}
    assert {status: span.parent_id for status, span in by_status.items()} == {202: SPAN, 422: SPAN}
    (attempt,) = collected.named("attempt crm")
    assert (attempt.parent_id, attempt.attributes["tenure.submission_id"]) == (by_status[202].span_id, submission_id)
    (request,) = receiver.received
    assert request.header("traceparent") == f"00-{TRACE}-{attempt.span_id}-01"
    stores = [span for span in collected.named("store accept_submissions") if span.trace_id == TRACE]
    assert {span.parent_id for span in stores} == {span.span_id for span in by_status.values()}
    assert {span.kind for span in stores} == {CLIENT}
    check_batches(collected)
    check_jobs(collected)
    assert collected.services == {"seats"}
    assert "not-sampled" not in collected.raw.decode("latin-1")
    for secret in (key, key.rpartition("_")[2], SECRET, TOKEN, PAYLOAD, "Bearer"):
        assert secret.encode() not in collected.raw, secret
    assert b"of-the-collector" in collected.raw


def check_batches(collected: Collector) -> None:
    """The span of each store operation is in the trace of its request and links to the span of its batch. The span of
    the batch is in another trace and links to the spans of its operations.
    """
    found = collected.named("store open_sessions")
    batches = {(span.trace_id, span.span_id): span for span in found if span.trace_id != OTHER_TRACE}
    own = {(span.trace_id, span.span_id): span for span in found if span.trace_id == OTHER_TRACE}
    requests = {span.span_id for span in collected.named("PUT /sessions")}
    assert {span.parent_id for span in own.values()} == requests
    assert len(own) == len(requests) == 8
    assert {link for batch in batches.values() for link in batch.links} == set(own)
    assert {link for span in own.values() for link in span.links} == set(batches)
    assert sum(batch.attributes["db.operation.batch.size"] for batch in batches.values()) == 8


def check_jobs(collected: Collector) -> None:
    """Each run of a job is the root span of a trace, and the store operations of the run are children of this span."""
    runs: dict[str, CollectedSpan] = {span.span_id: span for span in collected.spans if span.name.startswith("job ")}
    assert {span.parent_id for span in runs.values()} == {""}
    assert {span.attributes["tenure.job.outcome"] for span in runs.values()} == {"succeeded"}
    below = {span.name for span in collected.spans if span.parent_id in runs}
    assert "store finish_run" in below


async def test_requests_do_not_wait_for_unreachable_collector(tmp_path: Path) -> None:
    async with odd_receiver(http_response("200 OK")) as receiver:
        instance = traced(tmp_path, "http://127.0.0.1:9/v1/traces", receiver)
        try:
            instance.wait_until_ready()
            async with httpx.AsyncClient(base_url=instance.address, timeout=30, verify=False) as http:
                for _ in range(30):
                    assert (await http.put("/sessions", json=open_body())).status_code == 201
            await eventually(lambda: bool(lines(instance, "traces.not_exported")))
            instance.process.terminate()
            assert instance.process.wait(20) == 0
            assert "v1/traces" not in instance.log()
        finally:
            kill_all([instance])


def test_opentelemetry_is_not_imported_while_traces_are_off() -> None:
    script = (
        "import sys, tenure.cli.main, tenure.server.process as process; from tenure.config import Config;"
        "from tenure.telemetry.events import Telemetry; process.Instance(Config(), Telemetry());"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"
