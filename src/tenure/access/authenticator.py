"""Identifies callers by their API keys, at the cost of one dictionary look-up for a key that was used before.

Every instance caches what it has found out about keys: the callers of valid keys, and the keys that it has refused. The
database counts the changes of keys (`KeysVersion`). A task reads this version every second, and at once after a
notification. If the version differs from the last one, the instance drops its cache. Guarantees:

- **A change takes effect within two seconds.** The cache is trusted for TRUST_SECONDS after the *start* of the last
  successful read of the version. After that, a request waits for the next read. So an instance that was paused, or
  whose task is late, does not accept a key that was revoked in the meantime.
- **A revoked key does not come back.** A look-up that began before the cache was dropped does not write to the cache.
- **While the database is away,** that is, after a read has failed, the cache is trusted for `grace_seconds` after the
  last successful read. Then every request that needs a caller gets 503. An instance that has never read the version
  answers 503 too. A key that is not in the cache cannot be looked up, which is 503 as well.
- **A key expires at its instant** by the database's clock, estimated between two reads of the version.
- **No key was ever created** (version 0): every caller is anonymous and may do everything, for as long as the version
  is trusted.
- **An unknown public id costs as much as a wrong secret:** one look-up by primary key, one hash, one comparison in
  constant time. A key with a wrong checksum costs none of them.

The cache is keyed by the whole value of the header. It contains only values that have the form of a key, so an entry
has a limited size, and the number of entries is limited. Refused keys have their own cache, so that a flood of wrong
keys does not evict valid ones. The raw values are secrets: they are never logged, nor part of a `repr` or an error.

The last use of a key is noted in its entry, and written by a second task once a minute, off the path of requests.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeVar

import msgspec

from tenure.access.caller import ANONYMOUS, Caller, CallerKind
from tenure.clock import ServerClock, boottime, from_microseconds, to_microseconds
from tenure.domain.keys import ApiKey, Role, StoredKey, parse_key
from tenure.domain.scope import Scope
from tenure.errors import DatabaseUnavailable, Overloaded, Unauthenticated
from tenure.store.contract.keys import KeyStore
from tenure.store.limits import BATCH_MAX
from tenure.telemetry.events import AccessKeysChanged, AccessRefreshFailed, AccessSuspended, Telemetry

REFRESH_SECONDS = 1.0
TRUST_SECONDS = 2.0
"""How long the cache is trusted after the start of the last successful read of the version."""
AWAY_SECONDS = 3.0
"""How long the cache is trusted after a failed read, at most. The next read ends within this time: it begins after
REFRESH_SECONDS, and the store answers or fails within two seconds."""
SHORTEST_PAUSE_SECONDS = 0.02
"""The shortest time between two reads of the version, however many notifications arrive."""
LAST_USE_SECONDS = 60.0
CACHE_MAX = 10_000
"""The most valid keys in the cache, and the most refused ones. The oldest entry makes room for a new one. A valid key
takes about 450 bytes."""
LOOK_UPS_MAX = 1024
"""The most keys that are looked up at the same time."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

_AUTHORIZATION = b"authorization"
_SCHEME = b"bearer "
_NO_DIGEST = bytes(32)
_INVALID = "the API key is not valid"
MICROSECONDS = 1_000_000


class _Known(msgspec.Struct):
    """A valid key in the cache."""

    caller: Caller
    expires_microseconds: int | None
    used_at: float
    """The last use that is not written yet, by `boottime`; 0 if there is none."""


class Authenticator:
    def __init__(self, store: KeyStore, telemetry: Telemetry, grace_seconds: float) -> None:
        self._store = store
        self._telemetry = telemetry
        self._grace_seconds = grace_seconds
        self._clock = ServerClock()
        self._version: int | None = None
        self._read_at = 0.0
        """The start of the last successful read of the version, by `boottime`."""
        self._failed_at = float("-inf")
        self._trusted_until = float("-inf")
        self._suspended = False
        self._generation = 0
        """How often the cache was dropped."""
        self._known: dict[bytes | None, _Known] = {}
        self._refused: dict[bytes, None] = {}
        self._uses: dict[str, float] = {}
        """Last uses that are not written yet, of keys that are no longer in the cache."""
        self._look_ups: dict[bytes, asyncio.Task[_Known | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    def identify(self, headers: Sequence[tuple[bytes, bytes]]) -> Caller | Awaitable[Caller]:
        """Returns the caller of a request, at once if its key is cached. Raises `Unauthenticated` or `Unavailable`."""
        value = None
        for name, content in headers:
            if name == _AUTHORIZATION:
                if value is not None:
                    raise Unauthenticated("the request has more than one Authorization header")
                value = content
        # The hot path: `identify_value` does the same, in more calls.
        known = self._known.get(value)
        if known is not None and known.expires_microseconds is None and (now := boottime()) < self._trusted_until:
            known.used_at = now
            return known.caller
        return self.identify_value(value)

    def identify_value(self, authorization: bytes | None) -> Caller | Awaitable[Caller]:
        """As `identify`, for the value of an Authorization header; None if there is no credential."""
        now = boottime()
        if now >= self._trusted_until:
            return self._identify_after_refresh(authorization)
        return self._identify_now(authorization, now)

    @property
    def is_open(self) -> bool:
        """Whether no key was ever created, as far as this instance knows."""
        return self._version == 0

    async def run(self) -> None:
        """Keeps the cache up to date and writes last uses, until cancelled. Call `save_last_uses` after that."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_fresh())
            tasks.create_task(self._keep_last_uses())

    def wake(self) -> None:
        """Reads the version soon. Subscribe it to `Topic.KEYS`."""
        self._woken.set()

    async def refresh(self) -> None:
        """Reads the version now, or waits for the read in progress. Does not raise if the database is unavailable."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_version())
        # Shielded, because other requests may wait for the same read.
        await asyncio.shield(self._reading)

    async def load(self) -> None:
        """Reads the version for the first time. Raises `DatabaseUnavailable` if it cannot be read."""
        # Twice, because the read in progress may have begun before the tables existed.
        for _ in range(2):
            if self._version is None:
                await self.refresh()
        if self._version is None:
            raise DatabaseUnavailable("the API keys cannot be read")

    async def save_last_uses(self) -> None:
        """Writes the last uses. If the database is unavailable, they are kept for the next time."""
        uses = self._take_uses()
        left = iter(sorted(uses))
        try:
            while batch := list(islice(left, BATCH_MAX)):
                await self._touch({public_id: uses[public_id] for public_id in batch})
                for public_id in batch:
                    del uses[public_id]
        except DatabaseUnavailable:
            for public_id, used_at in uses.items():
                self._note_use(public_id, used_at)

    # Requests.

    def _identify_now(self, authorization: bytes | None, now: float) -> Caller | Awaitable[Caller]:
        known = self._known.get(authorization)
        if known is not None:
            return self._use(known, now)
        if not self._version:
            return ANONYMOUS
        if authorization is None:
            raise Unauthenticated("the request has no credential")
        if authorization in self._refused:
            raise Unauthenticated(_INVALID)
        key = _key_in(authorization)
        if key is None:
            raise Unauthenticated("the Authorization header contains no API key")
        return self._look_up(authorization, key)

    def _use(self, known: _Known, now: float) -> Caller:
        expires = known.expires_microseconds
        if expires is not None and self._clock.now_microseconds() >= expires:
            raise Unauthenticated(_INVALID)
        known.used_at = now
        return known.caller

    async def _identify_after_refresh(self, authorization: bytes | None) -> Caller:
        # Twice, because the read in progress may have begun before this process was paused: its result is too old.
        for _ in range(2):
            if boottime() >= self._trusted_until and boottime() - self._failed_at >= REFRESH_SECONDS:
                await self.refresh()
        now = boottime()
        if now >= self._trusted_until:
            raise DatabaseUnavailable("the API keys cannot be read")
        identified = self._identify_now(authorization, now)
        return identified if isinstance(identified, Caller) else await identified

    async def _look_up(self, authorization: bytes, key: ApiKey) -> Caller:
        task = self._look_ups.get(authorization)
        if task is None:
            if len(self._look_ups) >= LOOK_UPS_MAX:
                raise Overloaded("too many API keys are being looked up")
            task = asyncio.create_task(self._find(authorization, key))
            self._look_ups[authorization] = task
            task.add_done_callback(lambda done: self._on_found(authorization, done))
        # Shielded, because other requests with this key may wait for the same look-up.
        known = await asyncio.shield(task)
        if known is None:
            raise Unauthenticated(_INVALID)
        return self._use(known, boottime())

    def _on_found(self, authorization: bytes, task: asyncio.Task[_Known | None]) -> None:
        del self._look_ups[authorization]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio logs nothing if all waiting requests were cancelled

    async def _find(self, authorization: bytes, key: ApiKey) -> _Known | None:
        generation = self._generation
        found = await self._store.find_key(key.public_id)
        known = self._checked(key, found)
        # If the cache was dropped during the look-up, the row may have been read before the change.
        if generation == self._generation:
            if known is None:
                _make_room(self._refused)
                self._refused[authorization] = None
            else:
                self._remember(authorization, known)
        return known

    def _checked(self, key: ApiKey, found: StoredKey | None) -> _Known | None:
        """Returns None for a key that is unknown, wrong, revoked or expired. Does the same work for all of them."""
        same = hmac.compare_digest(key.digest, _NO_DIGEST if found is None else found.digest)
        now = from_microseconds(self._clock.now_microseconds())
        if found is None or not same or found.role != key.role or not found.is_live(now):
            return None
        caller = Caller(
            CallerKind.KEY,
            found.public_id,
            found.name,
            Role(found.role),
            Scope(tenant=found.tenant_object_id),
            expires_at=found.expires_at,
        )
        return _Known(caller, None if found.expires_at is None else to_microseconds(found.expires_at), 0.0)

    # The cache.

    def _remember(self, authorization: bytes, known: _Known) -> None:
        evicted = _make_room(self._known)
        if evicted is not None:
            self._note_use(evicted.caller.subject, evicted.used_at)
        self._known[authorization] = known

    def _drop_cache(self) -> None:
        for known in self._known.values():
            self._note_use(known.caller.subject, known.used_at)
        self._known.clear()
        self._refused.clear()
        self._generation += 1

    def _note_use(self, public_id: str, used_at: float) -> None:
        """Notes a use that is not written yet. Beyond CACHE_MAX keys, uses are lost, which only delays `last used`."""
        if used_at and (public_id in self._uses or len(self._uses) < CACHE_MAX):
            self._uses[public_id] = max(used_at, self._uses.get(public_id, 0.0))

    def _take_uses(self) -> dict[str, float]:
        for known in self._known.values():
            self._note_use(known.caller.subject, known.used_at)
            known.used_at = 0.0
        taken, self._uses = self._uses, {}
        return taken

    async def _touch(self, uses: Mapping[str, float]) -> None:
        now, now_microseconds = boottime(), self._clock.now_microseconds()
        await self._store.touch_keys(
            {
                public_id: from_microseconds(now_microseconds - int((now - used_at) * MICROSECONDS))
                for public_id, used_at in uses.items()
            }
        )

    # Background tasks.

    async def _keep_fresh(self) -> None:
        while True:
            self._woken.clear()
            await self.refresh()
            await asyncio.sleep(SHORTEST_PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS - SHORTEST_PAUSE_SECONDS):
                    await self._woken.wait()

    async def _keep_last_uses(self) -> None:
        while True:
            await asyncio.sleep(LAST_USE_SECONDS)
            try:
                await self.save_last_uses()
            except Exception as error:  # noqa: BLE001 - reported; the last use must not stop the service
                self._telemetry.report(AccessRefreshFailed(error))

    async def _read_version(self) -> None:
        started = boottime()
        try:
            found = await self._store.read_keys_version()
        except Exception as error:  # noqa: BLE001 - the cache is trusted for a limited time, whatever the error
            if not isinstance(error, DatabaseUnavailable):
                self._telemetry.report(AccessRefreshFailed(error))
            self._on_unavailable()
        else:
            self._clock.set(found.now)
            self._on_version(found.version, started)
        finally:
            self._reading = None

    def _on_version(self, version: int, started: float) -> None:
        if version != self._version:
            self._drop_cache()
            if self._version is not None:
                self._telemetry.report(AccessKeysChanged(version))
        self._version = version
        self._read_at = started
        self._trusted_until = started + TRUST_SECONDS
        self._suspended = False

    def _on_unavailable(self) -> None:
        self._failed_at = boottime()
        if self._version is None:
            return
        grace_ends = self._read_at + self._grace_seconds
        self._trusted_until = min(self._failed_at + AWAY_SECONDS, grace_ends)
        if self._failed_at >= grace_ends and not self._suspended:
            self._suspended = True
            self._telemetry.report(AccessSuspended(self._failed_at - self._read_at))


def _key_in(authorization: bytes) -> ApiKey | None:
    """Returns the key in the value of an Authorization header; None if it contains no well-formed key."""
    if authorization[: len(_SCHEME)].lower() != _SCHEME or not authorization.isascii():
        return None
    return parse_key(authorization[len(_SCHEME) :].decode("ascii"))


def _make_room(cache: dict[KeyT, ValueT]) -> ValueT | None:
    """Removes the oldest entry if the cache is full, and returns it."""
    return cache.pop(next(iter(cache))) if len(cache) >= CACHE_MAX else None
