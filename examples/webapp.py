"""A web app that holds a session per tab: this server opens the session, and the page keeps it alive.

The server has the API key. The page gets a session token, which is valid for that one session only.

TENURE_HTTP__ALLOWED_ORIGINS='["http://127.0.0.1:8000", "http://localhost:8000"]' tenure serve
TENURE_URL=http://127.0.0.1:8080 python examples/webapp.py --port 8000
"""

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import UUID

from tenure_client import Client
from tenure_client.errors import SessionLimit, TenureError

PAGE = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
TENURE_URL = os.environ.get("TENURE_URL", "http://127.0.0.1:8080")
BODY_MAX_BYTES = 1000
LEASE_SECONDS = 30
TENANT = UUID(int=1)
CAPACITY = UUID(int=2)


class App(BaseHTTPRequestHandler):
    client: Client
    timeout = 10

    def do_GET(self) -> None:
        if self.path == "/":
            self.answer(200, PAGE.replace("{{tenure}}", TENURE_URL), "text/html; charset=utf-8")
        else:
            self.answer(404, "{}")

    def do_POST(self) -> None:
        """Open a session for a tab, or return the session that the tab already has."""
        try:
            length = min(int(self.headers.get("Content-Length", "0")), BODY_MAX_BYTES)
            # Here each tab is a user. Your app takes the user from its own sign-in, never from the page.
            user = UUID(json.loads(self.rfile.read(length))["tab"])
        except (ValueError, KeyError, TypeError):
            self.answer(400, json.dumps({"detail": "tab: must be a UUID"}))
            return
        try:
            opened = self.client.sessions.open(
                user=user, tenant=TENANT, capacity=CAPACITY, kind=1, lease_seconds=LEASE_SECONDS, with_token=True
            )
        except SessionLimit:
            self.answer(429, json.dumps({"detail": "all seats are taken"}))
        except TenureError as error:
            self.log_error("%s", error)
            self.answer(502, json.dumps({"detail": "the session service does not answer"}))
        else:
            self.answer(200, json.dumps({"sessionId": opened.session_id, "token": opened.session_token}))

    def answer(self, status: int, text: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description="A web app that holds a session per tab.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seats", type=int, default=2)
    arguments = parser.parse_args()
    with Client(TENURE_URL) as App.client, ThreadingHTTPServer(("127.0.0.1", arguments.port), App) as server:
        App.client.capacities.set(CAPACITY, max_sessions=arguments.seats)
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
