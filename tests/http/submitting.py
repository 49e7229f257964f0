"""What is submitted over HTTP, and how it is asked for."""

from typing import Any
from uuid import uuid4

import httpx

from tests.http.client import Json
from tests.http.conftest import PARKED
from tests.http.local import LocalService

MEBIBYTE = 1024 * 1024


def key() -> str:
    return f"order-{uuid4()}"


def body(payload: str = "{}", gateway: str = PARKED) -> bytes:
    """With the payload as it stands."""
    return b'{"gateway": "%s", "payload": %s}' % (gateway.encode(), payload.encode())


async def submit(local: LocalService, payload: Any = None, gateway: str = "crm", **headers: str) -> httpx.Response:
    named = {"Idempotency-Key": key(), **headers}
    return await local.http.post("/submissions", json={"gateway": gateway, "payload": payload}, headers=named)


async def accepted(local: LocalService, count: int = 1, gateway: str = "crm") -> list[str]:
    """The ids of so many new ones, oldest first."""
    answers = [await submit(local, number, gateway) for number in range(count)]
    assert {each.status_code for each in answers} <= {202}, [each.text for each in answers]
    return [each.json()["submissionId"] for each in answers]


async def shown(local: LocalService, submission_id: str) -> Json:
    answer = await local.http.get(f"/submissions/{submission_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]
