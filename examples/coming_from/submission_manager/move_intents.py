"""Reads the intents that a submission manager has not submitted yet, and hands them over to Tenure, oldest first.

    python examples/coming_from/submission_manager/move_intents.py old.db --url http://127.0.0.1:8080

First stop the leader of the submission manager. The script sends the id of each intent as its idempotency key. So you
can run the script again with the same API key (`TENURE_KEY`): Tenure does not accept an intent a second time. If Tenure
has failed to deliver an intent of an earlier run, or this intent was cancelled, the script prints the command that
sends the intent again.

An intent that the old leader was sending (SUBMITTING) may have reached its target. The script prints the ids of these
intents and does not move them. Use `--tried` to move them too, if the target recognises intents that it already has.

If the SQLite file of the submission manager (`old.db` above) does not exist, the script creates it from `old.sql`, so
that there is something to move.
"""

import argparse
import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

HERE = Path(__file__).parent
WAITING = """
SELECT intent_id, target, payload, status FROM intents
 WHERE status IN ('PENDING', 'RETRYING', 'SUBMITTING') ORDER BY created_at
"""
TIMEOUT_SECONDS = 10


def main() -> int:
    parser = argparse.ArgumentParser(description="Hands waiting intents over to Tenure.")
    parser.add_argument("old", type=Path, help="the database of the submission manager, an SQLite file")
    parser.add_argument("--url", default=os.environ.get("TENURE_URL", "http://127.0.0.1:8080"), help="[TENURE_URL]")
    parser.add_argument("--tried", action="store_true", help="also hand over intents that were being sent")
    arguments = parser.parse_args()
    is_new = not arguments.old.exists()
    with closing(sqlite3.connect(arguments.old)) as old:
        if is_new:
            old.executescript((HERE / "old.sql").read_text(encoding="utf-8"))
        for intent_id, target, payload, status in old.execute(WAITING):
            if status == "SUBMITTING" and not arguments.tried:
                print(intent_id, "was being sent: look at the target, then repeat with --tried")
                continue
            try:
                submission = submit(arguments.url, intent_id, target, payload)
            except HTTPError as error:
                print(intent_id, "refused:", error.code, error.read().decode(), file=sys.stderr)
                return 1
            print(intent_id, submission["state"])
            if submission["state"] in ("failed", "cancelled"):
                print(intent_id, "is not sent again. To send it: tenure submissions retry", submission["submission_id"])
    return 0


def submit(url: str, intent_id: str, target: str, payload: str) -> dict[str, Any]:
    """Sends the payload as it is stored: the receiver gets the same bytes."""
    body = f'{{"gateway": {json.dumps(target)}, "payload": {payload}}}'.encode()
    # Tenure shows the request id with the submission, so people can find the submission by the id of the intent.
    headers = {"Content-Type": "application/json", "Idempotency-Key": intent_id, "X-Request-ID": intent_id}
    if key := os.environ.get("TENURE_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = Request(f"{url}/submissions", body, headers, method="POST")  # noqa: S310 - the user's URL
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        return dict(json.load(response))


if __name__ == "__main__":
    sys.exit(main())
