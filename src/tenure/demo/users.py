"""A hundred simulated users, with the habits of real ones: they work, upgrade, go idle, crash, and wait for seats."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple
from uuid import UUID

from tenure.demo.story import Story
from tenure_client import AsyncClient, AsyncHeldSession, SessionLost
from tenure_client.errors import SessionLimit, TenureError

SEED = 1
LEASE_SECONDS = 6
IDLE_SECONDS = 5
CRASH_SECONDS = 3
"""The lease of the sessions of users who crash. These sessions request no lease, so they get `lease_seconds` of the
settings of the demonstration."""
START_SECONDS = 4.0
"""The users arrive within this time."""
BASIC, STANDARD, PREMIUM = 1, 2, 3


class Place(NamedTuple):
    """A capacity with its seats."""

    name: str
    capacity_id: UUID
    max_sessions: int | None = None
    when_full: str = "reject"


class User(NamedTuple):
    name: str
    user_id: UUID
    tenant_id: UUID
    place: Place
    habit: Callable[["Crowd", "User"], Awaitable[None]]


class Crowd:
    def __init__(self, client: AsyncClient, story: Story) -> None:
        self._client = client
        self._story = story
        self._random = random.Random(SEED)  # noqa: S311 - no secret
        library = Place("Library", self._id())
        studio = Place("Studio", self._id(), max_sessions=8)
        player = Place("Player", self._id(), max_sessions=6, when_full="evictOldest")
        self.places: Sequence[Place] = [library, studio, player]
        tenants = [self._id() for _ in range(3)]
        habits = [
            *([(library, Crowd.work)] * 40),
            *([(library, Crowd.crash)] * 15),
            *([(library, Crowd.upgrade)] * 12),
            *([(library, Crowd.idle)] * 8),
            *([(studio, Crowd.work)] * 15),
            *([(player, Crowd.work)] * 10),
        ]
        self.users: Sequence[User] = [
            User(f"user-{number:03}", self._id(), self._random.choice(tenants), place, habit)
            for number, (place, habit) in enumerate(habits, start=1)
        ]

    async def run(self) -> None:
        for place in self.places:
            await self._client.capacities.set(
                place.capacity_id, max_sessions=place.max_sessions, when_full=place.when_full
            )
        async with asyncio.TaskGroup() as group:
            for user in self.users:
                group.create_task(self._live(user))

    async def _live(self, user: User) -> None:
        await self._pause(0, START_SECONDS)
        while True:
            try:
                await user.habit(self, user)
            except SessionLimit:
                self._story.refused(user.name, user.place.name)
                await self._pause(1, 3)
            except SessionLost:
                await self._pause(1, 2)
            except TenureError as error:
                self._story.failed(user.name, error)
                await self._pause(1, 2)
            await self._pause(1, 6)

    # The habits: what a user does between opening a session and leaving.

    async def work(self, user: User) -> None:
        """Opens a session, uses it for a while and ends it."""
        kind = self._random.choice((BASIC, BASIC, STANDARD))
        async with self._hold(user, kind) as session:
            for _ in range(self._random.randint(3, 12)):
                session.check()
                await asyncio.sleep(1)

    async def crash(self, user: User) -> None:
        """Disappears without ending the session, so the lease of the session runs out."""
        async with self._client.hold(
            user=user.user_id,
            tenant=user.tenant_id,
            capacity=user.place.capacity_id,
            lease_seconds=None,
            end_on_exit=False,
        ):
            await self._pause(0.5, 2)
        await self._pause(CRASH_SECONDS, 2 * CRASH_SECONDS)

    async def upgrade(self, user: User) -> None:
        """Begins with a basic session, and then upgrades it to a premium one."""
        async with self._hold(user, BASIC):
            await self._pause(1, 3)
            async with self._hold(user, PREMIUM):
                await self._pause(2, 8)

    async def idle(self, user: User) -> None:
        """Sends heartbeats but does not use the session, so its idle limit runs out."""
        async with self._client.hold(
            user=user.user_id,
            tenant=user.tenant_id,
            capacity=user.place.capacity_id,
            kind=STANDARD,
            lease_seconds=LEASE_SECONDS,
            idle_seconds=IDLE_SECONDS,
        ) as session:
            await session.lost

    def _hold(self, user: User, kind: int) -> AbstractAsyncContextManager[AsyncHeldSession]:
        return self._client.hold(
            user=user.user_id,
            tenant=user.tenant_id,
            capacity=user.place.capacity_id,
            kind=kind,
            lease_seconds=LEASE_SECONDS,
        )

    async def _pause(self, least: float, most: float) -> None:
        await asyncio.sleep(self._random.uniform(least, most))

    def _id(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)
