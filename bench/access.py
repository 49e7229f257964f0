"""The cost of credentials: requests with an API key, a session token, or an OIDC token that was seen before.

The requests come from two wrk scripts: `created` opens a session with each request, and `heartbeat` renews one of ten
thousand sessions. Baseline: the same scripts without credentials, against a service on another database of the same
server. For session tokens, `created` sends an API key and requests a session token for each session, and `heartbeat`
sends the token of the session that it renews. At the end, an authenticator without a service checks ten thousand
different keys, to measure the memory of its cache.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import RSAKey

from bench import SECONDS, check_bar, measure_pairs, postgres, service, wrk
from heartbeats import SESSIONS
from tenure.access.authenticator import CACHE_MAX, Authenticator
from tenure.domain.audit_log import Actor
from tenure.domain.keys import NewKey, Role, new_api_key
from tenure.domain.session_tokens import SigningKey, session_token
from tenure.store.engines import open_store
from tenure.telemetry.events import Telemetry

KEYS = 10_000
HEARTBEAT_SESSIONS = 10_000
STAFF = "00000000-0000-4000-8000-0000000000bb"
BARS = {"a key": 0.95, "a session token": 0.9, "an OIDC token": 0.9}


def create_key(database: str) -> str:
    command = [*(sys.executable, "-m", "tenure", "keys", "create"), "--name", "bench", "--role", "client"]
    return subprocess.run([*command, "--database", database], check=True, capture_output=True, text=True).stdout.strip()


def save_session_tokens(database: str, file: Path) -> None:
    """Writes the token of each session of `heartbeat.lua`, one per line."""
    key = asyncio.run(signing_key(database))
    ids = (f"00000000-0000-7000-8000-{number:012x}" for number in range(1, HEARTBEAT_SESSIONS + 1))
    file.write_text("".join(f"{session_token(key, session_id)}\n" for session_id in ids), encoding="ascii")


async def signing_key(database: str) -> SigningKey:
    store = open_store(database, 4)
    (key,) = (await store.read_keys_version()).signing_keys
    await store.close()
    return key


@contextlib.contextmanager
def issuer() -> Iterator[tuple[dict[str, str], str]]:
    """Runs an OIDC issuer. Yields the settings of a service that accepts its tokens, and a token of an operator."""
    key = RSAKey.generate_key(2048, {"kid": "bench", "use": "sig"})
    body = json.dumps({"keys": [key.as_dict(private=False)]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "TENURE_OIDC__ISSUER": "https://login.example",
        "TENURE_OIDC__AUDIENCE": "tenure",
        "TENURE_OIDC__JWKS_URL": f"http://127.0.0.1:{server.server_port}/",
        "TENURE_OIDC__STAFF_TENANT": STAFF,
    }
    claims = {"iss": "https://login.example", "aud": "tenure", "sub": "bench", "tid": STAFF, "roles": ["operator"]}
    try:
        yield settings, jwt.encode({"alg": "RS256", "kid": "bench"}, claims | {"exp": int(time.time()) + 86_400}, key)
    finally:
        server.shutdown()


async def cache_megabytes(database: str) -> float:
    """Returns how much memory the cache of the authenticator takes, in MB, after each of KEYS keys was used once."""
    store = open_store(database, 4)
    try:
        keys = [new_api_key(Role.CLIENT) for _ in range(KEYS)]
        for number, key in enumerate(keys):
            new = NewKey(public_id=key.public_id, name=f"key-{number}", role=key.role, digest=key.digest)
            await store.create_key(new, Actor("bench", "bench"))
        authenticator = Authenticator(store, Telemetry(), 300.0)
        await authenticator.refresh()
        values = [(b"authorization", f"Bearer {key.text}".encode()) for key in keys]
        tracemalloc.start()
        for header in values:
            # The authenticator trusts its cache for only two seconds after it has read the version of the keys.
            await authenticator.refresh()
            await asyncio.gather(authenticator.identify([header]))  # type: ignore[arg-type]
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    finally:
        await store.close()
    return used / 1e6


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--seconds", type=int, default=SECONDS)
    given = arguments.parse_args()
    with postgres() as server, issuer() as (oidc, token), tempfile.TemporaryDirectory() as folder:
        open_url, closed_url = server.create_database("open"), server.create_database("closed")
        key, tokens = create_key(closed_url), Path(folder) / "tokens"
        save_session_tokens(closed_url, tokens)
        credentials = {
            "a key": {"key": key},
            "a session token": {"key": key, "WITH_TOKEN": "1", "SESSION_TOKENS": str(tokens)},
            "an OIDC token": {"key": token},
        }
        ratios = {}
        with service(open_url) as without, service(closed_url, **oidc) as closed:
            for database in ("open", "closed"):
                server.sql(database, SESSIONS)
            for script in ("created", "heartbeat"):
                wrk(without.address, script, 2)
                for name, given_by in credentials.items():
                    print(f"{script} with {name}")
                    wrk(closed.address, script, 2, **given_by)
                    ratios[script, name], loads = measure_pairs(
                        lambda: wrk(closed.address, script, given.seconds, **given_by),  # noqa: B023 - called at once
                        lambda: wrk(without.address, script, given.seconds).per_second,  # noqa: B023
                        given.pairs,
                    )
                    if any(load.errors for load in loads):
                        sys.exit(f"some requests with {name} failed")
        megabytes = asyncio.run(cache_megabytes(closed_url))
    for (script, name), ratio in ratios.items():
        check_bar(f"{script} with {name}", ratio, BARS[name])
    check_bar(f"cache of {KEYS} keys, of at most {CACHE_MAX}", megabytes, 20, "MB", at_most=True)


if __name__ == "__main__":
    main()
