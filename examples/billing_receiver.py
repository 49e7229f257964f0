"""A receiver of usage in 60 lines: verifies each delivery, counts it once, and adds up the usage of each tenant.

BILLING_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw python examples/billing_receiver.py 9090 billing.db
"""

import hmac
import json
import os
import sqlite3
import sys
import time
from base64 import b64decode, b64encode
from collections import defaultdict
from decimal import Decimal
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer

KEY = b64decode(os.environ["BILLING_SECRET"].removeprefix("whsec_"))
TOLERANCE_SECONDS, BODY_MAX_BYTES = 300, 16 << 20
PORT, FILE = sys.argv[1:]
DATABASE = sqlite3.connect(FILE)
DATABASE.execute("CREATE TABLE IF NOT EXISTS deliveries (key TEXT PRIMARY KEY)")
DATABASE.execute("CREATE TABLE IF NOT EXISTS amounts (tenant TEXT, usage TEXT)")


class Receiver(BaseHTTPRequestHandler):
    timeout = 10  # seconds that a sender may be silent

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(length) if length <= BODY_MAX_BYTES else b""
        if not self.is_signed(body):
            return self.answer(401, "the signature is missing, wrong or too old")
        amounts = [(each["tenantObjectId"], str(each["usage"])) for each in json.loads(body, parse_float=Decimal)]
        with DATABASE:  # One transaction: the delivery key and its usage, or neither. The answer follows the commit.
            new = DATABASE.execute("INSERT OR IGNORE INTO deliveries VALUES (?)", [self.headers["webhook-id"]]).rowcount
            DATABASE.executemany("INSERT INTO amounts VALUES (?, ?)", amounts if new else [])
        return self.answer(200, "counted" if new else "already counted", sha256(body).hexdigest())

    def do_GET(self) -> None:
        sums: defaultdict[str, Decimal] = defaultdict(Decimal)
        for tenant, usage in DATABASE.execute("SELECT tenant, usage FROM amounts"):
            sums[tenant] += Decimal(usage)
        self.answer(200, json.dumps({tenant: f"{total:f}" for tenant, total in sums.items()}))

    def is_signed(self, body: bytes) -> bool:
        key, stamp = self.headers.get("webhook-id", ""), self.headers.get("webhook-timestamp", "")
        signature = b64encode(hmac.digest(KEY, f"{key}.{stamp}.".encode() + body, "sha256")).decode()
        given = self.headers.get("webhook-signature", "").split()
        is_fresh = stamp.isdigit() and abs(time.time() - int(stamp)) <= TOLERANCE_SECONDS
        return is_fresh and any(hmac.compare_digest(each, f"v1,{signature}") for each in given)

    def answer(self, status: int, text: str, receipt: str = "") -> None:
        self.send_response(status)
        self.send_header("Tenure-Receipt", f"sha256={receipt}") if receipt else None
        self.end_headers()
        self.wfile.write(f"{text}\n".encode())


HTTPServer(("127.0.0.1", int(PORT)), Receiver).serve_forever()
