"""The thread that keeps all held sessions of one client alive.

It is a daemon thread with its own event loop and its own connections, in the sync and in the async client. So
heartbeats are sent even while the event loop of the application is blocked, or all other connections of the client are
dead.

The heartbeat of a session is due one interval after the last one was sent. When a heartbeat is due, the same request
also renews other sessions whose last heartbeat was sent at least half of their interval ago. All sessions of a request
have the same key, and a request reports activity for all of them or for none. So sessions that can share a request, and
that have the same interval, do so after one interval at most. A request has at most 1000 ids; with a session token it
has one id. If sessions that are due together need several requests, their next heartbeats are spread over the second
half of the interval.

| response to a heartbeat | what the keeper does |
|---|---|
| acknowledged | moves the local deadline (`_lease.py`) |
| 404 or 410 for a session | declares the loss at once |
| another response (401, 403, 429, 5xx, …), or none in time | retries with growing pauses, until the local deadline |

After a refused key, retries can succeed: it takes up to two seconds until every instance knows a new key, and a
function that provides the key may return another one. A refused key does not end the session, and the retries end at
the local deadline.

After a request without a response, the next request uses a new connection: a network partition can leave a connection
that neither breaks nor delivers anything.

Deadlines are checked independently of the requests, at least twice a second, so a request that hangs does not delay the
check. An error in this module is logged and does not end the thread. If the thread dies nevertheless, each use of a
session still checks its deadline.
"""

import asyncio
import atexit
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any

import httpx2
import msgspec

from tenure_client import _routes
from tenure_client._core import BACKOFF_FIRST, Key, Options, transport_error
from tenure_client._lease import Anchor, Lease, LostReason, log
from tenure_client.errors import Problem, UnexpectedAnswer, problem_of
from tenure_client.models import HeartbeatResult, Heartbeats, HeartbeatsBody, Session

IDS_MAX = 1000
IN_FLIGHT_MAX = 4
POLL_SECONDS = 0.5
"""The event loop's timers stop while the machine is suspended, so the keeper looks at its clock this often."""
END_SECONDS = 5.0
EXIT_SECONDS = 2.0
ENDS_AT_ONCE = 16
START_SECONDS = 10.0

_numbers = count(1)


class Batch(msgspec.Struct, frozen=True):
    key: Key
    active: bool
    leases: list[Lease]
    pace: float
    """After which share of the interval the next heartbeat is due. Below 1 to spread the requests of many sessions."""


class Keeper:
    def __init__(self, options: Options) -> None:
        self.anchor = Anchor()
        self.requests = 0
        """How many heartbeat requests were sent."""
        self._options = options
        self._clock = options.clock
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._leases: set[Lease] = set()
        self._connection: httpx2.AsyncClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wakes_at = 0.0
        self._closing = False
        self._stopped = False
        self._retired = False
        self._ending: set[object] = set()
        """One object for each session that is being ended. A set and not a counter, because several threads add and
        remove objects, and `+=` on a counter is not atomic."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_DaemonThreads())
        self._wake = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"tenure-keeper-{next(_numbers)}", daemon=True)
        self._thread.start()
        if self._clock.manual:
            self._clock.attach(self)
        _keepers.add(self)

    @property
    def is_mine(self) -> bool:
        """False in a child of the process that created this keeper: the thread does not exist there."""
        return os.getpid() == self._pid

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases.add(lease)
        if min(lease.due, lease.deadline) < self._wakes_at:
            self.wake()

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._wake.set)

    def end(self, lease: Lease, *, on_server: bool) -> "Future[bool]":
        """Stop renewing the session. If `on_server` is true, also end the session on the server, unless the session is
        lost, another `HeldSession` of this client also holds it, or the keeper is closing.

        The result says whether the server confirmed the end.
        """
        others = self._release(lease)
        was_lost = bool(lease.loss)
        lease.loss.declare(LostReason.STOPPED, None)
        if was_lost or others or not on_server or self._closing:
            return _done(result=False)
        token = object()
        self._ending.add(token)
        ending = asyncio.run_coroutine_threadsafe(self._end(lease), self._loop)
        ending.add_done_callback(lambda _: self._ending.discard(token))
        return ending

    def abandon(self, lease: Lease) -> None:
        """End a session whose `HeldSession` was garbage-collected without being closed.

        The garbage collector may call this method in any thread, even in one that holds the keeper's lock. So this
        method acquires no lock.
        """
        if self.is_mine and not self._closing:
            with suppress(RuntimeError):  # Raised if the loop is closed.
                self._loop.call_soon_threadsafe(lambda: self.end(lease, on_server=lease.ends_with_client))

    def retire(self) -> None:
        """Stop the thread once no session is left to renew or end.

        Called when the client is garbage-collected, so this method does not wait.
        """
        if self.is_mine and not self._stopped:
            self._retired = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    def close(self, seconds: float = END_SECONDS) -> None:
        """End the held sessions, except those whose `end_on_exit` is false, and stop the thread."""
        if not self.is_mine or self._closing:
            return
        self._closing = True
        with self._lock:
            leases = [lease for lease in self._leases if not lease.loss]
        try:
            asyncio.run_coroutine_threadsafe(self._close(leases, seconds), self._loop).result(seconds + 1)
        except (TimeoutError, RuntimeError):
            log.warning("could not end all of %d sessions; they end when their leases expire", len(leases))
        if self._clock.manual:
            self._clock.detach(self)
        self._stopped = True
        with suppress(RuntimeError):
            self.wake()
        self._thread.join(seconds)

    # For a manual clock.

    def next_event(self) -> float:
        with self._lock:
            return min((min(lease.due, lease.deadline) for lease in self._leases), default=float("inf"))

    def settle(self) -> None:
        """Run everything that is due by the manual clock, and wait until it is done."""
        if not self._stopped:
            asyncio.run_coroutine_threadsafe(self._settle(), self._loop).result(START_SECONDS)

    async def _settle(self) -> None:
        while True:
            self._expire(self._clock.now())
            batches = self._due(self._clock.now())
            if not batches:
                return
            for batch in batches:
                await self._send(batch)

    # The thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()

    async def _main(self) -> None:
        while not self._stopped and not (self._retired and not self._leases and not self._ending):
            delay = POLL_SECONDS
            try:
                if not self._clock.manual:
                    delay = self._step()
            except Exception:  # noqa: BLE001, the thread must not end
                log.exception("the thread that renews sessions failed, and continues")
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            self._wake.clear()
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await self._disconnect()

    def _step(self) -> float:
        """Declare losses, start the requests that are due, and return the seconds until the next step."""
        now = self._clock.now()
        self._expire(now)
        for batch in self._due(now)[: IN_FLIGHT_MAX - len(self._tasks)]:
            for lease in batch.leases:
                lease.in_flight = True
            task = self._loop.create_task(self._send(batch))
            self._tasks.add(task)
            task.add_done_callback(self._finished)
        full = len(self._tasks) >= IN_FLIGHT_MAX  # The next task that finishes wakes the thread.
        with self._lock:
            soon = min(
                (
                    lease.deadline if full or lease.in_flight else min(lease.due, lease.deadline)
                    for lease in self._leases
                ),
                default=now + POLL_SECONDS,
            )
        delay = min(max(soon - now, 0.0), POLL_SECONDS)
        self._wakes_at = now + delay
        return delay

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("a heartbeat failed", exc_info=task.exception())

    def _expire(self, now: float) -> None:
        with self._lock:
            passed = [lease for lease in self._leases if now >= lease.deadline]
        for lease in passed:
            lease.check(now)
            self._release(lease)

    def _due(self, now: float) -> list[Batch]:
        """Return the requests to send now."""
        with self._lock:
            idle = [lease for lease in self._leases if not lease.in_flight]
        due = [lease for lease in idle if lease.due <= now]
        if not due:
            return []
        waiting = [lease for lease in idle if lease.due > now and not lease.failures]
        early = [lease for lease in waiting if now >= lease.sent_at + lease.interval / 2]
        groups: dict[tuple[Key, bool], list[Lease]] = {}
        for lease in due:
            groups.setdefault((lease.key, lease.is_active), []).append(lease)
        batches: list[Batch] = []
        for (key, active), ready in groups.items():
            size = 1 if key.is_session_token() else IDS_MAX
            riders = [lease for lease in early if lease.key is key and lease.is_active is active]
            leases = ready + riders[: -len(ready) % size]
            number = -(-len(leases) // size)
            batches += [
                Batch(key, active, leases[at * size : (at + 1) * size], 1 - at / number / 2) for at in range(number)
            ]
        return batches

    # Requests. Each request has one timeout, from connecting to the end of the response.

    async def _send(self, batch: Batch) -> None:
        sent = self._clock.now()
        for lease in batch.leases:
            lease.in_flight = True
            lease.touched = False
        connection = self._connect()
        try:
            results = await self._beat(connection, batch)
            by_id = {result.session_id: result for result in results}
            for lease in batch.leases:
                self._apply(lease, by_id.get(lease.session_id), sent, batch.pace)
            await self._improve(connection, batch.leases, sent)
        except (Problem, UnexpectedAnswer) as error:
            self._failed(batch, error)
        except (httpx2.HTTPError, OSError, TimeoutError, RuntimeError) as error:
            # RuntimeError: another request failed, and has closed the connection.
            if connection is self._connection:
                await self._disconnect()
            self._failed(batch, transport_error(error))
        finally:
            for lease in batch.leases:
                lease.in_flight = False

    async def _beat(self, connection: httpx2.AsyncClient, batch: Batch) -> Iterable[HeartbeatResult]:
        self.requests += 1
        timeout = self._timeout(batch.leases)
        if batch.key.is_session_token():
            session_id = batch.leases[0].session_id
            path = _routes.HEARTBEAT.path_with(sessionId=session_id)
            body = b'{"active":true}' if batch.active else b"{}"
            response = await self._request(connection, "POST", path, batch.key, timeout, body)
            if response.status_code in (404, 410):
                problem = problem_of(response.status_code, response.headers, response.content)
                reason = problem.close_reason if isinstance(problem, Problem) else None
                refused = HeartbeatResult(
                    session_id=session_id, acknowledged=False, status=response.status_code, close_reason=reason
                )
                return [refused]
            return [_decoded(response, HeartbeatResult)]
        ids = list(dict.fromkeys(lease.session_id for lease in batch.leases))
        body = msgspec.json.encode(HeartbeatsBody(session_ids=ids, active=batch.active))
        response = await self._request(connection, "POST", _routes.HEARTBEATS.path, batch.key, timeout, body)
        answer: Heartbeats = _decoded(response, Heartbeats)
        return answer.heartbeats

    def _apply(self, lease: Lease, result: HeartbeatResult | None, sent: float, pace: float) -> None:
        if result is None:
            self._retry(lease, UnexpectedAnswer("the answer omits this session", status=200), None)
        elif result.acknowledged and result.lease_expires_at is not None:
            lease.renewed(sent, result.lease_expires_at, result.heartbeat_interval)
            lease.due = sent + lease.interval * pace
        else:
            lease.refused(result)
            self._release(lease)

    async def _improve(self, connection: httpx2.AsyncClient, leases: list[Lease], sent: float) -> None:
        """If an outdated anchor may have made a session's deadline too early, read that session to get a new anchor."""
        doubtful = next((lease for lease in leases if not lease.loss and lease.wants_read(self._clock.now())), None)
        if doubtful is None:
            return
        path = _routes.SESSION.path_with(sessionId=doubtful.session_id)
        try:
            response = await self._request(connection, "GET", path, doubtful.key, self._timeout([doubtful]))
            session: Session = _decoded(response, Session)
        except (Problem, UnexpectedAnswer, httpx2.HTTPError, OSError, TimeoutError, RuntimeError):
            return  # The heartbeats were acknowledged. After the next ones, the read is tried again.
        if not session.is_active:
            return  # The response to the next heartbeat says why the session ended.
        due = doubtful.due
        doubtful.read(session, sent)
        doubtful.due = min(due, doubtful.due)
        for lease in leases:
            lease.recompute()

    async def _end(self, lease: Lease) -> bool:
        path = _routes.END.path_with(sessionId=lease.session_id)
        deadline = self._loop.time() + END_SECONDS
        tries = 0
        while self._loop.time() < deadline:
            connection = self._connect()
            try:
                timeout = min(self._options.heartbeat_timeout, END_SECONDS / 2)
                response = await self._request(connection, "DELETE", path, lease.key, timeout)
            except (httpx2.HTTPError, OSError, TimeoutError, RuntimeError):
                if connection is self._connection:
                    await self._disconnect()
            else:
                if response.status_code < 500 and response.status_code != 429:  # noqa: PLR2004
                    return response.is_success
            tries += 1
            pause = random.uniform(0, BACKOFF_FIRST * 2**tries)  # noqa: S311
            if self._clock.manual and tries > 2:  # noqa: PLR2004
                break
            await asyncio.sleep(0 if self._clock.manual else pause)
        log.warning("could not end session %s; it ends when its lease expires", lease.session_id)
        return False

    async def _close(self, leases: list[Lease], seconds: float) -> None:
        """End the sessions concurrently. Raises `TimeoutError` if this takes longer than `seconds`."""
        gate = asyncio.Semaphore(ENDS_AT_ONCE)

        async def end(lease: Lease) -> None:
            async with gate:
                self._release(lease)
                lease.loss.declare(LostReason.STOPPED, None)
                if lease.ends_with_client:
                    await self._end(lease)

        async with asyncio.timeout(seconds):
            await asyncio.gather(*map(end, leases))

    async def _request(
        self,
        connection: httpx2.AsyncClient,
        method: str,
        path: str,
        key: Key,
        timeout: float,
        body: bytes | None = None,
    ) -> httpx2.Response:
        headers = {} if body is None else {"Content-Type": "application/json"}
        async with asyncio.timeout(timeout):
            return await connection.request(
                method, self._options.url + path, content=body, headers=headers, auth=key, timeout=timeout
            )

    def _timeout(self, leases: Iterable[Lease]) -> float:
        """Return a timeout in seconds that leaves time for several tries between a renewal and the deadline."""
        shortest = min(lease.deadline - lease.sent_at for lease in leases)
        return max(min(self._options.heartbeat_timeout, shortest / 6), 0.5)

    def _connect(self) -> httpx2.AsyncClient:
        if self._connection is None:
            options = self._options
            self._connection = httpx2.AsyncClient(
                transport=options.transport, verify=options.verify, headers=dict(options.headers)
            )
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._options.transport is None:
            await connection.aclose()

    # Failures.

    def _failed(self, batch: Batch, error: Exception) -> None:
        retry_after = error.retry_after if isinstance(error, Problem) else None
        # Use one random factor for the pauses of all sessions of the batch, so that the sessions stay in one request.
        jitter = random.random()  # noqa: S311
        for lease in batch.leases:
            if batch.active and not lease.always_active:
                lease.touched = True
            self._retry(lease, error, retry_after, jitter)

    def _retry(self, lease: Lease, error: Exception, retry_after: float | None, jitter: float = 1.0) -> None:
        now = self._clock.now()
        longest = min(BACKOFF_FIRST * 2 ** min(lease.failures + 1, 10), lease.interval)
        pause = max(longest * jitter, 0.05) + (retry_after or 0.0)
        lease.failed(error, now + min(pause, max((lease.deadline - now) / 2, 0.05)))

    def _release(self, lease: Lease) -> bool:
        """Stop renewing. Return whether another `HeldSession` of this client holds the same session."""
        with self._lock:
            self._leases.discard(lease)
            return any(other.session_id == lease.session_id for other in self._leases)


def _decoded(response: httpx2.Response, kind: Any) -> Any:
    if not response.is_success:
        raise problem_of(response.status_code, response.headers, response.content)
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError as error:
        raise UnexpectedAnswer(f"the answer is not a {kind.__name__}: {error}", status=response.status_code) from None


def _done(*, result: bool) -> "Future[bool]":
    future: Future[bool] = Future()
    future.set_result(result)
    return future


class _DaemonThreads(ThreadPoolExecutor):
    """Resolves host names in daemon threads: a resolver can hang, and must not delay the exit of the interpreter."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001
                    future.set_exception(error)

        threading.Thread(target=run, name="tenure-resolver", daemon=True).start()
        return future


_keepers: "weakref.WeakSet[Keeper]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for keeper in list(_keepers):
        keeper.close(EXIT_SECONDS)
