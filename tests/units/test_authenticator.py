"""The authenticator with a store in memory and clocks that tests move: API keys, session tokens and issuer tokens."""

import asyncio
import inspect
import tracemalloc
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.access import authenticator
from tenure.access.authenticator import (
    CACHE_MAX,
    LAST_USE_SECONDS,
    LOOK_UPS_MAX,
    TRUST_SECONDS,
    Authenticator,
)
from tenure.access.caller import ANONYMOUS, Caller, CallerKind, KnownCaller
from tenure.clock import to_microseconds
from tenure.domain.keys import ApiKey, KeysVersion, Role, StoredKey, new_api_key
from tenure.domain.scope import Scope
from tenure.domain.session_tokens import SigningKey, new_signing_key, session_token
from tenure.errors import DatabaseUnavailable, Overloaded, Problem, Unauthenticated, Unavailable
from tenure.store.limits import BATCH_MAX
from tenure.telemetry.events import (
    AccessKeysChanged,
    AccessRefreshFailed,
    AccessSigningKeysChanged,
    AccessSuspended,
)
from tests.support.open_requests import NOON, some_id
from tests.support.telemetry import RecordedTelemetry

GRACE = 300.0


class ScriptedStore:
    """A store of API keys in memory. A test can make the store unavailable, and delay the results of look-ups."""

    def __init__(self) -> None:
        self.keys: dict[str, StoredKey] = {}
        self.version = 0
        self.now = NOON
        self.signing_keys: tuple[SigningKey, ...] = (new_signing_key(),)
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.found: list[str] = []
        self.version_reads = 0
        self.touched: list[Mapping[str, datetime]] = []

    def add(self, key: ApiKey, **values: Any) -> ApiKey:
        row = {"name": "web", "tenant_object_id": None, "expires_at": None, "last_used_at": None, "revoked_at": None}
        self.keys[key.public_id] = StoredKey(
            public_id=key.public_id,
            role=key.role.value,
            digest=key.digest,
            created_at=NOON,
            created_by="test",
            **{**row, **values},
        )
        self.version += 1
        return key

    def revoke(self, key: ApiKey) -> None:
        del self.keys[key.public_id]
        self.version += 1

    async def find_key(self, public_id: str) -> StoredKey | None:
        self.found.append(public_id)
        row = self.keys.get(public_id)
        if self.gate is not None:
            await self.gate.wait()
        self._check()
        return row

    async def read_keys_version(self) -> KeysVersion:
        self.version_reads += 1
        self._check()
        return KeysVersion(self.version, self.now, self.signing_keys)

    async def touch_keys(self, used_at: Mapping[str, datetime]) -> None:
        self._check()
        self.touched.append(used_at)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


class Bench:
    """An authenticator with its store, and the clocks of host and database, which a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        monkeypatch.setattr(authenticator, "boottime", lambda: self.seconds)
        monkeypatch.setattr("tenure.clock.monotonic", lambda: self.seconds)
        self.store = ScriptedStore()
        self.telemetry = RecordedTelemetry()
        self.authenticator = Authenticator(self.store, self.telemetry, GRACE)  # type: ignore[arg-type]

    def use_oidc(self, oidc: Any) -> None:
        self.authenticator = Authenticator(self.store, self.telemetry, GRACE, oidc=oidc)  # type: ignore[arg-type]

    def token(self, session_id: str | None = None) -> bytes:
        """The value of the header `Authorization`, with a session token that is signed with the newest signing key."""
        return f"Bearer {session_token(self.store.signing_keys[-1], session_id or some_id())}".encode()

    async def pass_time(self, seconds: float) -> None:
        """Moves both clocks second by second, with a refresh in each second, as the background task does."""
        for _ in range(int(seconds)):
            self.move(1.0)
            await self.authenticator.refresh()

    def move(self, seconds: float) -> None:
        self.seconds += seconds
        self.store.now += timedelta(seconds=seconds)

    async def caller(self, key: ApiKey | bytes | None) -> Caller:
        value = bearer(key) if isinstance(key, ApiKey) else key
        headers = [(b"host", b"x"), *([] if value is None else [(b"authorization", value)])]
        identified = self.authenticator.identify(headers)
        return await identified if inspect.isawaitable(identified) else identified  # type: ignore[return-value]

    async def refused(self, key: ApiKey | bytes | None) -> Problem:
        with pytest.raises(Problem) as refused:
            await self.caller(key)
        return refused.value


def bearer(key: ApiKey) -> bytes:
    return f"Bearer {key.text}".encode()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


async def test_every_caller_is_anonymous_before_first_key(bench: Bench) -> None:
    assert await bench.caller(None) == ANONYMOUS
    assert await bench.caller(new_api_key(Role.CLIENT)) == ANONYMOUS


async def test_key_identifies_caller_with_role_tenant_and_expiry(bench: Bench) -> None:
    tenant = some_id()
    expiry = NOON + timedelta(days=1)
    key = bench.store.add(new_api_key(Role.READER), name="dash", tenant_object_id=tenant, expires_at=expiry)
    expected = Caller(CallerKind.KEY, key.public_id, "dash", Role.READER, Scope(tenant), expires_at=expiry)
    assert await bench.caller(key) == expected


async def test_cached_key_is_identified_without_await_or_store(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    caller = await bench.caller(key)
    for _ in range(3):
        assert bench.authenticator.identify([(b"authorization", bearer(key))]) is caller
    assert bench.store.found == [key.public_id]


async def test_refused_key_is_not_looked_up_again(bench: Bench) -> None:
    bench.store.add(new_api_key(Role.CLIENT))
    unknown = new_api_key(Role.CLIENT)
    for _ in range(3):
        assert isinstance(await bench.refused(unknown), Unauthenticated)
    assert bench.store.found == [unknown.public_id]


async def test_refused_key_is_accepted_once_it_exists(bench: Bench) -> None:
    bench.store.add(new_api_key(Role.CLIENT))
    key = new_api_key(Role.CLIENT)
    await bench.refused(key)
    bench.store.add(key)
    await bench.pass_time(1)
    assert (await bench.caller(key)).subject == key.public_id


async def test_malformed_credentials_are_refused_without_look_up(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    text = key.text.encode()
    malformed = [
        None, b"", b"Bearer", b"Bearer ", text, b"Basic " + text, b"Bearer  " + text, b"Bearer " + text + b" ",
        b"Bearer " + text[:-1], b"Bearer " + text[:-1] + b"_", b"Bearer \xff" + text, b"Bearer " + text * 1000,
    ]  # fmt: skip
    for value in malformed:
        problem = await bench.refused(value)
        assert (problem.status, problem.headers) == (401, {"WWW-Authenticate": "Bearer"}), value
    assert bench.store.found == []


async def test_scheme_is_case_insensitive(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    for scheme in ("bearer", "BEARER", "Bearer"):
        assert (await bench.caller(f"{scheme} {key.text}".encode())).subject == key.public_id


async def test_two_authorization_headers_are_refused(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    with pytest.raises(Unauthenticated):
        bench.authenticator.identify([(b"authorization", bearer(key))] * 2)


async def test_key_with_wrong_secret_or_role_is_refused_like_unknown_key(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.READER))
    wrong = [
        ApiKey(key.role, key.public_id, new_api_key(Role.READER).secret),
        ApiKey(Role.OPERATOR, key.public_id, key.secret),
        new_api_key(Role.READER),
    ]
    details = {(await bench.refused(each)).detail for each in wrong}
    assert len(details) == 1
    assert len(bench.store.found) == 3


async def test_secret_is_compared_with_a_digest_even_if_public_id_is_unknown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []
    compare = authenticator.hmac.compare_digest

    def record(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(authenticator.hmac, "compare_digest", record)
    bench.store.add(new_api_key(Role.CLIENT))
    await bench.refused(new_api_key(Role.CLIENT))
    assert compared == [(32, 32)]


async def test_concurrent_requests_with_new_key_share_one_look_up(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    bench.store.gate = asyncio.Event()
    await bench.authenticator.refresh()
    waiting = [asyncio.create_task(bench.caller(key)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    bench.store.gate.set()
    callers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(callers[0], asyncio.CancelledError)
    assert {each.subject for each in callers[1:] if isinstance(each, Caller)} == {key.public_id}
    assert bench.store.found == [key.public_id]


async def test_too_many_look_ups_are_refused(bench: Bench) -> None:
    bench.store.add(new_api_key(Role.CLIENT))
    bench.store.gate = asyncio.Event()
    await bench.authenticator.refresh()
    waiting = [asyncio.create_task(bench.caller(new_api_key(Role.CLIENT))) for _ in range(LOOK_UPS_MAX)]
    await asyncio.sleep(0)
    assert isinstance(await bench.refused(new_api_key(Role.CLIENT)), Overloaded)
    bench.store.gate.set()
    refused = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(each) for each in refused} == {Unauthenticated}
    assert bench.authenticator._look_ups == {}


async def test_first_key_ends_anonymous_access_with_next_refresh(bench: Bench) -> None:
    assert await bench.caller(None) == ANONYMOUS
    bench.store.add(new_api_key(Role.CLIENT))
    await bench.pass_time(1)
    assert isinstance(await bench.refused(None), Unauthenticated)
    assert [event.version for event in bench.telemetry.of(AccessKeysChanged)] == [1]


async def test_credentials_stay_required_after_last_key_is_revoked(bench: Bench) -> None:
    bench.store.revoke(bench.store.add(new_api_key(Role.CLIENT)))
    assert isinstance(await bench.refused(None), Unauthenticated)


async def test_revoked_key_is_refused_after_next_refresh(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    await bench.caller(key)
    bench.store.revoke(key)
    await bench.pass_time(1)
    assert isinstance(await bench.refused(key), Unauthenticated)


async def test_cache_is_dropped_if_version_decreases(bench: Bench) -> None:
    """The version decreases, for example, when a backup is restored."""
    key = bench.store.add(new_api_key(Role.CLIENT))
    bench.store.version = 9
    await bench.caller(key)
    bench.store.keys.clear()
    bench.store.version = 4
    await bench.pass_time(1)
    assert isinstance(await bench.refused(key), Unauthenticated)


async def test_key_is_refused_after_revocation_during_its_look_up(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    await bench.authenticator.refresh()
    bench.store.gate = asyncio.Event()
    slow = asyncio.create_task(bench.caller(key))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.store.found == [key.public_id]
    bench.store.revoke(key)
    await bench.pass_time(1)
    bench.store.gate.set()
    await slow
    assert isinstance(await bench.refused(key), Unauthenticated)


async def test_paused_instance_reads_version_before_it_trusts_its_cache(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    await bench.caller(key)
    bench.store.revoke(key)
    bench.move(TRUST_SECONDS)
    assert isinstance(await bench.refused(key), Unauthenticated)


async def test_read_of_version_that_began_before_pause_is_not_trusted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    await bench.caller(key)
    read, gate = bench.store.read_keys_version, asyncio.Event()

    async def slow_read() -> KeysVersion:
        found = await read()
        await gate.wait()
        return found

    monkeypatch.setattr(bench.store, "read_keys_version", slow_read)
    refreshing = asyncio.create_task(bench.authenticator.refresh())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    bench.store.revoke(key)
    bench.move(TRUST_SECONDS)
    asked = asyncio.create_task(bench.refused(key))
    await asyncio.sleep(0)
    gate.set()
    assert isinstance(await asked, Unauthenticated)
    await refreshing


async def test_key_expires_at_its_instant_by_database_clock(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT), expires_at=NOON + timedelta(seconds=5))
    await bench.caller(key)
    await bench.pass_time(4)
    bench.move(0.999_999)
    await bench.caller(key)
    bench.move(0.000_002)
    assert isinstance(await bench.refused(key), Unauthenticated)
    await bench.authenticator.refresh()
    assert isinstance(await bench.refused(key), Unauthenticated)


async def test_instance_that_never_read_version_returns_503(bench: Bench) -> None:
    bench.store.error = DatabaseUnavailable("gone")
    for _ in range(3):
        assert (await bench.refused(None)).status == 503
        assert (await bench.refused(new_api_key(Role.CLIENT))).status == 503
    # Only the first request reads the version: the others follow less than a second after the failed read.
    assert bench.store.version_reads == 1


async def test_cached_key_is_valid_for_grace_while_database_is_away(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    caller = await bench.caller(key)
    bench.store.error = DatabaseUnavailable("gone")
    await bench.pass_time(GRACE - 1)
    bench.move(0.9)
    assert bench.authenticator.identify([(b"authorization", bearer(key))]) is caller
    bench.move(0.2)
    assert (await bench.refused(key)).status == 503
    assert (await bench.refused(None)).status == 503
    await bench.pass_time(5)
    assert len(bench.telemetry.of(AccessSuspended)) == 1
    bench.store.error = None
    await bench.pass_time(1)
    assert await bench.caller(key) == caller


async def test_key_not_in_cache_gets_503_while_database_is_away(bench: Bench) -> None:
    used, unused = (bench.store.add(new_api_key(Role.CLIENT)) for _ in range(2))
    await bench.caller(used)
    bench.store.error = DatabaseUnavailable("gone")
    await bench.pass_time(1)
    assert (await bench.refused(unused)).status == 503


async def test_revoked_key_stays_refused_while_database_is_unavailable(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    await bench.caller(key)
    bench.store.revoke(key)
    await bench.pass_time(1)
    bench.store.error = DatabaseUnavailable("gone")
    for _ in range(3):
        await bench.pass_time(1)
        assert (await bench.refused(key)).status == 503


async def test_grace_includes_time_in_which_host_was_suspended(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    await bench.caller(key)
    bench.store.error = DatabaseUnavailable("gone")
    bench.move(GRACE)
    assert (await bench.refused(key)).status == 503


async def test_unexpected_error_is_reported_and_counts_as_unavailable(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    await bench.caller(key)
    bench.store.error = ZeroDivisionError("bug")
    await bench.pass_time(1)
    assert (await bench.caller(key)).subject == key.public_id
    assert len(bench.telemetry.of(AccessRefreshFailed)) == 1


async def test_last_use_is_written_once_with_its_time(bench: Bench) -> None:
    key, unused = (bench.store.add(new_api_key(Role.CLIENT)) for _ in range(2))
    await bench.caller(key)
    await bench.pass_time(10)
    await bench.caller(key)
    used_at = bench.store.now
    await bench.pass_time(20)
    await bench.authenticator.save_last_uses()
    await bench.authenticator.save_last_uses()
    assert bench.store.touched == [{key.public_id: used_at}]
    assert unused.public_id not in bench.store.found


async def test_last_use_survives_dropped_cache_and_unavailable_database(bench: Bench) -> None:
    key = bench.store.add(new_api_key(Role.CLIENT))
    await bench.caller(key)
    used_at = bench.store.now
    bench.store.add(new_api_key(Role.CLIENT))
    await bench.pass_time(1)
    bench.store.error = DatabaseUnavailable("gone")
    await bench.authenticator.save_last_uses()
    bench.store.error = None
    await bench.authenticator.save_last_uses()
    assert bench.store.touched == [{key.public_id: used_at}]


async def test_last_uses_are_written_in_batches(bench: Bench) -> None:
    for _ in range(BATCH_MAX + 1):
        bench.store.add(new_api_key(Role.CLIENT))
    for public_id in bench.store.keys:
        bench.authenticator._note_use(public_id, bench.seconds)
    await bench.authenticator.refresh()
    await bench.authenticator.save_last_uses()
    assert [len(each) for each in bench.store.touched] == [BATCH_MAX, 1]


async def test_cache_size_is_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "CACHE_MAX", 50)
    keys = [bench.store.add(new_api_key(Role.CLIENT)) for _ in range(60)]
    for key in keys:
        await bench.caller(key)
        await bench.refused(new_api_key(Role.CLIENT))
    cached = bench.authenticator
    assert (len(cached._known), len(cached._refused), len(cached._uses)) == (50, 50, 10)
    assert bearer(keys[-1]) in cached._known
    assert bearer(keys[0]) not in cached._known


async def test_flood_of_wrong_keys_does_not_evict_valid_key(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "CACHE_MAX", 5)
    key = bench.store.add(new_api_key(Role.CLIENT))
    await bench.caller(key)
    for _ in range(10):
        await bench.refused(new_api_key(Role.CLIENT))
    await bench.caller(key)
    assert bench.store.found.count(key.public_id) == 1


async def test_ten_thousand_keys_take_less_than_ten_megabytes(bench: Bench) -> None:
    keys = [bench.store.add(new_api_key(Role.CLIENT)) for _ in range(200)]
    await bench.authenticator.refresh()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for key in keys:
        await bench.caller(key)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / len(keys) * CACHE_MAX < 10_000_000


async def test_no_repr_or_error_contains_secret(bench: Bench) -> None:
    key, unknown = bench.store.add(new_api_key(Role.CLIENT)), new_api_key(Role.CLIENT)
    caller = await bench.caller(key)
    problem = await bench.refused(unknown)
    malformed = await bench.refused(b"Bearer " + key.text.encode() + b"x")
    shown = repr([caller, bench.authenticator, problem, problem.__dict__, malformed.detail, bench.telemetry.events])
    assert key.secret not in shown
    assert unknown.secret not in shown


# Session tokens.


async def test_session_token_identifies_its_session_without_look_up(bench: Bench) -> None:
    bench.store.add(new_api_key(Role.CLIENT))
    await bench.authenticator.refresh()
    session_id = some_id()
    subject = f"session-token:{session_id}"
    expected = Caller(CallerKind.SESSION_TOKEN, subject, subject, None, session_id=session_id)
    assert bench.authenticator.identify([(b"authorization", bench.token(session_id))]) == expected
    assert bench.authenticator.identify([(b"authorization", bench.token(session_id))]) == expected
    assert bench.store.found == []
    await bench.authenticator.save_last_uses()
    assert bench.store.touched == []


async def test_session_token_is_cached_after_first_verification(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.store.add(new_api_key(Role.CLIENT))
    monkeypatch.setattr(authenticator, "CACHE_MAX", 3)
    tokens = [bench.token() for _ in range(5)]
    for token in tokens:
        await bench.caller(token)
    assert list(bench.authenticator._session_tokens) == tokens[2:]
    with monkeypatch.context() as patched:
        patched.setattr(authenticator, "parse_session_token", None)
        await bench.caller(tokens[-1])


async def test_token_of_unknown_signing_key_and_malformed_token_are_refused(bench: Bench) -> None:
    bench.store.add(new_api_key(Role.CLIENT))
    token = bench.token()
    foreign = f"Bearer {session_token(new_signing_key(), some_id())}".encode()
    for wrong in (
        foreign,
        token[:-1],
        token + b"A",
        token.replace(b"tns_", b"tns-"),
        b"Bearer tns_",
        b"Basic" + token[6:],
    ):
        assert isinstance(await bench.refused(wrong), Unauthenticated), wrong
    assert bench.store.found == []


async def test_token_is_valid_until_its_signing_key_expires_by_database_clock(bench: Bench) -> None:
    bench.store.add(new_api_key(Role.CLIENT))
    old = bench.token()
    await bench.caller(old)
    (first,) = bench.store.signing_keys
    ends = NOON + timedelta(seconds=5)
    bench.store.signing_keys = (replace(first, expires_at=ends), new_signing_key())
    await bench.pass_time(4)
    bench.move(0.999_999)
    await bench.caller(old)
    bench.move(0.000_002)
    assert isinstance(await bench.refused(old), Unauthenticated)
    await bench.caller(bench.token())
    assert [len(event.key_ids) for event in bench.telemetry.of(AccessSigningKeysChanged)] == [2]


async def test_token_of_deleted_signing_key_is_refused_after_refresh_or_pause(bench: Bench) -> None:
    bench.store.add(new_api_key(Role.CLIENT))
    for pause in (1.0, TRUST_SECONDS):
        old = bench.token()
        await bench.caller(old)
        bench.store.signing_keys = (new_signing_key(),)
        bench.move(pause)
        if pause < TRUST_SECONDS:
            await bench.authenticator.refresh()
        assert isinstance(await bench.refused(old), Unauthenticated)
        await bench.caller(bench.token())


async def test_session_token_is_valid_for_grace_while_database_is_away(bench: Bench) -> None:
    bench.store.add(new_api_key(Role.CLIENT))
    token = bench.token()
    await bench.authenticator.refresh()
    bench.store.error = DatabaseUnavailable("gone")
    await bench.pass_time(GRACE - 1)
    assert (await bench.caller(token)).session_id is not None
    assert (await bench.refused(token[:-1])).status == 401
    bench.move(1.1)
    assert (await bench.refused(token)).status == 503


async def test_token_signer_uses_current_key_even_before_first_api_key(bench: Bench) -> None:
    with pytest.raises(Unavailable):
        bench.authenticator.token_signer()
    (first,) = bench.store.signing_keys
    current = new_signing_key()
    bench.store.signing_keys = (replace(first, expires_at=NOON + timedelta(days=1)), current)
    await bench.authenticator.refresh()
    session_id = some_id()
    assert bench.authenticator.token_signer()(session_id) == session_token(current, session_id)
    assert await bench.caller(bench.token()) == ANONYMOUS


# Tokens of an OIDC issuer.


class ScriptedVerifier:
    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.verified: dict[bytes | None, KnownCaller] = {}
        self.runs = 0

    def verify(self, authorization: bytes) -> Caller:
        self.seen.append(authorization)
        caller = Caller(CallerKind.OIDC, "oidc:a", "oidc:a", Role.READER)
        self.verified[authorization] = KnownCaller(caller, to_microseconds(NOON) + 5_000_000)
        return caller

    def start(self) -> None:
        self.runs += 1

    async def stop(self) -> None:
        self.runs -= 1


async def test_format_of_credential_selects_how_it_is_verified(bench: Bench) -> None:
    oidc = ScriptedVerifier()
    bench.use_oidc(oidc)
    key = bench.store.add(new_api_key(Role.CLIENT))
    assert (await bench.caller(key)).kind is CallerKind.KEY
    assert (await bench.caller(bench.token())).kind is CallerKind.SESSION_TOKEN
    assert (await bench.caller(b"Bearer a.b.c")).kind is CallerKind.OIDC
    for wrong in (b"Bearer tnr_x", b"Bearer tns_x", b"Basic a.b.c", b"Bearer \xff", None):
        assert isinstance(await bench.refused(wrong), Unauthenticated), wrong
    assert oidc.seen == [b"Bearer a.b.c"]


async def test_verified_oidc_token_is_cached_until_it_expires(bench: Bench) -> None:
    bench.use_oidc(oidc := ScriptedVerifier())
    first = await bench.caller(b"Bearer a.b.c")
    await bench.pass_time(4)
    bench.move(0.999_999)
    assert bench.authenticator.identify([(b"authorization", b"Bearer a.b.c")]) is first
    assert len(oidc.seen) == 1
    bench.move(0.000_002)
    await bench.caller(b"Bearer a.b.c")
    assert len(oidc.seen) == 2
    await bench.authenticator.save_last_uses()
    assert bench.store.touched == []


async def test_token_of_issuer_is_refused_if_no_issuer_is_configured(bench: Bench) -> None:
    bench.store.add(new_api_key(Role.CLIENT))
    assert isinstance(await bench.refused(b"Bearer a.b.c"), Unauthenticated)


async def test_issuer_requires_credentials_although_no_key_was_created(bench: Bench) -> None:
    await bench.authenticator.refresh()
    assert bench.authenticator.is_open
    bench.use_oidc(ScriptedVerifier())
    assert isinstance(await bench.refused(None), Unauthenticated)
    assert isinstance(await bench.refused(new_api_key(Role.CLIENT)), Unauthenticated)
    assert (await bench.caller(bench.token())).kind is CallerKind.SESSION_TOKEN
    assert not bench.authenticator.is_open


async def test_tasks_refresh_after_wake_and_end_when_cancelled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "REFRESH_SECONDS", LAST_USE_SECONDS)
    monkeypatch.setattr(authenticator, "SHORTEST_PAUSE_SECONDS", 0.0)
    bench.use_oidc(oidc := ScriptedVerifier())
    running = asyncio.create_task(bench.authenticator.run())

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - the authenticator offers no event to wait for
                await asyncio.sleep(0.001)

    await until(lambda: bench.store.version_reads == 1)
    bench.authenticator.wake()
    await until(lambda: bench.store.version_reads == 2)
    assert oidc.runs == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert oidc.runs == 0
