"""The client: its options, its connections, and how it sends and retries requests."""

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import httpx2
import msgspec

from tenure_client import _routes, models
from tenure_client._async import _io
from tenure_client._async.events import AsyncEvents
from tenure_client._async.held import AsyncHold
from tenure_client._async.resources import (
    AsyncAlerts,
    AsyncAuditLog,
    AsyncCapacities,
    AsyncInstances,
    AsyncJobs,
    AsyncKeys,
    AsyncLeases,
    AsyncSessions,
    AsyncSubmissions,
    AsyncUsage,
)
from tenure_client._async.streams import AsyncStream
from tenure_client._clock import Clock, SystemClock
from tenure_client._core import (
    CAMEL_CASE,
    HEARTBEAT_TIMEOUT,
    MAX_RETRIES,
    RETRY_BUDGET,
    TIMEOUT,
    USER_AGENT,
    Answer,
    Id,
    KeySource,
    Options,
    RetryChain,
    options_from,
    transport_error,
)
from tenure_client._keeper import Keeper
from tenure_client._routes import Route
from tenure_client.errors import TenureError, problem_of

T = TypeVar("T")

LEASE_SECONDS = 60


class AsyncClient:
    """A client of one Tenure installation. Use it in a `with` block (`async with` in the async client), or call
    `aclose` after the last use.

    Threads may share a sync client. An async client belongs to one event loop.

    | option | meaning |
    |---|---|
    | `url` | where the service is, with its prefix; by default `TENURE_URL`, or port 8080 of this machine |
    | `key` | an API key, a session token or an OIDC token, or a function that returns it; by default `TENURE_KEY` |
    | `timeout` | seconds without progress after which a request has failed |
    | `max_retries` | the maximum number of retries of a request |
    | `retry_budget` | for how many seconds after the first try a request may be retried |
    | `heartbeat_timeout` | seconds after which a heartbeat of a held session has failed; shorter for short leases |
    | `headers` | headers to add to every request |
    | `verify` | how to verify certificates: True for the default authorities, or an `ssl.SSLContext` |
    | `transport` | another transport of the HTTP library, such as the one of a `FakeServer` |
    | `clock` | the clock of held sessions, for tests |
    | `on_response` | a function that gets every raw response |
    """

    def __init__(
        self,
        url: str | None = None,
        key: KeySource | None = None,
        *,
        timeout: float = TIMEOUT,
        max_retries: int = MAX_RETRIES,
        retry_budget: float = RETRY_BUDGET,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
        headers: Mapping[str, str] | None = None,
        verify: Any = True,
        transport: Any = None,
        clock: Clock | None = None,
        on_response: Callable[[Answer], None] | None = None,
    ) -> None:
        settings = {
            "timeout": timeout,
            "max_retries": max_retries,
            "retry_budget": retry_budget,
            "heartbeat_timeout": heartbeat_timeout,
            "headers": {"User-Agent": USER_AGENT, **CAMEL_CASE, **(headers or {})},
            "verify": verify,
            "transport": transport,
            "clock": clock or SystemClock(),
            "on_response": on_response,
        }
        options = options_from(url, key, settings)
        self._use(_AsyncShared(options), options)

    def _use(self, shared: "_AsyncShared", options: Options) -> None:
        self._shared = shared
        self._options = options
        self.sessions = AsyncSessions(self)
        self.capacities = AsyncCapacities(self)
        self.submissions = AsyncSubmissions(self)
        self.usage = AsyncUsage(self)
        self.leases = AsyncLeases(self)
        self.jobs = AsyncJobs(self)
        self.keys = AsyncKeys(self)
        self.audit_log = AsyncAuditLog(self)
        self.instances = AsyncInstances(self)
        self.alerts = AsyncAlerts(self)
        self.events = AsyncEvents(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(url={self._options.url!r}, key={self._options.key!r})"

    def with_options(self, **changes: Any) -> "AsyncClient":
        """Return a client that has other options, but uses the same connections and the same thread for heartbeats.

        The options `key`, `timeout`, `max_retries`, `retry_budget`, `headers` and `on_response` can be changed.
        `headers` are added to the headers of this client.
        """
        client = object.__new__(type(self))
        if "headers" in changes:
            changes["headers"] = {**self._options.headers, **changes["headers"]}
        client._use(self._shared, self._options.changed(changes))
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the sessions that are still held, except those with `end_on_exit=False`, and close the connections."""
        await self._shared.aclose()

    def hold(
        self,
        *,
        user: Id,
        tenant: Id,
        capacity: Id,
        kind: int = 1,
        lease_seconds: int | None = LEASE_SECONDS,
        idle_seconds: int | None = None,
        active: bool = False,
        end_on_exit: bool = True,
    ) -> AsyncHold:
        """Open a session, keep it alive while the `with` block runs, and end it when the block is left.

        With `active`, every heartbeat counts as activity and restarts the idle limit; without `active`, only the first
        heartbeat after `session.touch()` does. With `end_on_exit=False`, leaving the block only stops the heartbeats,
        and the session lives on until its lease runs out. If the user already has a live session of the same or a
        higher kind on this capacity, `hold` holds that session, which keeps its own lease and idle limit.
        """
        body = models.OpenBody(
            user_object_id=str(user),
            tenant_object_id=str(tenant),
            capacity_id=str(capacity),
            session_kind=kind,
            lease_seconds=lease_seconds,
            idle_seconds=idle_seconds,
        )
        return AsyncHold(self, body, None, active=active, end_on_exit=end_on_exit)

    def keep(self, session_id: Id, *, active: bool = False, end_on_exit: bool = False) -> AsyncHold:
        """Keep a session of another program alive while the `with` block runs. The key may be a session token."""
        return AsyncHold(self, None, str(session_id), active=active, end_on_exit=end_on_exit)

    def stream(
        self,
        *,
        user: Id,
        tenant: Id,
        capacity: Id,
        kind: int = 1,
        lease_seconds: int | None = None,
        idle_seconds: int | None = None,
    ) -> AsyncStream:
        """Open a session together with its stream."""
        body = models.OpenBody(
            user_object_id=str(user),
            tenant_object_id=str(tenant),
            capacity_id=str(capacity),
            session_kind=kind,
            lease_seconds=lease_seconds,
            idle_seconds=idle_seconds,
        )
        return AsyncStream(self._options, "/sessions/stream", body)

    async def transcribe(self, wav: bytes, *, user: Id, tenant: Id, capacity: Id, kind: int = 1) -> str:
        """Transcribe a WAV file, and return the text."""
        query = models.TranscribeQuery(
            user_object_id=str(user), tenant_object_id=str(tenant), capacity_id=str(capacity), session_kind=kind
        )
        headers = {"Content-Type": "audio/wav"}
        answer = await self._call(_routes.TRANSCRIBE, query=query, content=wav, headers=headers)
        return answer.decode(models.Transcription).text

    async def activity(
        self, *, from_: datetime | None = None, to: datetime | None = None, step: int | None = None
    ) -> models.Activity:
        """Count openings, heartbeats and ends in steps of `step` seconds: by default each minute of the last hour."""
        query = models.ActivityQuery(from_=from_, to=to, step=step)
        return (await self._call(_routes.ACTIVITY, query=query)).decode(models.Activity)

    def transcribe_stream(
        self,
        *,
        user: Id | None = None,
        tenant: Id | None = None,
        capacity: Id | None = None,
        kind: int | None = None,
    ) -> AsyncStream:
        """Stream audio to be transcribed. The session starts with the connection.

        Instead of a missing user or tenant, the service uses the one to which the credential is bound. If the
        credential is bound to none, the service creates a new user id, and takes the tenant from its configuration. A
        missing capacity always comes from its configuration.
        """
        given = {"user": user, "tenant": tenant, "capacity": capacity, "kind": kind}
        query = urlencode({name: str(value) for name, value in given.items() if value is not None})
        return AsyncStream(self._options, f"/transcribe/stream{query and '?'}{query}", None)

    async def me(self) -> models.Caller:
        """Return the caller that the credential of this client identifies, with role, tenant and user."""
        return (await self._call(_routes.ME)).decode(models.Caller)

    async def sign_in_options(self) -> models.SignInOptions:
        """Return whether a credential is needed, and whether a person can sign in at an OIDC issuer."""
        return (await self._call(_routes.SIGN_IN_OPTIONS)).decode(models.SignInOptions)

    async def sign_in(self, credential: str) -> models.Caller:
        """Check an API key or an OIDC token, and keep it in a cookie, as a browser does.

        The cookie has an effect only if the client has no key. Most programs pass the key to the client instead.
        """
        return (await self._call(_routes.SIGN_IN, body=models.SignInBody(credential=credential))).decode(models.Caller)

    async def sign_out(self) -> models.SignedOut:
        """Delete the cookie of `sign_in`."""
        return (await self._call(_routes.SIGN_OUT)).decode(models.SignedOut)

    async def health(self) -> models.Health:
        return (await self._call(_routes.HEALTH)).decode(models.Health)

    async def live(self) -> models.Liveness:
        return (await self._call(_routes.LIVE)).decode(models.Liveness)

    async def ready(self) -> models.Readiness:
        """Return the readiness of the instance. Raises `Unavailable` without a retry if it is not ready."""
        return (await self.with_options(max_retries=0)._call(_routes.READY)).decode(models.Readiness)

    async def metrics(self) -> str:
        """Return the metrics of all workers of the instance's process group, in Prometheus' text format."""
        return (await self._call(_routes.METRICS)).content.decode()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> Answer:
        """Send any request and return the raw response. Raises the same errors as the other methods.

        A `repeatable` request is retried after every temporary failure. Other requests are retried only if the failed
        try was certainly not carried out. By default, GET, HEAD, PUT and DELETE are repeatable.
        """
        content = None if json is None else msgspec.json.encode(json)
        more = {} if json is None else {"Content-Type": "application/json"}
        may = method in ("GET", "HEAD", "PUT", "DELETE") if repeatable is None else repeatable
        url = self._options.address_of(path)
        return await self._send(method, url, query, content, {**more, **(headers or {})}, repeatable=may)

    async def _call(
        self,
        route: Route,
        *,
        body: models.Body | None = None,
        query: models.Body | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0,
        **path: object,
    ) -> Answer:
        more = dict(headers or {})
        if body is not None:
            content = msgspec.json.encode(body)
            more["Content-Type"] = "application/json"
        url = self._options.address_of(route.path_with(**path), prefixed=route.prefixed)
        values = None if query is None else _routes.query_values(query)
        return await self._send(route.method, url, values, content, more, repeatable=route.repeatable, wait=wait)

    async def _send(
        self,
        method: str,
        url: str,
        query: Mapping[str, str] | None,
        content: bytes | None,
        headers: Mapping[str, str],
        *,
        repeatable: bool,
        wait: float = 0,
    ) -> Answer:
        """Send a request, with retries. `wait`, the seconds that a long poll may wait, is added to the timeout."""
        clock = self._options.clock
        chain = RetryChain(self._options, clock.now(), repeatable=repeatable)
        while True:
            try:
                timeout = wait + chain.timeout(clock.now())
                return await self._send_once(method, url, query, content, headers, timeout)
            except TenureError as error:
                delay = chain.delay(error, clock.now())
                if delay is None:
                    raise
            await _io.sleep(self._options, delay)

    async def _send_once(
        self,
        method: str,
        url: str,
        query: Mapping[str, str] | None,
        content: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
    ) -> Answer:
        options = self._options
        sent_at = options.clock.now()
        try:
            response = await self._shared.http().request(
                method,
                url,
                params=query,
                content=content,
                headers={**options.headers, **headers},
                auth=options.key,
                timeout=timeout,
            )
        except (httpx2.HTTPError, OSError) as error:
            raise transport_error(error) from None
        answer = Answer(response.status_code, response.headers, response.content, sent_at)
        if options.on_response is not None:
            options.on_response(answer)
        if not response.is_success:
            raise problem_of(answer.status, answer.headers, answer.content)
        return answer


class _AsyncShared:
    """The connections and the keeper, shared by a client and the clients that its `with_options` returns.

    A child process does not use the connections and the keeper of its parent: it creates its own.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._http: _io.Http | None = None
        self._keeper: Keeper | None = None
        self._is_closed = False

    def http(self) -> _io.Http:
        self._forget_parent()
        with self._lock:
            self._check_open()
            if self._http is None:
                self._http = _io.make_http(self._options)
            return self._http

    def keeper(self) -> Keeper:
        self._forget_parent()
        with self._lock:
            self._check_open()
            if self._keeper is None:
                self._keeper = Keeper(self._options)
                weakref.finalize(self, self._keeper.retire)
            return self._keeper

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def aclose(self) -> None:
        self._forget_parent()
        self._is_closed = True
        keeper, self._keeper = self._keeper, None
        http, self._http = self._http, None
        if keeper is not None:
            await _io.run_blocking(keeper.close)
        if http is not None and self._options.transport is None:
            await http.aclose()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the client is closed")

    def _forget_parent(self) -> None:
        if os.getpid() != self._pid:
            # Another thread of the parent may have held the old lock during the fork. Nothing in the child releases it.
            self._lock = threading.Lock()
            self._pid = os.getpid()
            self._http = None
            self._keeper = None
