"""A process that acquires a contested lease as often as it can, and prints every successful call of the store.

Run as `python -m tests.support.lease_contest URL HOLDER TASKS EPOCHS SEED`. The process runs TASKS contestants with the
holders HOLDER-0, HOLDER-1 and so on. Each contestant stops when it sees that the lease has reached epoch EPOCHS, or
after `SECONDS_MAX`. Then the process prints one JSON list of the `LeaseCall`s of all contestants.
"""

import asyncio
import json
import random
import sys
import time
from datetime import datetime
from typing import Any, NamedTuple

from tenure.clock import to_microseconds
from tenure.domain.leases import Lease
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.ids import new_id
from tenure.store.contract import Store
from tenure.store.engines import open_store

NAME = "contested"
SECONDS_MAX = 10.0
DURATIONS = (1, 500, 2_000, 10_000, 100_000)
"""In microseconds. Some leases expire before the response to the acquisition arrives, some expire during a renewal, and
some are held until they are released."""


class LeaseCall(NamedTuple):
    """A successful call: the lease was acquired, renewed or released at `at`, and expires at `until`. Both instants are
    in microseconds since 1970.
    """

    what: str
    holder: str
    epoch: int
    at: int
    until: int


class Contestant:
    def __init__(self, store: Store, holder: str, seed: int) -> None:
        self._store, self._holder = store, holder
        self._random = random.Random(seed)
        self._epoch = 0
        self.calls: list[LeaseCall] = []

    async def contest(self, epochs: int) -> None:
        ends_at = time.monotonic() + SECONDS_MAX
        while self._epoch < epochs and time.monotonic() < ends_at:
            try:
                await self._once()
            except (LeaseLost, DatabaseUnavailable):
                continue

    async def _once(self) -> None:
        length = self._random.choice(DURATIONS)
        acquired = await self._store.acquire_lease(NAME, self._holder, new_id(), length)
        self._epoch = acquired.lease.epoch
        if not acquired.taken:
            return
        self._record("taken", acquired.lease, acquired.lease.acquired_at)
        while self._random.random() < 0.5:
            await asyncio.sleep(self._random.random() * 0.003)
            renewed = await self._store.renew_lease(acquired.lease.fence, self._random.choice(DURATIONS))
            self._record("renewed", renewed, renewed.renewed_at)
        released = await self._store.release_lease(acquired.lease.fence)
        self._record("released", released, released.expires_at)

    def _record(self, what: str, lease: Lease, at: datetime) -> None:
        self.calls.append(
            LeaseCall(what, lease.holder, lease.epoch, to_microseconds(at), to_microseconds(lease.expires_at))
        )


async def contest(url: str, holder: str, tasks: int, epochs: int, seed: int) -> list[Any]:
    store = open_store(url, 8)
    contestants = [Contestant(store, f"{holder}-{number}", seed + number) for number in range(tasks)]
    await asyncio.gather(*(contestant.contest(epochs) for contestant in contestants))
    await store.close()
    return [call for contestant in contestants for call in contestant.calls]


if __name__ == "__main__":
    url, holder, tasks, epochs, seed = sys.argv[1:]
    print(json.dumps(asyncio.run(contest(url, holder, int(tasks), int(epochs), int(seed)))))  # noqa: T201
