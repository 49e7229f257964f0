"""The installation that the doctor examines: its settings, its store, and commands to suggest to the operator."""

import shlex
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from tenure.config import Config
from tenure.config.urls import HIDDEN, without_password
from tenure.domain.events import EVENTS_LEASE
from tenure.domain.instances import Instance
from tenure.domain.jobs import Job
from tenure.domain.keys import StoredKey
from tenure.domain.leases import Lease
from tenure.store.contract import Store

T = TypeVar("T")

PAGE = 500
PAGES_MAX = 20
"""The most pages that are read of each list: jobs, leases, keys and instances."""


def named_database(url: str) -> str:
    """Return the URL without its password, for messages and for suggested commands."""
    return without_password(url).replace(f":{HIDDEN}@", "@")


class Patient:
    def __init__(self, settings: Config, store: Store, flags: Sequence[str] = ()) -> None:
        """`flags` are `--database` and `--config` as given to `tenure doctor`. `command` appends these flags to the
        commands that it returns, so that these commands work on the same installation.
        """
        self.settings = settings
        self.store = store
        self._flags = flags

    @property
    def database(self) -> str:
        """The URL of the database without its password, for messages and commands."""
        return named_database(self.settings.database)

    def command(self, words: str) -> str:
        """Return a command of Tenure that works on the database of this installation."""
        return " ".join(["tenure", words, *map(shlex.quote, self._flags)])

    def psql(self, statement: str) -> str:
        """Return a command that executes a statement in the database of this installation."""
        return f"psql {shlex.quote(self.database)} -c {shlex.quote(statement)}"

    async def jobs(self) -> Sequence[Job]:
        return await _all_pages(self.store.list_jobs, lambda job: job.name)

    async def leases(self) -> Sequence[Lease]:
        return await _all_pages(self.store.list_leases, lambda lease: lease.name)

    async def keys(self) -> Sequence[StoredKey]:
        return await _all_pages(partial(self.store.list_keys, None), lambda key: key.public_id)

    async def instances(self) -> Sequence[Instance]:
        """The instances that are alive."""
        found = await _all_pages(self.store.list_instances, lambda instance: instance.instance)
        return [instance for instance in found if instance.alive]

    async def now(self) -> datetime:
        return (await self.store.read_keys_version()).now

    async def is_running(self) -> bool:
        """Return whether an instance is alive or holds a lease."""
        return any(lease.held for lease in await self.leases()) or bool(await self.instances())

    async def instance_count(self) -> int:
        """Return the number of instances that are alive, but at least the setting `workers`. Each instance has its own
        pool of connections.
        """
        return max(self.settings.workers, len(await self.instances()))

    @property
    def lease_names(self) -> Sequence[str]:
        """The names of the leases that should each be held by some instance, according to these settings."""
        sends_events = any(gateway.events for gateway in self.settings.gateways.values())
        return [self.settings.leases.executor_lease, *([EVENTS_LEASE] if sends_events else [])]


async def _all_pages(
    list_page: Callable[[str | None, int], Awaitable[Sequence[T]]], name_of: Callable[[T], str]
) -> Sequence[T]:
    """Return the items of up to PAGES_MAX pages. Each page begins after the name of the last item before it."""
    found: list[T] = []
    for _ in range(PAGES_MAX):
        page = await list_page(name_of(found[-1]) if found else None, PAGE)
        found += page
        if len(page) < PAGE:
            break
    return found
