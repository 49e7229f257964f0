"""Accepts submissions, on any instance, and lets the executor know."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256

from msgspec.structs import replace

from tenure.coalescer import Coalescer, Done
from tenure.errors import DatabaseUnavailable, GatewayReserved, KeyReused, NotFound, Overloaded
from tenure.ids import new_id
from tenure.model.submissions import RESERVED, Accepted, SubmissionCommand, SubmissionFilter, SubmissionState, Submit
from tenure.store.store import BATCH_MAX, Store
from tenure.submissions.executor import Executor
from tenure.submissions.gateways import Gateway

ANNOUNCE_PAUSE_SECONDS = 0.05
"""Between two hints to other instances, however much is accepted."""
WORTH_ANOTHER = 16
"""Submissions for which a second batch leaves beside the first: they are larger than sessions."""
BATCH_BYTES = 1024 * 1024
WAITING_BYTES = 64 * 1024 * 1024
MEANT_FOR = {
    SubmissionCommand.RETRY: [SubmissionState.FAILED.value],
    SubmissionCommand.CANCEL: [SubmissionState.PENDING.value, SubmissionState.FAILED.value],
}


class Acceptor:
    def __init__(self, store: Store, gateways: Mapping[str, Gateway], executor: Executor) -> None:
        self._store = store
        self._gateways = gateways
        self._announcer = Announcer(store, executor)
        self._coalescer: Coalescer[Submit, Accepted] = Coalescer(self._accept, store.batches_in_flight, WORTH_ANOTHER)
        self._waiting_bytes = 0

    def submit(self, gateway: str, key: str, payload: bytes, done: Done[Accepted]) -> None:
        """`done` gets what is there under the key once it is committed, or what is wrong."""
        contract = self._gateway(gateway).contract
        if self._waiting_bytes + len(payload) > WAITING_BYTES:
            raise Overloaded(f"{self._waiting_bytes} bytes are waiting for the database already")
        wish = Submit(new_id(), gateway, "", key, payload, sha256(payload).digest(), contract)
        self._coalescer.submit(wish, partial(self._tell, len(payload), done))
        self._waiting_bytes += len(payload)

    def _tell(self, size: int, done: Done[Accepted], result: Accepted | Exception) -> None:
        self._waiting_bytes -= size
        if isinstance(result, Accepted) and not result.same:
            result = KeyReused("this Idempotency-Key was used for another payload")
        done(result)

    def _gateway(self, name: str) -> Gateway:
        if name in RESERVED:
            raise GatewayReserved(f"gateway {name} is Tenure's own")
        if name not in self._gateways:
            raise NotFound(f"there is no gateway {name}")
        return self._gateways[name]

    async def _accept(self, wishes: Sequence[Submit]) -> Sequence[Accepted]:
        answers: list[Accepted] = []
        for batch in _batches(wishes):
            answers += await self._store.accept_submissions(batch)
        if any(answer.new for answer in answers):
            self._announcer.tell()
        return answers

    async def command(self, command: SubmissionCommand, submission_ids: Sequence[str]) -> Mapping[str, bool]:
        done = await self._store.command_submissions(command, submission_ids)
        if command is SubmissionCommand.RETRY and any(done.values()):
            self._announcer.tell()
        return done

    async def command_all(self, command: SubmissionCommand, criteria: SubmissionFilter) -> int:
        """All that match; if no state is asked for, those that the command is meant for."""
        states = MEANT_FOR[command] if criteria.state is None else [criteria.state]
        counts = [await self._command_pages(command, replace(criteria, state=state)) for state in states]
        return sum(counts)

    async def _command_pages(self, command: SubmissionCommand, criteria: SubmissionFilter) -> int:
        """Page by page, so that none of it takes longer than a write may."""
        count, before = 0, None
        while True:
            found = await self._store.list_submissions(criteria, before, BATCH_MAX)
            if found:
                done = await self.command(command, [each.submission_id for each in found])
                count += sum(done.values())
            if len(found) < BATCH_MAX:
                return count
            before = found[-1].submission_id


class Announcer:
    """Hints for the executor: at once if it is here, else to all instances, but not for every single submission."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._again = False
        self._announcing: asyncio.Task[None] | None = None

    def tell(self) -> None:
        if self._executor.is_working:
            self._executor.hint()
            return
        self._again = True
        if self._announcing is None:
            self._announcing = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._store.announce_submissions()
                await asyncio.sleep(ANNOUNCE_PAUSE_SECONDS)
        except DatabaseUnavailable:
            pass  # the executor looks by itself, every second
        finally:
            self._announcing = None


def _batches(wishes: Sequence[Submit]) -> Iterator[Sequence[Submit]]:
    """So that no transaction has more to carry than it can in its time."""
    batch: list[Submit] = []
    size = 0
    for wish in wishes:
        if batch and size + len(wish.payload) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(wish)
        size += len(wish.payload)
    yield batch
