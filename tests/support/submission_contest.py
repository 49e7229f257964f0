"""Executors and callers that compete for the same submissions. Executors begin and finish attempts; callers accept,
cancel and retry submissions.

The command `python -m tests.support.submission_contest URL NAME KEYS SECONDS SEED` first accepts KEYS submissions. All
processes with the same KEYS use the same idempotency keys. Then the process acts as executor and caller for at least
SECONDS. It prints the results of accepting the submissions, and how often each operation happened.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tenure.domain.leases import Fence
from tenure.domain.submissions import BeginAttemptOutcome, SubmissionCommand, SubmitResult
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.ids import new_id
from tenure.store.contract import Store
from tenure.store.engines import open_store
from tests.support.audit_log import ACTOR, draft
from tests.support.open_requests import SECOND
from tests.support.submissions import EXECUTOR, attempt_end, close_orphaned, submit_request

DURATIONS = (5_000, 50_000, 60 * SECOND, 60 * SECOND)
"""The durations of the executors' leases, in microseconds. Some leases expire while they are used; some are held until
they are resigned or released."""
BATCH = 7
PAUSES = (None, 0, 0, 1_000)
"""The pauses before the next attempt, in microseconds. After None there is no next attempt."""
ENOUGH = {"led": 5, "LeaseLost": 3, "begun": 20, "cancel": 5}
"""How often each of these operations and errors must happen in a run. A run with fewer would prove nothing."""
SECONDS_MAX = 20.0


async def accept_keys(store: Store, keys: int, payload: bytes, chance: random.Random) -> list[SubmitResult]:
    """Accepts a submission per idempotency key, in random order; returns the results in the order of the keys."""
    order = chance.sample(range(keys), keys)
    requests = [submit_request(key=f"key {number}", payload=payload) for number in order]
    results = await store.accept_submissions(requests)
    return [result for _number, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]


class Contestant:
    """Makes attempts for the same submissions as all other contestants, and cancels and retries these submissions.

    It runs for at least `seconds`, and then until the counts of `ENOUGH` are reached, but for at most `SECONDS_MAX`.
    """

    def __init__(
        self, store: Store, name: str, seed: int, submission_ids: Sequence[str], did: Counter[str], seconds: float
    ) -> None:
        self._store, self._name, self._ids = store, name, submission_ids
        self._random = random.Random(seed)
        self._did = did
        self._began, self._seconds = time.monotonic(), seconds

    async def execute(self) -> None:
        await self._until_enough(self._lead)

    async def command(self) -> None:
        await self._until_enough(self._command)

    def _is_enough(self) -> bool:
        past = time.monotonic() - self._began
        return past > SECONDS_MAX or (past > self._seconds and all(self._did[what] >= n for what, n in ENOUGH.items()))

    async def _until_enough(self, work: Callable[[], Awaitable[None]]) -> None:
        while not self._is_enough():
            try:
                await work()
            except (LeaseLost, DatabaseUnavailable) as error:
                self._did[type(error).__name__] += 1
            await asyncio.sleep(0.003 * self._random.random())

    async def _lead(self) -> None:
        length = self._random.choice(DURATIONS)
        acquired = await self._store.acquire_lease(EXECUTOR, self._name, new_id(), length)
        if not acquired.taken:
            if self._random.random() < 0.2:
                await self._store.resign_lease(EXECUTOR, ACTOR)
            return
        self._did["led"] += 1
        await close_orphaned(self._store, acquired.lease.fence, 500)
        while self._random.random() < 0.9:
            await self._send(acquired.lease.fence)
        await self._store.release_lease(acquired.lease.fence)

    async def _send(self, fence: Fence) -> None:
        """Begins and finishes attempts. Leaves some attempts open, and begins some batches twice."""
        batch = self._random.sample(self._ids, BATCH)
        early = self._random.sample(batch, 2)
        found = await self._store.begin_attempts(fence, batch, early)
        if self._random.random() < 0.2:
            found = await self._store.begin_attempts(fence, batch, early)
        begun = [each for each in found.attempts if each.found is BeginAttemptOutcome.BEGUN]
        self._did["held"] += sum(each.found is BeginAttemptOutcome.HELD for each in found.attempts)
        self._did["begun"] += len(begun)
        ends = [attempt_end(each.submission_id, each.number or 0, pause_microseconds=self._pause()) for each in begun]
        if ends and self._random.random() < 0.8:
            await self._store.finish_attempts(fence, ends)

    async def _command(self) -> None:
        command = self._random.choice([SubmissionCommand.CANCEL, *[SubmissionCommand.RETRY] * 3])
        await self._store.command_submissions(command, self._random.sample(self._ids, BATCH), None, draft())
        self._did[command.value] += 1

    def _pause(self) -> int | None:
        return self._random.choice(PAUSES)


async def contest(
    stores: Sequence[Store], name: str, seconds: float, seed: int, submission_ids: Sequence[str]
) -> Counter[str]:
    """Runs an executor and a caller for each store. Returns how often each operation and error happened."""
    did: Counter[str] = Counter()
    async with asyncio.TaskGroup() as tasks:
        for number, store in enumerate(stores):
            contestant = Contestant(store, f"{name}-{number}", seed + number, submission_ids, did, seconds)
            tasks.create_task(contestant.execute())
            tasks.create_task(contestant.command())
    return did


async def run(url: str, name: str, keys: int, seconds: float, seed: int) -> dict[str, Any]:
    store = open_store(url, 8)
    chance = random.Random(seed)
    results = await accept_keys(store, keys, chance.choice([b"one", b"other"]), chance)
    did = await contest([store], name, seconds, seed, [result.submission_id for result in results])
    await store.close()
    return {"results": [[result.submission_id, result.same, result.new] for result in results], "did": did}


if __name__ == "__main__":
    url, name, keys, seconds, seed = sys.argv[1:]
    print(json.dumps(asyncio.run(run(url, name, int(keys), float(seconds), int(seed)))))  # noqa: T201
