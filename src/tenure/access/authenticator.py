"""Identifies callers by their credentials: API keys, session tokens, and the tokens of an OIDC issuer.

The form of a credential decides how it is checked:

- `tnr_…` is an API key. It is looked up in the database. A key that was used before is found in a cache.
- `tns_…` is a session token. It is verified with a signing key of the installation (`domain/session_tokens.py`), which
  needs no database look-up. A token that was used before is found in a cache. Without this cache, a tenth of the time
  of a heartbeat would go into the verification.
- Anything else is the token of an OIDC issuer, if one is configured (`oidc.py`). A token that was used before is found
  in a cache.

## API keys and signing keys

Every instance caches the results of its look-ups: the callers of valid keys, and the keys that it has refused. In the
database, each change of keys increases a version (`KeysVersion`). A task reads this version every second, and soon
after a notification of a change. If the version has changed, the instance drops its cache. The same read returns the
signing keys of session tokens, which replace those of the previous read. Guarantees, in which "cache" includes the
signing keys:

- **A change takes effect within two seconds** while the database is available. The cache is trusted for TRUST_SECONDS
  after the *start* of the last successful read of the version. After that, a request waits for the next read. So an
  instance that was paused, or whose task is late, does not accept a key that was revoked in the meantime.
- **A revoked key does not become valid again.** A look-up that began before the cache was dropped does not write to the
  cache.
- **While the database is unavailable,** that is, after a failed read, the cache is trusted for `grace_seconds` after
  the last successful read. After that time, every request that needs a caller gets 503. An instance that has never read
  the version answers 503 too. A request with a key that is not in the cache gets 503 even during the grace, because the
  key cannot be looked up.
- **A key expires at its `expires_at`** by the database's clock, which the instance estimates between two reads of the
  version.
- **If no key was ever created** (version 0), and no OIDC issuer is configured, every caller is anonymous and may do
  everything, for as long as the version is trusted.
- **A signing key stops verifying tokens** when it expires, and within the same two seconds after it was deleted.
- **An unknown public id costs as much as a wrong secret:** one look-up by primary key, one hash, one comparison in
  constant time. A key with a wrong checksum costs none of them.

The caches are keyed by the whole value of the header. They contain only values that have the form of a credential, so
the size of an entry is limited. The number of entries is limited too. Keys, refused keys, session tokens and OIDC
tokens each have their own cache, so that a flood of refused keys or of tokens does not evict valid keys. Refused tokens
are not cached. The raw values are secrets: they are never logged, nor part of a `repr` or an error.

A request without an Authorization header may have its credential in the sign-in cookie (`cookies.py`). The credential
is then looked up in the same caches. Cookies do not slow busy routes down: most of their requests have the header, and
an instance whose callers need no credential does not read cookies.

The instance notes the last use of a key in the cache entry of the key. A second task writes the last uses to the
database once a minute, so no request waits for this write.

## Tokens of an OIDC issuer

OIDC tokens need the database only because they expire by the database's clock. But the limit of `grace_seconds` applies
to them too: after the grace, a request with an OIDC token gets 503 like a request with any other credential. So an
instance without a database treats all callers alike.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from datetime import datetime
from itertools import islice
from typing import TypeVar

from tenure.access.caller import ANONYMOUS, Caller, CallerKind, KnownCaller
from tenure.access.cookies import credential_in_cookie
from tenure.access.oidc import SCHEME, OidcVerifier
from tenure.clock import ServerClock, boottime, from_microseconds, to_microseconds
from tenure.domain.keys import KEY_PREFIX, ApiKey, KeysVersion, Role, StoredKey, parse_key
from tenure.domain.scope import Scope
from tenure.domain.session_tokens import TOKEN_PREFIX, SigningKey, parse_session_token, signer_of
from tenure.errors import DatabaseUnavailable, Overloaded, Unauthenticated, Unavailable
from tenure.store.contract.keys import KeyStore
from tenure.store.limits import BATCH_MAX
from tenure.telemetry.events import (
    AccessKeysChanged,
    AccessRefreshFailed,
    AccessSigningKeysChanged,
    AccessSuspended,
    Telemetry,
)

REFRESH_SECONDS = 1.0
TRUST_SECONDS = 2.0
"""How long the cache is trusted after the start of the last successful read of the version."""
AWAY_SECONDS = 3.0
"""The longest time for which the cache is trusted after a failed read. The next read ends within this time: it begins
after REFRESH_SECONDS, and the store returns or fails within two seconds."""
SHORTEST_PAUSE_SECONDS = 0.02
"""The shortest time between two reads of the version, however many notifications arrive."""
LAST_USE_SECONDS = 60.0
CACHE_MAX = 10_000
"""The maximum number of entries in each of three caches: valid keys, refused keys and session tokens. The oldest entry
makes room for a new one. A valid key or a session token takes about 500 bytes."""
LOOK_UPS_MAX = 1024
"""The most keys that are looked up at the same time."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

_AUTHORIZATION = b"authorization"
_SCHEME = SCHEME.lower()
_API_KEY = f"{KEY_PREFIX}_".encode()
_SESSION_TOKEN = TOKEN_PREFIX.encode()
_NO_DIGEST = bytes(32)
_INVALID = "the API key is not valid"
_INVALID_TOKEN = "the session token is not valid"  # noqa: S105 - a message
MICROSECONDS = 1_000_000


class Authenticator:
    """Every read of the version sets `clock` to the database's time. `oidc` must read the same clock."""

    def __init__(
        self,
        store: KeyStore,
        telemetry: Telemetry,
        grace_seconds: float,
        clock: ServerClock | None = None,
        oidc: OidcVerifier | None = None,
    ) -> None:
        self._store = store
        self._telemetry = telemetry
        self._grace_seconds = grace_seconds
        self._clock = ServerClock() if clock is None else clock
        self._oidc = oidc
        self._version: int | None = None
        self._reads_cookies = True
        """Whether callers need a credential, as far as this instance knows."""
        self._read_at = 0.0
        """The start of the last successful read of the version, by `boottime`."""
        self._failed_at = float("-inf")
        self._trusted_until = float("-inf")
        self._suspended = False
        self._generation = 0
        """How many times the cache was dropped."""
        self._signing_keys: dict[bytes, SigningKey] = {}
        """The signing keys by their ids, which tokens contain."""
        self._sign: Callable[[str], str] | None = None
        self._session_tokens: dict[bytes | None, KnownCaller] = {}
        self._oidc_tokens: dict[bytes | None, KnownCaller] = {} if oidc is None else oidc.verified
        self._known: dict[bytes | None, KnownCaller] = {}
        self._refused: dict[bytes, None] = {}
        self._uses: dict[str, float] = {}
        """Last uses that must still be written and are not in the cache: their keys have left it, or a write failed."""
        self._look_ups: dict[bytes, asyncio.Task[KnownCaller | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    def identify(self, headers: Sequence[tuple[bytes, bytes]]) -> Caller | Awaitable[Caller]:
        """Returns the caller of a request, or an awaitable if identifying the caller takes I/O.

        Raises `Unauthenticated`, `Forbidden` or `Unavailable`.
        """
        value = None
        for name, content in headers:
            if name == _AUTHORIZATION:
                if value is not None:
                    raise Unauthenticated("the request has more than one Authorization header")
                value = content
        if value is None and self._reads_cookies:
            value = _cookie_as_authorization(headers)
        # The hot path. `identify_value` gives the same result, but takes more function calls and verifies tokens again.
        known = self._known.get(value) or self._session_tokens.get(value) or self._oidc_tokens.get(value)
        if known is not None and (now := boottime()) < self._trusted_until:
            expires = known.expires_microseconds
            if expires is None or self._clock.now_microseconds() < expires:
                known.used_at = now
                return known.caller
        now = boottime()
        if now >= self._trusted_until:
            # The next read may show that the first key was created. From then on, the credential in a cookie counts.
            return self._identify_after_refresh(_cookie_as_authorization(headers) if value is None else value)
        return self._identify_now(value, now)

    def identify_value(self, authorization: bytes | None) -> Caller | Awaitable[Caller]:
        """Like `identify`, for the value of an Authorization header; None if there is no credential."""
        now = boottime()
        if now >= self._trusted_until:
            return self._identify_after_refresh(authorization)
        return self._identify_now(authorization, now)

    def seconds_left(self, caller: Caller) -> float | None:
        """Returns for how long the credential of this caller stays valid; None if it does not expire."""
        if caller.expires_at is None:
            return None
        return (to_microseconds(caller.expires_at) - self._clock.now_microseconds()) / MICROSECONDS

    @property
    def database_now(self) -> datetime:
        """The database's time, estimated from the last read. Valid only after a caller has been identified."""
        return from_microseconds(self._clock.now_microseconds())

    @property
    def is_open(self) -> bool:
        """Whether callers need no credential: no key was ever created, as far as this instance knows, and no OIDC
        issuer is configured.
        """
        return self._version == 0 and self._oidc is None

    def token_signer(self) -> Callable[[str], str]:
        """Returns the function that makes the token of a session id. Raises `Unavailable` without a signing key."""
        if self._sign is None:
            raise Unavailable("there is no key to sign session tokens; `tenure keys rotate-signing-key` creates one")
        return self._sign

    async def run(self) -> None:
        """Keeps the cache up to date and writes last uses, until cancelled. After that, call `save_last_uses` once."""
        if self._oidc is not None:
            self._oidc.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_fresh())
                tasks.create_task(self._keep_last_uses())
        finally:
            if self._oidc is not None:
                await self._oidc.stop()

    def wake(self) -> None:
        """Makes the task of `run` read the version soon. Subscribe this method to `Topic.KEYS`."""
        self._woken.set()

    async def refresh(self) -> None:
        """Reads the version now, or waits for the read in progress. Does not raise if the database is unavailable."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_version(), context=Context())
        # Shielded, because other requests may wait for the same read.
        await asyncio.shield(self._reading)

    async def reread(self) -> None:
        """Starts a new read of the version and waits for it. A read in progress may predate the latest change."""
        if self._reading is not None:
            await asyncio.shield(self._reading)
        await self.refresh()

    async def load(self) -> None:
        """Reads the version for the first time. Raises `DatabaseUnavailable` if it cannot be read."""
        if self._version is None:
            await self.reread()
        if self._version is None:
            raise DatabaseUnavailable("the API keys cannot be read")

    async def save_last_uses(self) -> None:
        """Writes the last uses. If the database is unavailable, keeps them for the next call."""
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
        if not self._version and self._oidc is None:
            return ANONYMOUS
        if authorization is None:
            raise Unauthenticated("the request has no credential", missing=True)
        if authorization[: len(_SCHEME)].lower() != _SCHEME or not authorization.isascii():
            raise Unauthenticated("the Authorization header contains no bearer credential")
        credential = authorization[len(_SCHEME) :]
        if credential.startswith(_SESSION_TOKEN):
            return self._holder_of(authorization, credential)
        if self._oidc is not None and not credential.startswith(_API_KEY):
            return self._oidc.verify(authorization)
        if authorization in self._refused:
            raise Unauthenticated(_INVALID)
        key = parse_key(credential.decode("ascii"))
        if key is None:
            raise Unauthenticated("the Authorization header contains no well-formed credential")
        return self._look_up(authorization, key)

    def _holder_of(self, authorization: bytes, credential: bytes) -> Caller:
        """Returns the caller of a session token, without a database query. The operation that the caller requests
        checks whether the session has ended.
        """
        token = parse_session_token(credential)
        key = None if token is None else self._signing_keys.get(token.key_id)
        if token is None or key is None or self._has_expired(key) or not token.is_signed_with(key.secret):
            raise Unauthenticated(_INVALID_TOKEN)
        session_id = token.session_id
        subject = f"session-token:{session_id}"
        caller = Caller(CallerKind.SESSION_TOKEN, subject, subject, None, session_id=session_id)
        _make_room(self._session_tokens)
        expires = None if key.expires_at is None else to_microseconds(key.expires_at)
        self._session_tokens[authorization] = KnownCaller(caller, expires)
        return caller

    def _has_expired(self, key: SigningKey) -> bool:
        expires_at = key.expires_at
        return expires_at is not None and self._clock.now_microseconds() >= to_microseconds(expires_at)

    def _use(self, known: KnownCaller, now: float) -> Caller:
        expires = known.expires_microseconds
        if expires is not None and self._clock.now_microseconds() >= expires:
            raise Unauthenticated(_INVALID)
        known.used_at = now
        return known.caller

    async def _identify_after_refresh(self, authorization: bytes | None) -> Caller:
        # Twice: a read in progress may have begun before this process was paused. Its result is already too old then.
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

    def _on_found(self, authorization: bytes, task: asyncio.Task[KnownCaller | None]) -> None:
        del self._look_ups[authorization]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio logs nothing if all waiting requests were cancelled

    async def _find(self, authorization: bytes, key: ApiKey) -> KnownCaller | None:
        generation = self._generation
        found = await self._store.find_key(key.public_id)
        known = self._checked(key, found)
        # If the cache was dropped during the look-up, keys have changed, and the row may be older than the change.
        if generation == self._generation:
            if known is None:
                _make_room(self._refused)
                self._refused[authorization] = None
            else:
                self._remember(authorization, known)
        return known

    def _checked(self, key: ApiKey, found: StoredKey | None) -> KnownCaller | None:
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
        return KnownCaller(caller, None if found.expires_at is None else to_microseconds(found.expires_at))

    # The cache.

    def _remember(self, authorization: bytes, known: KnownCaller) -> None:
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
        """Remembers a use that is not written yet. Ignores it if uses of CACHE_MAX other keys are waiting already."""
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
            except Exception as error:  # noqa: BLE001 - reported; an unwritten use must not stop the service
                self._telemetry.report(AccessRefreshFailed(error))

    async def _read_version(self) -> None:
        started = boottime()
        try:
            found = await self._store.read_keys_version()
        except Exception as error:  # noqa: BLE001 - after any error, the cache is trusted for a limited time
            if not isinstance(error, DatabaseUnavailable):
                self._telemetry.report(AccessRefreshFailed(error))
            self._on_unavailable()
        else:
            self._clock.set(found.now)
            self._on_version(found, started)
        finally:
            self._reading = None

    def _on_version(self, found: KeysVersion, started: float) -> None:
        signing_keys = {bytes.fromhex(key.key_id): key for key in found.signing_keys}
        if signing_keys != self._signing_keys:
            self._use_signing_keys(signing_keys)
        if found.version != self._version:
            self._drop_cache()
            if self._version is not None:
                self._telemetry.report(AccessKeysChanged(found.version))
        self._version = found.version
        self._reads_cookies = not self.is_open
        self._read_at = started
        self._trusted_until = started + TRUST_SECONDS
        self._suspended = False

    def _use_signing_keys(self, signing_keys: dict[bytes, SigningKey]) -> None:
        if self._version is not None:
            self._telemetry.report(AccessSigningKeysChanged([key.key_id for key in signing_keys.values()]))
        self._signing_keys = signing_keys
        self._session_tokens.clear()
        current = [key for key in signing_keys.values() if key.expires_at is None]
        self._sign = signer_of(current[0]) if current else None

    def _on_unavailable(self) -> None:
        self._failed_at = boottime()
        if self._version is None:
            return
        grace_ends = self._read_at + self._grace_seconds
        self._trusted_until = min(self._failed_at + AWAY_SECONDS, grace_ends)
        if self._failed_at >= grace_ends and not self._suspended:
            self._suspended = True
            self._telemetry.report(AccessSuspended(self._failed_at - self._read_at))


def _cookie_as_authorization(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    cookie = credential_in_cookie(headers)
    return None if cookie is None else SCHEME + cookie


def _make_room(cache: dict[KeyT, ValueT]) -> ValueT | None:
    """Removes the oldest entry if the cache is full, and returns it."""
    return cache.pop(next(iter(cache))) if len(cache) >= CACHE_MAX else None
