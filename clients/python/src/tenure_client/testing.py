"""A fake Tenure for the tests of your own code: no sockets, no waiting, a clock that you move.

    server = FakeServer()
    with server.client() as client, client.hold(user=…, tenant=…, capacity=…) as session:
        server.clock.advance(600)      # 120 heartbeats later: one every 5 seconds
        assert not session.lost
        server.down()
        server.clock.advance(60)
        assert session.lost.reason == "unreachable"

The fake handles sessions, heartbeats, upgrades, seats, evictions and deadlines as Tenure does: a test sends the same
requests to the fake and to a real service, and compares the responses. The fake has no streams, submissions, usage,
keys, leases, jobs, events, alerts or audit log. A request for one of these raises `NotImplementedError`.
"""

import re
import threading
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import httpx2
import msgspec

from tenure_client._async.client import AsyncClient
from tenure_client._clock import Settling
from tenure_client._sync.client import Client
from tenure_client.models import OpenBody

ANONYMOUS = {
    "subject": "anonymous",
    "name": "anonymous",
    "role": "operator",
    "tenantObjectId": None,
    "userObjectId": None,
    "anonymous": True,
    "expiresAt": None,
    "mayChange": True,
}
"""What `GET /me` returns, apart from `now`: the fake server checks no credential, so every caller is anonymous. The
`role` of the server does not change this response."""
START = datetime(2026, 1, 1, tzinfo=UTC)
TERM = timedelta(days=30)
LEASE_RANGE = (5, 86_400)
IDLE_RANGE = (5, 2_592_000)
IDS_MAX = 1000
LIMIT_MAX = 500
MICROSECOND = timedelta(microseconds=1)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RETRY_AFTER = {429: "5", 503: "1"}
_CODES = {
    401: "UNAUTHENTICATED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    410: "SESSION_OVER",
    429: "RATE_LIMITED",
    500: "INTERNAL",
    503: "DATABASE_UNAVAILABLE",
}


class ManualClock:
    """A clock that only `advance` and `jump` move. `advance` also sends the heartbeats that become due."""

    manual = True

    def __init__(self) -> None:
        self._now = 1000.0
        self._keepers: list[Settling] = []
        self._moving = threading.RLock()

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        with self._moving:
            target = self._now + seconds
            while True:
                event = min((keeper.next_event() for keeper in self._keepers), default=float("inf"))
                if event > target:
                    break
                self._now = max(event, self._now)
                self._settle()
            self._now = target
            self._settle()

    def jump(self, seconds: float) -> None:
        """Move the clock as a suspend or SIGSTOP does: no heartbeat is sent in the meantime."""
        self._now += seconds

    def pass_time(self, seconds: float) -> None:
        self.advance(seconds)

    def attach(self, keeper: Settling) -> None:
        self._keepers.append(keeper)

    def detach(self, keeper: Settling) -> None:
        self._keepers.remove(keeper)

    def _settle(self) -> None:
        for keeper in list(self._keepers):
            keeper.settle()


class Request(NamedTuple):
    at: float
    method: str
    path: str
    body: Any


class _Problem(Exception):
    def __init__(self, status: int, code: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.more = more


class _Record:
    def __init__(
        self, body: OpenBody, now: datetime, lease: int | None, idle: int | None, previous: str | None
    ) -> None:
        self.id = str(uuid.uuid4())
        self.body = body
        self.started = self.heartbeat = self.activity = self.modified = now
        self.term = now + TERM
        self.lease = lease
        self.idle = idle
        self.state = "created"
        self.closed: datetime | None = None
        self.reason: str | None = None
        self.previous = previous

    def deadline(self) -> tuple[datetime, str]:
        limits = [(self.term, 0, "EXPIRED")]
        if self.lease is not None:
            limits.append((self.heartbeat + timedelta(seconds=self.lease), 1, "LEASE_EXPIRED"))
        if self.idle is not None:
            limits.append((self.activity + timedelta(seconds=self.idle), 2, "IDLE_TIMEOUT"))
        at, _, reason = min(limits)
        return at, reason

    def close(self, now: datetime, reason: str) -> None:
        """End the session. An end never changes, so this does nothing if the session has ended already."""
        if self.closed is not None:
            return
        self.closed, self.reason, self.state, self.modified = (
            max(now, self.started + MICROSECOND),
            reason,
            "closed",
            now,
        )

    def answer(self) -> dict[str, Any]:
        return {
            "sessionId": self.id,
            "userObjectId": self.body.user_object_id.lower(),
            "tenantObjectId": self.body.tenant_object_id.lower(),
            "capacityId": self.body.capacity_id.lower(),
            "sessionKind": self.body.session_kind,
            "sessionStartUtc": _instant(self.started),
            "sessionEndUtc": _instant(self.closed or self.term),
            "isActive": self.closed is None,
            "state": self.state,
            "leaseExpiresAt": _instant(self.deadline()[0]),
            "heartbeatInterval": self.interval,
            "lastHeartbeat": _instant(self.heartbeat),
            "lastActivity": _instant(self.activity),
            "closeReason": self.reason,
            "previousSessionId": self.previous,
            "createdUtc": _instant(self.started),
            "modifiedUtc": _instant(self.modified),
            "stream": None,
        }

    @property
    def interval(self) -> int | None:
        return None if self.lease is None else max(self.lease // 12, 1)


class FakeServer:
    """An in-process Tenure.

    `client` and `async_client` return clients of this server; `transport` is for clients that you create yourself (pass
    them `clock`, too). `role` is the role of all callers. It decides the close reason of `DELETE /sessions/{id}`:
    STOPPED for `client`, TERMINATED for `operator`.
    """

    def __init__(self, *, role: str = "client") -> None:
        self.clock = ManualClock()
        self.requests: list[Request] = []
        """Every request that arrived, including those that got no response."""
        self.transport = _Transport(self)
        self._role = role
        self._sessions: dict[str, _Record] = {}
        self._on_capacity: dict[str, list[_Record]] = {}
        self._capacities: dict[str, dict[str, Any]] = {}
        self._actions: dict[str, int] = {}
        """How many sessions each action has ended."""
        self._faults: list[Callable[[Callable[[], httpx2.Response]], httpx2.Response]] = []
        self._is_down = False
        self._ahead = timedelta()
        self._lock = threading.RLock()

    def client(self, **options: Any) -> Client:
        return Client("http://fake.tenure", transport=self.transport, clock=self.clock, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        return AsyncClient("http://fake.tenure", transport=self.transport, clock=self.clock, **options)

    # Changes by others: ends of sessions, and steps of the database's clock.

    def end(self, session_id: str, reason: str) -> None:
        """End a session with a close reason, such as `EVICTED`, `UPGRADED` or `TERMINATED`."""
        with self._lock:
            self._find(session_id).close(self._now(), reason)

    def forget(self, session_id: str) -> None:
        """Delete a session: from now on, requests for this session get 404."""
        with self._lock:
            self._find(session_id).close(self._now(), "TERMINATED")
            del self._sessions[session_id]

    def ends_at(self, session_id: str) -> float:
        """Return the time of `clock` at which the session ends or has ended, if nothing renews it."""
        record = self._sessions[session_id]
        end = record.closed or record.deadline()[0]
        return self.clock.now() + (end - self._now()).total_seconds()

    def step_clock(self, seconds: float) -> None:
        """Step the clock of the database, forwards or backwards. `clock` is not affected."""
        self._ahead += timedelta(seconds=seconds)

    # Failures.

    def next(self, status: int, *, times: int = 1, code: str | None = None, retry_after: float | None = None) -> None:
        """Refuse the next `times` requests with this status. `retry_after` is in seconds."""
        problem = _Problem(status, code or _CODES.get(status, "UNAVAILABLE"), f"injected {status}")
        answer = _refusal(problem)
        if retry_after is not None:
            answer.headers["retry-after"] = f"{retry_after:g}"
        self._faults += [lambda _handle: answer] * times

    def drop(self, *, times: int = 1, after: bool = False) -> None:
        """Break the connection of the next `times` requests. With `after`, each request is carried out first."""
        self._faults += [_fault(httpx2.ReadError("the connection was dropped"), after=after)] * times

    def hang(self, *, times: int = 1, after: bool = False) -> None:
        """Let the next `times` requests time out. With `after`, the requests are carried out, but get no response.

        The manual clock does not move during the timeout.
        """
        self._faults += [_fault(httpx2.ReadTimeout("no answer"), after=after)] * times

    def down(self) -> None:
        """Refuse connections until `up`."""
        self._is_down = True

    def up(self) -> None:
        self._is_down = False

    # Requests.

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        with self._lock:
            body = msgspec.json.decode(request.content) if request.content else None
            self.requests.append(Request(self.clock.now(), request.method, request.url.path, body))
            if self._is_down:
                raise httpx2.ConnectError("the fake server is down")
            if self._faults:
                return self._faults.pop(0)(lambda: self._answer(request, body))
            return self._answer(request, body)

    def _answer(self, request: httpx2.Request, body: Any) -> httpx2.Response:
        for method, pattern, handler in self._routes():
            found = re.fullmatch(pattern, request.url.path.removeprefix("/v1"))
            if found and method == request.method:
                try:
                    status, answer = handler(*found.groups(), *([body] if method in ("PUT", "POST") else []), request)
                except _Problem as problem:
                    return _refusal(problem)
                headers = {"x-request-id": str(uuid.uuid4())}
                return httpx2.Response(status, json=answer, headers=headers)
        raise NotImplementedError(f"FakeServer has no {request.method} {request.url.path}")

    def _routes(self) -> list[tuple[str, str, Callable[..., tuple[int, Any]]]]:
        return [
            ("PUT", "/sessions", self._open),
            ("GET", "/sessions", self._list),
            ("POST", "/sessions/heartbeats", self._heartbeats),
            ("POST", "/sessions/end", self._end_matching),
            ("POST", "/sessions/([^/]+)/heartbeat", self._heartbeat),
            ("GET", "/sessions/count", self._count),
            ("GET", "/sessions/(?!metrics$)([^/]+)", self._get),
            ("DELETE", "/sessions/([^/]+)", self._delete),
            ("PUT", "/capacities/([^/]+)", self._set_capacity),
            ("GET", "/capacities/([^/]+)", self._read_capacity),
            ("GET", "/capacities", self._list_capacities),
            ("DELETE", "/capacities/([^/]+)", self._delete_capacity),
            ("GET", "/me", lambda _request: (200, {**ANONYMOUS, "now": _instant(self._now())})),
            ("GET", "/health", self._health),
            ("GET", "/healthz", lambda _request: (200, {"status": "ok"})),
            ("GET", "/readyz", lambda _request: (200, {"status": "ready", "leases": []})),
        ]

    def _now(self) -> datetime:
        return START + self._ahead + timedelta(seconds=self.clock.now())

    def _every(self) -> list[_Record]:
        return [self._seen(record) for record in self._sessions.values()]

    def _seen(self, record: _Record) -> _Record:
        """Return the record as a caller sees it now. If its deadline has passed, close it first."""
        deadline, reason = record.deadline()
        if record.closed is None and deadline <= self._now():
            record.close(deadline, reason)
        return record

    def _find(self, session_id: str) -> _Record:
        record = self._sessions.get(session_id.lower())
        if record is None:
            raise _Problem(404, "NOT_FOUND", f"session {session_id} does not exist")
        return self._seen(record)

    def _taken(self, capacity: str) -> list[_Record]:
        records = self._on_capacity.get(capacity, [])
        taken = [record for record in records if self._seen(record).closed is None]
        self._on_capacity[capacity] = taken
        return list(taken)

    def _open(self, content: Any, _request: httpx2.Request) -> tuple[int, Any]:
        body, now = _open_body(content), self._now()
        capacity, tenant = body.capacity_id.lower(), body.tenant_object_id.lower()
        taken = self._taken(capacity)
        live = next((one for one in taken if one.body.user_object_id.lower() == body.user_object_id.lower()), None)
        if live is not None:
            if live.body.tenant_object_id.lower() != tenant:
                raise _Problem(
                    409, "TENANT_MISMATCH", "this user has a live session of another tenant on this capacity"
                )
            if live.body.session_kind >= body.session_kind:
                return 200, {**live.answer(), "status": "existing", "wasCreated": False, "wasUpgraded": False}
        seats = self._capacities.get(capacity)
        if seats is not None and seats["tenantObjectId"] not in (None, tenant):
            detail = "only the capacity's tenant can open sessions on it"
            raise _Problem(403, "CAPACITY_OF_ANOTHER_TENANT", detail)
        lease, idle = body.lease_seconds, body.idle_seconds
        if live is not None:
            live.close(now, "UPGRADED")
            now = live.closed or now
            lease, idle = lease or live.lease, idle or live.idle
        elif seats is not None and seats["maxSessions"] is not None:
            self._free_a_seat(taken, seats, now)
        record = _Record(body, now, lease, idle, None if live is None else live.id)
        self._sessions[record.id] = record
        self._on_capacity.setdefault(capacity, []).append(record)
        status = "created" if live is None else "upgraded"
        return 201, {**record.answer(), "status": status, "wasCreated": True, "wasUpgraded": live is not None}

    def _free_a_seat(self, taken: list[_Record], seats: Mapping[str, Any], now: datetime) -> None:
        surplus = len(taken) - seats["maxSessions"] + 1
        if surplus <= 0:
            return
        if seats["whenFull"] == "reject" or seats["maxSessions"] == 0:
            raise _Problem(429, "SESSION_LIMIT", "all seats of this capacity are taken")
        for record in sorted(taken, key=lambda one: one.activity)[:surplus]:
            record.close(now, "EVICTED")

    def _renew(self, session_id: str, *, active: bool) -> _Record:
        record = self._find(session_id)
        if record.closed is not None:
            detail = f"the session has ended: {record.reason}"
            raise _Problem(410, "SESSION_OVER", detail, closeReason=record.reason)
        now = self._now()
        record.heartbeat = max(record.heartbeat, now)
        record.modified = max(record.modified, now)
        if active:
            record.activity, record.state = max(record.activity, now), "active"
        return record

    def _heartbeat(self, session_id: str, content: Any, _request: httpx2.Request) -> tuple[int, Any]:
        record = self._renew(session_id, active=_flag(content or {}))
        return 200, {**_beat(record), "sessionId": record.id}

    def _heartbeats(self, content: Any, _request: httpx2.Request) -> tuple[int, Any]:
        ids = content.get("sessionIds") if isinstance(content, dict) else None
        if not isinstance(ids, list) or not 1 <= len(ids) <= IDS_MAX or not all(_is_uuid(one) for one in ids):
            raise _invalid("sessionIds", "must be a list of 1 to 1000 UUIDs")
        beats = []
        for session_id in ids:
            try:
                beats.append({"sessionId": session_id.lower(), **_beat(self._renew(session_id, active=_flag(content)))})
            except _Problem as problem:
                refused = {"acknowledged": False, "status": problem.status, **problem.more}
                beats.append({"sessionId": session_id.lower(), **refused})
        return 200, {"heartbeats": beats, "count": len(beats)}

    def _get(self, session_id: str, _request: httpx2.Request) -> tuple[int, Any]:
        return 200, self._find(session_id).answer()

    def _delete(self, session_id: str, _request: httpx2.Request) -> tuple[int, Any]:
        record = self._find(session_id)
        if record.closed is not None:
            return 200, {**record.answer(), "status": "already_closed"}
        record.close(self._now(), "STOPPED" if self._role == "client" else "TERMINATED")
        return 200, {**record.answer(), "status": "closed"}

    def _end_matching(self, content: Any, _request: httpx2.Request) -> tuple[int, Any]:
        query = {
            name: str(content[name]) for name in ("tenant", "user", "capacity", "kind", "state") if name in content
        }
        ids = content.get("sessionIds")
        if content.get("all", False) is (bool(query) or ids is not None):
            message = "cannot be combined with a filter" if content.get("all") else "must be true if there is no filter"
            raise _invalid("all", message)
        found = [answer["sessionId"] for answer in self._matching({**query, "active": "true"})]
        selected = [each for each in found if ids is None or each in {one.lower() for one in ids}]
        if content.get("dryRun"):
            return 200, self._ended(content.get("actionId"), 0, len(selected))
        action_id = content.get("actionId") or str(uuid.uuid4())
        ended = selected[: content.get("limit", LIMIT_MAX)]
        for session_id in ended:
            self._find(session_id).close(self._now(), "TERMINATED")
        self._actions[action_id] = self._actions.get(action_id, 0) + len(ended)
        return 200, self._ended(action_id, len(ended), len(selected) - len(ended))

    def _ended(self, action_id: str | None, ended: int, remaining: int) -> dict[str, Any]:
        total = self._actions.get(action_id or "", 0)
        counts = {"ended": ended, "totalEnded": total, "remaining": remaining}
        return {"actionId": action_id, **counts, "exact": True, "done": remaining == 0}

    def _list(self, request: httpx2.Request) -> tuple[int, Any]:
        query = request.url.params
        order = query.get("order", "newest")
        if order not in ("newest", "lapse"):
            raise _invalid("order", "must be newest, lapse")
        matching = self._matching(query)
        if order == "lapse":
            live = [answer for answer in matching if answer["isActive"]]
            matching = sorted(live, key=lambda answer: (answer["leaseExpiresAt"], answer["sessionId"]))
        return 200, {**_page("sessions", matching, query), "exact": True}

    def _count(self, request: httpx2.Request) -> tuple[int, Any]:
        return 200, {"count": len(self._matching(request.url.params)), "exact": True}

    def _matching(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the sessions that match the query, newest first."""
        filters = {
            "tenant": "tenantObjectId",
            "user": "userObjectId",
            "capacity": "capacityId",
            "kind": "sessionKind",
            "state": "state",
        }
        wanted = {field: query[name].lower() for name, field in filters.items() if name in query}
        if "closeReason" in query:
            wanted["closeReason"] = query["closeReason"]
        # The sort is stable and then reversed: of sessions with the same start, the last one opened comes first.
        newest = sorted(self._every(), key=lambda one: one.started)[::-1]
        matching = [
            answer
            for answer in (record.answer() for record in newest)
            if all(str(answer[field]) == value for field, value in wanted.items())
        ]
        if "active" in query:
            matching = [answer for answer in matching if answer["isActive"] is (query["active"] == "true")]
        return matching

    def _set_capacity(self, capacity_id: str, content: Any, _request: httpx2.Request) -> tuple[int, Any]:
        _check_id(capacity_id)
        now, before = _instant(self._now()), self._capacities.get(capacity_id.lower())
        tenant = content.get("tenantObjectId")
        self._capacities[capacity_id.lower()] = {
            "capacityId": capacity_id.lower(),
            "maxSessions": content.get("maxSessions"),
            "whenFull": content.get("whenFull", "reject"),
            "tenantObjectId": tenant and tenant.lower(),
            "createdAt": now if before is None else before["createdAt"],
            "modifiedAt": now,
        }
        return self._get_capacity(capacity_id, _request)

    def _get_capacity(self, capacity_id: str, _request: httpx2.Request) -> tuple[int, Any]:
        found = self._capacities.get(capacity_id.lower())
        if found is None:
            raise _Problem(404, "NOT_FOUND", f"capacity {capacity_id} was never set")
        return 200, {**found, "activeSessions": len(self._taken(capacity_id.lower()))}

    def _read_capacity(self, capacity_id: str, request: httpx2.Request) -> tuple[int, Any]:
        _, answer = self._get_capacity(capacity_id, request)
        ends = [(record.deadline()[0], record.id) for record in self._taken(capacity_id.lower())]
        deadline, session_id = min(ends, default=(None, ""))
        lapse = None if deadline is None else {"sessionId": session_id, "deadline": _instant(deadline)}
        return 200, {**answer, "nextLapse": lapse}

    def _list_capacities(self, request: httpx2.Request) -> tuple[int, Any]:
        tenant = request.url.params.get("tenant")
        found = [
            self._get_capacity(capacity_id, request)[1]
            for capacity_id, settings in sorted(self._capacities.items())
            if tenant is None or settings["tenantObjectId"] == tenant.lower()
        ]
        return 200, _page("capacities", found, request.url.params)

    def _delete_capacity(self, capacity_id: str, request: httpx2.Request) -> tuple[int, Any]:
        answer = self._get_capacity(capacity_id, request)
        del self._capacities[capacity_id.lower()]
        return answer

    def _health(self, _request: httpx2.Request) -> tuple[int, Any]:
        live = sum(record.closed is None for record in self._every())
        return 200, {"status": "ok", "version": "fake", "activeSessions": live}


class _Transport(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Hands requests to the fake server. Sync clients, async clients and their keepers share one transport."""

    is_fake = True

    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        return self._server.handle(request)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        return self._server.handle(request)


def _fault(error: Exception, *, after: bool) -> Callable[[Callable[[], httpx2.Response]], httpx2.Response]:
    def fail(handle: Callable[[], httpx2.Response]) -> httpx2.Response:
        if after:
            handle()
        raise error

    return fail


def _refusal(problem: _Problem) -> httpx2.Response:
    slug = problem.code.lower().replace("_", "-")
    document = {
        "type": f"urn:tenure:{slug}",
        "title": slug,
        "status": problem.status,
        "detail": str(problem),
        "error": str(problem),
        "code": problem.code,
        **problem.more,
    }
    headers = {"content-type": "application/problem+json", "x-request-id": str(uuid.uuid4())}
    if problem.status in _RETRY_AFTER:
        headers["retry-after"] = _RETRY_AFTER[problem.status]
    return httpx2.Response(problem.status, content=msgspec.json.encode(document), headers=headers)


def _invalid(field: str, message: str) -> _Problem:
    errors = [{"field": field, "message": message}]
    return _Problem(400, "INVALID", f"{field}: {message}", errors=errors)


def _open_body(content: Any) -> OpenBody:
    if not isinstance(content, dict):
        raise _invalid("body", "must be a JSON object")
    for field in ("userObjectId", "tenantObjectId", "capacityId"):
        if not _is_uuid(content.get(field)):
            raise _invalid(field, "must be a UUID" if field in content else "is missing")
    if content.get("sessionKind") not in (1, 2, 3):
        raise _invalid("sessionKind", "must be 1, 2 or 3")
    for field, (least, most) in (("leaseSeconds", LEASE_RANGE), ("idleSeconds", IDLE_RANGE)):
        if content.get(field) is not None and not least <= content[field] <= most:
            raise _invalid(field, f"must be a whole number from {least} to {most}")
    return msgspec.convert(content, OpenBody)


def _flag(content: Mapping[str, Any]) -> bool:
    return content.get("active") is True


def _beat(record: _Record) -> dict[str, Any]:
    return {
        "acknowledged": True,
        "leaseExpiresAt": _instant(record.deadline()[0]),
        "heartbeatInterval": record.interval,
        "state": record.state,
    }


def _page(name: str, items: list[Any], query: Mapping[str, str]) -> dict[str, Any]:
    limit, cursor = query.get("limit", "100"), query.get("cursor", "0")
    if not (limit.isdecimal() and 1 <= int(limit) <= LIMIT_MAX):
        raise _invalid("limit", f"must be a whole number from 1 to {LIMIT_MAX}")
    if not cursor.isdecimal():
        raise _invalid("cursor", "must be the nextCursor of a previous response")
    at, end = int(cursor), int(cursor) + int(limit)
    page = items[at:end]
    return {name: page, "count": len(page), "nextCursor": str(end) if len(items) > end else None}


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _check_id(value: str) -> None:
    if not _is_uuid(value):
        raise _Problem(404, "NOT_FOUND", f"capacity {value} does not exist")


def _instant(value: datetime) -> str:
    return value.isoformat(timespec="microseconds")[:26] + "Z"


__all__ = ["FakeServer", "ManualClock", "Request"]
