"""A node of the old service that has moved to Tenure. It still sends fields that Tenure does not know.

    python examples/coming_from/applock_sessions/client.py --url http://127.0.0.1:8080

With the old service, the node held a lock of `sp_getapplock` for as long as its connection lived, and renewed an
execution marker. With Tenure, the node sends heartbeats for its session instead. The instance needs
`unknown_fields = "ignore"` in `[http]`; see docs/coming-from/applock-sessions.md.
"""

import argparse
import json
import sys
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

USER = "0190B0A0-0000-7000-8000-000000000009"
TENANT = "0190B0A0-0000-7000-8000-0000000000A1"
RESOURCE = "0190B0A0-0000-7000-8000-0000000000C3"
TIMEOUT_SECONDS = 10
GONE = 410


def main() -> int:
    parser = argparse.ArgumentParser(description="Opens a session, renews it, and ends it.")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    url = parser.parse_args().url
    body = {
        "userObjectId": USER,
        "tenantObjectId": TENANT,
        "capacityId": RESOURCE,
        "sessionKind": 1,
        "nodeName": "NODE-3",  # this and the next two fields: only the old service knows them
        "lockMode": "Exclusive",
        "lockOwner": "Session",
    }
    session = call("PUT", f"{url}/sessions", body)
    print(session["status"], "renew every", session["heartbeatInterval"], "seconds")
    renew_marker(url, session["sessionId"])
    call("DELETE", f"{url}/sessions/{session['sessionId']}")
    try:
        renew_marker(url, session["sessionId"])
    except HTTPError as refused:
        print("over" if refused.code == GONE else refused.code)
    return 0


def renew_marker(url: str, session_id: str) -> None:
    """Replaces `UPDATE ExecutionMarkers SET RenewedAtUtc = SYSUTCDATETIME()`. Fails with 410 once the session ended."""
    call("POST", f"{url}/sessions/{session_id}/heartbeat")


def call(method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    content = None if body is None else json.dumps(body).encode()
    request = Request(url, content, {"Content-Type": "application/json"}, method=method)  # noqa: S310 - the user's URL
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        return dict(json.load(response))


if __name__ == "__main__":
    sys.exit(main())
