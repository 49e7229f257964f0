"""A client that posts an intent to whichever node answers, leader or follower, and waits until it is submitted.

    python examples/coming_from/submission_manager/client.py --url http://127.0.0.1:8080

It sends and reads snake_case, and sends fields that Tenure does not know: `json_case = "snake"` and
`unknown_fields = "ignore"`; see docs/coming-from/submission-manager.md.
"""

import argparse
import json
import sys
import time
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

TIMEOUT_SECONDS = 10
WAIT_SECONDS = 60


def main() -> int:
    parser = argparse.ArgumentParser(description="Posts an intent and waits until it is submitted.")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    url = parser.parse_args().url
    print(readiness(url))
    accepted = post_intent(url, f"intent-{uuid4()}", {"order": 4711, "seats": 3})
    print(accepted["state"])
    deadline = time.monotonic() + WAIT_SECONDS
    while (intent := call("GET", f"{url}/submissions/{accepted['submission_id']}"))["state"] == "pending":
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.2)
    print(intent["state"], "after", intent["attempt_count"], "attempts")
    return 0


def readiness(url: str) -> str:
    """`mode=follower holder_id=node-2 lease_expires_at=…`, as the other service answered."""
    request = Request(f"{url}/readyz", headers={"Accept": "text/plain"})  # noqa: S310 - the user's URL
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        return str(response.read().decode().strip())


def post_intent(url: str, intent_id: str, payload: dict[str, Any]) -> dict[str, Any]:
    body = {"gateway": "orders", "payload": payload, "intent_id": intent_id, "priority": "normal"}
    return call("POST", f"{url}/submissions", body, {"Idempotency-Key": intent_id})


def call(
    method: str, url: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    content = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    request = Request(url, content, sent, method=method)  # noqa: S310 - the user's URL
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        return dict(json.load(response))


if __name__ == "__main__":
    sys.exit(main())
