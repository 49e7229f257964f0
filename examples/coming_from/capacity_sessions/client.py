"""An unchanged client of a capacity session service: PascalCase, GUIDs in braces, fields that Tenure does not know.

    python examples/coming_from/capacity_sessions/client.py --url http://127.0.0.1:8080

The instance needs `unknown_fields = "ignore"` in `[http]`; see docs/coming-from/capacity-sessions.md.
"""

import argparse
import json
import sys
from typing import Any
from urllib.request import Request, urlopen

USER = "{0190B0A0-0000-7000-8000-000000000009}"
TENANT = "{0190B0A0-0000-7000-8000-0000000000A1}"
CAPACITY = "{0190B0A0-0000-7000-8000-0000000000C1}"
TIMEOUT_SECONDS = 10


def main() -> int:
    parser = argparse.ArgumentParser(description="Opens, upgrades and ends a capacity session.")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    url = parser.parse_args().url
    basic = put_session(url, kind=1)
    again = put_session(url, kind=1)
    pro = put_session(url, kind=2)
    print(basic["Status"], again["Status"], pro["Status"])
    if (again["SessionId"], pro["PreviousSessionId"]) != (basic["SessionId"], basic["SessionId"]):
        return 1
    ended = call("DELETE", f"{url}/sessions/{pro['SessionId']}")
    print(ended["CloseReason"], "active" if ended["IsActive"] else "over")
    return 0


def put_session(url: str, kind: int) -> dict[str, Any]:
    body = {
        "UserObjectId": USER,
        "TenantObjectId": TENANT,
        "CapacityId": CAPACITY,
        "SessionKind": kind,
        "CorrelationId": "7f3d",  # fields that Tenure does not know, and ignores
        "ClientInfo": {"Version": "4.2", "Machine": "WS-0815"},
    }
    return call("PUT", f"{url}/sessions", body)


def call(method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    content = None if body is None else json.dumps(body).encode()
    request = Request(url, content, {"Content-Type": "application/json"}, method=method)  # noqa: S310 - the user's URL
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        answer = json.load(response)
    # With web defaults, the JSON reader of .NET ignores the case of names. The next line has the same effect.
    return {name[:1].upper() + name[1:]: value for name, value in answer.items()}


if __name__ == "__main__":
    sys.exit(main())
