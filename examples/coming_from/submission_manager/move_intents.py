"""Hands the intents that were not submitted yet over to Tenure, oldest first.

    python examples/coming_from/submission_manager/move_intents.py old.db --url http://127.0.0.1:8080

Stop the other service's leader first. The id of an intent is its idempotency key, so the script can be repeated: an
intent that was handed over before is not accepted a second time. The file is created from `old.sql` if it does not
exist, so that there is something to move.
"""

import argparse
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from urllib.request import Request, urlopen

HERE = Path(__file__).parent
WAITING = "SELECT intent_id, target, payload FROM intents WHERE status IN ('PENDING', 'RETRYING') ORDER BY created_at"
TIMEOUT_SECONDS = 10


def main() -> int:
    parser = argparse.ArgumentParser(description="Hands waiting intents over to Tenure.")
    parser.add_argument("old", type=Path, help="the database of the other service, a SQLite file")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    arguments = parser.parse_args()
    is_new = not arguments.old.exists()
    with closing(sqlite3.connect(arguments.old)) as old:
        if is_new:
            old.executescript((HERE / "old.sql").read_text(encoding="utf-8"))
        for intent_id, target, payload in old.execute(WAITING):
            print(intent_id, submit(arguments.url, intent_id, target, payload))
    return 0


def submit(url: str, intent_id: str, target: str, payload: str) -> str:
    """Sends the payload as it is stored: the receiver gets the same bytes."""
    body = f'{{"gateway": {json.dumps(target)}, "payload": {payload}}}'.encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": intent_id}
    request = Request(f"{url}/submissions", body, headers, method="POST")  # noqa: S310 - the user's URL
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        return str(json.load(response)["state"])


if __name__ == "__main__":
    sys.exit(main())
