"""A client that posts an intent to one node, leader or follower, and waits for up to a minute until it is submitted.

    python examples/coming_from/submission_manager/client.py --url http://127.0.0.1:8080

`--intent ID` posts the intent under your own id: a request with the same id is a repetition of the same intent. An API
key in `TENURE_KEY` needs only the role `client`, because the client polls the state by posting the intent again.

The client sends and reads snake_case, and sends fields that Tenure does not know. So the instance needs
`json_case = "snake"` and `unknown_fields = "ignore"`; see docs/coming-from/submission-manager.md.
"""

import argparse
import json
import os
import sys
import time
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

TIMEOUT_SECONDS = 10
WAIT_SECONDS = 60


def main() -> int:
    parser = argparse.ArgumentParser(description="Posts an intent and waits until it is submitted.")
    parser.add_argument("--url", default=os.environ.get("TENURE_URL", "http://127.0.0.1:8080"), help="[TENURE_URL]")
    parser.add_argument("--intent", default=f"intent-{uuid4()}", help="the id of the intent  [a new one]")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until the intent is submitted")
    arguments = parser.parse_args()
    print(readiness(arguments.url))
    payload = {"intent_id": arguments.intent, "order": 4711, "seats": 3}
    intent = post_intent(arguments.url, arguments.intent, payload)
    print(arguments.intent, "is submission", intent["submission_id"])
    deadline = time.monotonic() + WAIT_SECONDS
    while intent["state"] == "pending" and not arguments.no_wait:
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.2)
        intent = post_intent(arguments.url, arguments.intent, payload)
    print(intent["state"])
    return 0


def readiness(url: str) -> str:
    """Returns the role of the instance and the lease of the leader as one line, in the format of the service that
    Tenure replaces, for example `mode=follower holder_id=node-2 lease_expires_at=… leader_id=node-1`.
    """
    return call(Request(f"{url}/readyz", headers={"Accept": "text/plain"})).decode().strip()  # noqa: S310 - the user's URL


def post_intent(url: str, intent_id: str, payload: dict[str, Any]) -> dict[str, Any]:
    body = {"gateway": "orders", "payload": payload, "intent_id": intent_id, "priority": "normal"}
    # Send the id of the intent as the request id, too. Tenure shows the request id with the submission, so people can
    # find the submission by the id of the intent.
    headers = {"Content-Type": "application/json", "Idempotency-Key": intent_id, "X-Request-ID": intent_id}
    request = Request(f"{url}/submissions", json.dumps(body).encode(), headers, method="POST")  # noqa: S310
    return dict(json.loads(call(request)))


def call(request: Request) -> bytes:
    if key := os.environ.get("TENURE_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        return bytes(response.read())


if __name__ == "__main__":
    sys.exit(main())
