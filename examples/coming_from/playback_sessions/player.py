"""A player that keeps its playback session alive with heartbeats, and reads snake_case answers.

    python examples/coming_from/playback_sessions/player.py --url http://127.0.0.1:8080/api/v3 --heartbeats 3

With `--session`, it continues a session that was opened before, for example an imported one. The instance needs the
profile `playback`, `prefix = "/api/v3"` and `json_case = "snake"`; see docs/coming-from/playback-sessions.md.
"""

import argparse
import json
import sys
import time
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

VIEWER = "0190b0a0000070008000000000000009"
ACCOUNT = "0190b0a00000700080000000000000a1"
SUBSCRIPTION = "0190b0a00000700080000000000000c5"
TIMEOUT_SECONDS = 10
GONE, LIMIT = 410, 429


def main() -> int:
    parser = argparse.ArgumentParser(description="Plays: opens a session, sends heartbeats, stops.")
    parser.add_argument("--url", default="http://127.0.0.1:8080/api/v3")
    parser.add_argument("--heartbeats", type=int, default=3)
    parser.add_argument("--pause", type=float, help="seconds between two heartbeats  [as the service returns]")
    parser.add_argument("--session", help="continue this session")
    arguments = parser.parse_args()
    try:
        session_id = arguments.session or start(arguments.url)["session_id"]
        for _ in range(arguments.heartbeats):
            answer = heartbeat(arguments.url, session_id)
            print("alive until", answer["lease_expires_at"])
            time.sleep(answer["heartbeat_interval"] if arguments.pause is None else arguments.pause)
    except HTTPError as refused:
        reasons = {GONE: "the session is over", LIMIT: "all screens of the subscription are taken"}
        print(reasons.get(refused.code, refused))
        return 1
    print(call("DELETE", f"{arguments.url}/sessions/{session_id}")["close_reason"])
    return 0


def start(url: str) -> dict[str, Any]:
    body = {
        "user_object_id": VIEWER,
        "tenant_object_id": ACCOUNT,
        "capacity_id": SUBSCRIPTION,
        "session_kind": 2,
        "device": "tv",  # fields that Tenure does not know, and ignores
        "title_id": "tt-0815",
    }
    session = call("PUT", f"{url}/sessions", body)
    print(session["status"], "heartbeat every", session["heartbeat_interval"], "seconds")
    return session


def heartbeat(url: str, session_id: str) -> dict[str, Any]:
    return call("POST", f"{url}/sessions/{session_id}/heartbeat", {"position_ms": 0, "bitrate": 4500})


def call(method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    content = None if body is None else json.dumps(body).encode()
    request = Request(url, content, {"Content-Type": "application/json"}, method=method)  # noqa: S310 - the user's URL
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        return dict(json.load(response))


if __name__ == "__main__":
    sys.exit(main())
