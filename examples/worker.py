"""A worker that holds a seat while it works, and stops when it loses the seat.

TENURE_URL=http://127.0.0.1:8080 python examples/worker.py --steps 10
"""

import argparse
import sys
import time
from uuid import uuid4

from tenure_client import Client, SessionLost
from tenure_client.errors import SessionLimit

NO_SEAT = 3
LOST = 4


def main() -> int:
    arguments = _arguments()
    try:
        with (
            Client() as client,
            client.hold(
                user=arguments.user, tenant=arguments.tenant, capacity=arguments.capacity, kind=2, lease_seconds=60
            ) as session,
        ):
            print(f"holding {session.id}")
            for step in range(arguments.steps):
                session.check()
                print(f"step {step + 1} of {arguments.steps}, safe for {session.remaining:.0f} s")
                time.sleep(arguments.seconds)
    except SessionLimit as refused:
        print(f"no seat is free; try again in {refused.retry_after} s", file=sys.stderr)
        return NO_SEAT
    except SessionLost as lost:
        print(lost, file=sys.stderr)
        return LOST
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Holds a seat while it works.")
    parser.add_argument("--user", default=str(uuid4()), help="the default of user, tenant and capacity is a new id")
    parser.add_argument("--tenant", default=str(uuid4()))
    parser.add_argument("--capacity", default=str(uuid4()))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a step takes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
