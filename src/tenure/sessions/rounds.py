"""Asking again while somebody else holds a row.

No write waits for a row inside its transaction: the others of its batch would wait with it. It answers that the row is
held, and asks again after a pause. Rows are held for a millisecond mostly, and time bounds the rounds.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from tenure.errors import DatabaseBusy
from tenure.model import Found

ROUNDS_SECONDS = 1.7
SHORTEST_PAUSE_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 0.02


class Answer(Protocol):
    @property
    def found(self) -> Found: ...


A = TypeVar("A", bound=Answer)


class Pauses:
    """None at first, then longer and longer; raises once anyone has waited long enough."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._next = 0.0

    async def pause(self) -> None:
        self.check()
        await asyncio.sleep(self._next)
        self._next = min(self._next * 2 or SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def check(self) -> None:
        if asyncio.get_running_loop().time() - self._since > ROUNDS_SECONDS:
            raise DatabaseBusy(f"others held or changed this session for {ROUNDS_SECONDS:g} seconds")


async def until_free(answer: A, ask: Callable[[], Awaitable[A]], since: float) -> A:
    """The first answer that is not HELD, beginning with `answer`, which was given already."""
    pauses = Pauses(since)
    while answer.found is Found.HELD:
        await pauses.pause()
        answer = await ask()
    return answer
