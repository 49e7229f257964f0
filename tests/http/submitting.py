"""For tests of submissions over HTTP: makes bodies, submits them, and reads submissions."""

from typing import Any
from uuid import uuid4

import httpx

from tests.http.client import JSON, Json
from tests.http.conftest import PARKED
from tests.http.local import LocalService

MEBIBYTE = 1024 * 1024


def key() -> str:
    return f"order-{uuid4()}"


def body(payload: str = "{}", gateway: str = PARKED) -> bytes:
    """The body of a submission; the payload is inserted unchanged."""
    return b'{"gateway": "%s", "payload": %s}' % (gateway.encode(), payload.encode())


async def submit(local: LocalService, payload: Any = None, gateway: str = "crm", **headers: str) -> httpx.Response:
    """Submits with a new idempotency key unless the headers contain one."""
    named = {"Idempotency-Key": key(), **headers}
    return await local.http.post("/submissions", json={"gateway": gateway, "payload": payload}, headers=named)


async def submit_raw(local: LocalService, content: bytes) -> httpx.Response:
    return await local.http.post("/submissions", content=content, headers=JSON | {"Idempotency-Key": key()})


async def accepted(local: LocalService, count: int = 1, gateway: str = "crm") -> list[str]:
    """Submits `count` payloads and returns the ids of the submissions, oldest first."""
    responses = [await submit(local, number, gateway) for number in range(count)]
    assert {each.status_code for each in responses} <= {202}, [each.text for each in responses]
    return [each.json()["submissionId"] for each in responses]


async def read_submission(local: LocalService, submission_id: str) -> Json:
    response = await local.http.get(f"/submissions/{submission_id}")
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]
