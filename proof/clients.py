"""The clients of a run, of all kinds. Each runs in a loop until the run stops, and records in the history what the
checks need: its requests and responses, or what it has held, sent or read.

| client | sends | for the checks |
|---|---|---|
| users | opens, heartbeats and ends for contested keys; each user uses one instance | one session, deadlines |
| a crowd | opens of the same new keys on all instances at once | one session, answers (deadlocks) |
| seat users | opens and ends on two limited capacities | seats |
| holders | `hold` of the Python client | belief |
| streamers | streams of the Python client | streams |
| submitters | submissions, repeated until they are accepted | submissions |
| followers | the feed of events, by long polls and as Server-Sent Events | events |
| intruders | requests that their API keys do not allow | access |
| key users | requests with API keys that they create, use, revoke, and still use after that | access |
| lease watchers | `GET /leases` | leases |
| the operator | ends of held sessions | belief |
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

from proof.ensemble import Ensemble, Instance
from proof.history import Belief, Feed, History, Key, KeyLife, Operation, Sighting, Stream, now
from proof.http import LINE_MAX, HttpClient, request_bytes
from proof.plan import (
    EVICTING_SEATS,
    HOLD_LEASE_SECONDS,
    HOLDERS,
    REFUSING_SEATS,
    SEAT_USERS,
    STREAMERS,
    SUBMITTERS,
    USERS,
    Plan,
)
from tenure_client import AsyncClient, TenureError

KEYS = 5
"""How many keys the users contest at a time."""
KEY_SECONDS = 6.0
"""The longest time for which users contest a key. Then a new key takes its place, so that the history of each key stays
small. The shortest time is half of this."""
PAUSE_SECONDS = 0.15
CROWD = 6
CROWD_PAUSE_SECONDS = 0.8
SUBMIT_PAUSE_SECONDS = 0.15
RETRY_SECONDS = 0.1
LOOK_SECONDS = 0.03
ACCEPT_TRIES_MAX = 400
READY_IN_A_ROW = 12
"""How many requests in a row the proxy must answer with 200. These requests take more than a second. HAProxy checks
each instance every half a second, so it has checked all instances by then."""
KEY_USE_SECONDS = 9.0
"""How long an API key is used after its revocation."""
ENDS_FOR_HOLDERS = 0.15
FOLLOW_SECONDS = 15.0


class Credentials(NamedTuple):
    """The API keys of the run, each with its label."""

    operator: tuple[str, str]
    client: tuple[str, str]
    reader: tuple[str, str]
    tenant_client: tuple[str, str]
    tenant_reader: tuple[str, str]


class World:
    """The state that all clients of a run share."""

    def __init__(self, ensemble: Ensemble, history: History, credentials: Credentials) -> None:
        self.ensemble = ensemble
        self.plan: Plan = ensemble.plan
        self.history = history
        self.credentials = credentials
        self.stopping = asyncio.Event()
        self.ids = ids(random.Random(f"ids {self.plan.seed}"))
        self.tenants = [next(self.ids) for _ in range(3)]
        """The first is the tenant to which two of the API keys are bound. These keys must not see the other tenants."""
        self.refusing, self.evicting, self.unlimited = next(self.ids), next(self.ids), next(self.ids)
        self.held: list[str] = []
        """The ids of the sessions that holders hold at present. The operator ends some of these sessions."""
        self.foreign: list[str] = []
        """The ids of recent sessions of another tenant. Intruders send requests for these sessions."""

    def random(self, name: str) -> random.Random:
        return random.Random(f"{self.plan.seed} {name}")

    def client(self, kind: str, credential: tuple[str, str], instance: Instance | None = None) -> HttpClient:
        """A client of `instance`. If None: of the proxy, or of instance 0 if HAProxy is not installed."""
        if instance is None and self.ensemble.front is not None:
            return HttpClient(self.history, kind, self.ensemble.front.port, "proxy", credential)
        chosen = self.ensemble.instances[0] if instance is None else instance
        return HttpClient(self.history, kind, chosen.front.port, chosen.name, credential)

    @property
    def address(self) -> str:
        """The address of the proxy. If HAProxy is not installed: of the last instance."""
        front = self.ensemble.instances[-1].front if self.ensemble.front is None else self.ensemble.front
        return f"http://127.0.0.1:{front.port}"

    async def pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()


def ids(source: random.Random) -> Iterator[str]:
    while True:
        yield str(UUID(int=source.getrandbits(128), version=4))


async def set_up(ensemble: Ensemble, history: History) -> World:
    """Creates the API keys of the run, except the operator's, sets the limits of two capacities, and waits until the
    proxy is ready.
    """
    operator = ("operator", ensemble.operator)
    tenant = next(ids(random.Random(f"ids {ensemble.plan.seed}")))
    client = HttpClient(history, "driver", ensemble.instances[0].front.port, "instance 0", operator)
    made = [
        await _create_key(client, name, role, bound)
        for name, role, bound in (
            ("client", "client", None),
            ("reader", "reader", None),
            ("tenant client", "client", tenant),
            ("tenant reader", "reader", tenant),
        )
    ]
    world = World(ensemble, history, Credentials(operator, *made))
    for capacity, seats, rule in (
        (world.refusing, REFUSING_SEATS, "reject"),
        (world.evicting, EVICTING_SEATS, "evictOldest"),
    ):
        body = {"maxSessions": seats, "whenFull": rule}
        await _until_ok(
            lambda capacity=capacity, body=body: client.send(  # type: ignore[misc]
                "PUT", f"/capacities/{capacity}", body, action="capacity"
            )
        )
    client.close()
    await _proxy_is_ready(world)
    return world


async def _proxy_is_ready(world: World) -> None:
    """Waits until the proxy has noticed that the instances are ready."""
    client = world.client("driver", world.credentials.reader)
    in_a_row = 0
    for _ in range(ACCEPT_TRIES_MAX):
        asked = await client.send("GET", "/me", action="me")
        in_a_row = in_a_row + 1 if asked.status == 200 else 0
        if in_a_row == READY_IN_A_ROW:
            break
        await asyncio.sleep(RETRY_SECONDS)
    client.close()


async def _create_key(client: HttpClient, name: str, role: str, tenant: str | None) -> tuple[str, str]:
    body = {"name": name.replace(" ", "-"), "role": role, **({} if tenant is None else {"tenantObjectId": tenant})}
    made = await _until_ok(lambda: client.send("POST", "/keys", body, action="key"))
    key = str(made.answer.pop("key"))
    return name, key


async def _until_ok(send: Callable[[], Awaitable[Operation]]) -> Operation:
    for _ in range(ACCEPT_TRIES_MAX):
        operation = await send()
        if operation.status in (200, 201, 202):
            return operation
        await asyncio.sleep(RETRY_SECONDS)
    raise RuntimeError(f"the ensemble does not serve: {operation}")


def all_clients(world: World) -> list[Awaitable[None]]:
    plan = world.plan
    keys = _KeyPool(world)
    return [
        *(_user(world, keys, number) for number in range(plan.count(USERS))),
        _crowd(world),
        *(_seat_user(world, number) for number in range(plan.count(SEAT_USERS))),
        *(_holder(world, number) for number in range(plan.count(HOLDERS))),
        *(_streamer(world, number) for number in range(plan.count(STREAMERS))),
        *(_submitter(world, number) for number in range(plan.count(SUBMITTERS))),
        _intruder(world, "tenant client"),
        _intruder(world, "tenant reader"),
        _key_user(world),
        _lease_watcher(world),
        _operator(world),
    ]


# Sessions


def _body(key: Key, tenant: str, kind: int) -> dict[str, Any]:
    return {"capacityId": key[0], "userObjectId": key[1], "tenantObjectId": tenant, "sessionKind": kind}


class _KeyPool:
    def __init__(self, world: World) -> None:
        self._world = world
        self._keys: list[tuple[int, Key]] = []

    def choose(self, source: random.Random) -> Key:
        oldest = now() - KEY_SECONDS * 1e6
        self._keys = [each for each in self._keys if each[0] > oldest]
        while len(self._keys) < KEYS:
            age = source.uniform(0, KEY_SECONDS / 2) * 1e6
            self._keys.append((int(now() - age), (self._world.unlimited, next(self._world.ids))))
        return source.choice(self._keys)[1]


async def _user(world: World, keys: _KeyPool, number: int) -> None:
    source = world.random(f"user {number}")
    instance = world.ensemble.instances[number % len(world.ensemble.instances)]
    client = world.client("user", world.credentials.client, instance)
    tenant = world.tenants[1]
    while not world.stopping.is_set():
        key = keys.choose(source)
        kind = source.choices((1, 2, 3), (6, 3, 1))[0]
        opened = await client.send("PUT", "/sessions", _body(key, tenant, kind), action="open", key=key, kind=kind)
        if opened.status in (200, 201):
            session_id = opened.answer["sessionId"]
            _remember(world.foreign, session_id)
            await world.pause(source.uniform(0, PAUSE_SECONDS / 2))
            chance = source.random()
            if chance < 0.35:
                await client.send(
                    "POST", f"/sessions/{session_id}/heartbeat", action="heartbeat", key=key, session_id=session_id
                )
            elif chance < 0.6:
                await client.send("DELETE", f"/sessions/{session_id}", action="end", key=key, session_id=session_id)
        await world.pause(source.uniform(0, 2 * PAUSE_SECONDS) + (RETRY_SECONDS if opened.failure else 0))
    client.close()


async def _crowd(world: World) -> None:
    """Opens several new keys on all instances at the same moment: batches of two instances then have the same keys."""
    source = world.random("crowd")
    clients = [
        [world.client("user", world.credentials.client, instance) for _ in range(CROWD)]
        for instance in world.ensemble.instances
    ]
    while not world.stopping.is_set():
        keys = [(world.unlimited, next(world.ids)) for _ in range(CROWD)]
        await asyncio.gather(
            *(
                client.send("PUT", "/sessions", _body(key, world.tenants[1], 1), action="open", key=key, kind=1)
                for each in clients
                for client, key in zip(each, source.sample(keys, CROWD), strict=True)
            )
        )
        await world.pause(source.uniform(0, 2 * CROWD_PAUSE_SECONDS))
    for client in (client for each in clients for client in each):
        client.close()


def _remember(sessions: list[str], session_id: str) -> None:
    sessions.append(session_id)
    if len(sessions) > 50:
        del sessions[:25]


async def _seat_user(world: World, number: int) -> None:
    source = world.random(f"seats {number}")
    client = world.client("seats", world.credentials.client)
    direct = [world.client("seats", world.credentials.client, each) for each in world.ensemble.instances]
    while not world.stopping.is_set():
        chosen = source.choice([client, source.choice(direct)])
        key = (source.choice([world.refusing, world.evicting]), next(world.ids))
        body = _body(key, world.tenants[source.randrange(2)], source.choice((1, 2, 3)))
        opened = await chosen.send("PUT", "/sessions", body, action="open", key=key, kind=body["sessionKind"])
        if opened.status == 201:
            await world.pause(source.uniform(0, 0.4))
            if source.random() < 0.7:
                session_id = opened.answer["sessionId"]
                await chosen.send("DELETE", f"/sessions/{session_id}", action="end", key=key, session_id=session_id)
        await world.pause(source.uniform(0, PAUSE_SECONDS) + (RETRY_SECONDS if opened.failure else 0))
    for each in (client, *direct):
        each.close()


async def _holder(world: World, number: int) -> None:
    source = world.random(f"holder {number}")
    async with AsyncClient(world.address, key=world.credentials.client[1], timeout=5) as client:
        while not world.stopping.is_set():
            with suppress(TenureError):
                await _hold_once(world, client, source)
            await world.pause(RETRY_SECONDS)


async def _hold_once(world: World, client: AsyncClient, source: random.Random) -> None:
    user, tenant = next(world.ids), world.tenants[source.randrange(2)]
    async with client.hold(
        user=user, tenant=tenant, capacity=world.unlimited, kind=2, lease_seconds=int(HOLD_LEASE_SECONDS)
    ) as session:
        belief = Belief(
            session_id=str(session.id), lease_seconds=HOLD_LEASE_SECONDS, opened_at=now(), believed_at=0, looks=0
        )
        world.history.beliefs.append(belief)
        world.held.append(belief.session_id)
        lasts = source.uniform(2, 12)
        try:
            while belief.looks * LOOK_SECONDS < lasts and not world.stopping.is_set():
                # Read the clock before the check. If the session is not lost at the check, the client treated it as
                # live at this instant, too.
                looked_at = now()
                if session.lost:
                    belief.lost_reason = str(session.lost.reason)
                    return
                belief.believed_at = looked_at
                belief.looks += 1
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            world.held.remove(belief.session_id)


async def _operator(world: World) -> None:
    """Ends a held session from time to time."""
    source = world.random("operator")
    client = world.client("operator", world.credentials.operator)
    while not world.stopping.is_set():
        await world.pause(source.uniform(0.5, 2))
        if world.held and source.random() < ENDS_FOR_HOLDERS * 2:
            session_id = source.choice(world.held)
            await client.send("DELETE", f"/sessions/{session_id}", action="end", session_id=session_id)
    client.close()


async def _streamer(world: World, number: int) -> None:
    source = world.random(f"streamer {number}")
    async with AsyncClient(world.address, key=world.credentials.client[1], timeout=5) as client:
        while not world.stopping.is_set():
            with suppress(TenureError, OSError, TimeoutError):
                async with asyncio.timeout(FOLLOW_SECONDS):
                    await _stream_once(world, client, source)
            await world.pause(source.uniform(0, 0.5))


async def _stream_once(world: World, client: AsyncClient, source: random.Random) -> None:
    user, tenant = next(world.ids), world.tenants[source.randrange(2)]
    stream = client.stream(user=user, tenant=tenant, capacity=world.unlimited, kind=1)
    async with stream:
        record = Stream(session_id=str(stream.session.session_id), sent=0, echoed=0, stopped=False)
        world.history.streams.append(record)
        for _ in range(source.randrange(1, 25)):
            await stream.send(f"message {record.sent}")
            record.sent += 1
            await world.pause(source.uniform(0, 0.2))
        await stream.stop()
        async for _message in stream:
            record.echoed += 1
        if stream.end is not None:
            record.stopped = stream.end.reason == "STOPPED"
            record.reason = str(stream.end.reason)
            record.counted = None if stream.end.metrics is None else stream.end.metrics.chunks


# Submissions


async def _submitter(world: World, number: int) -> None:
    source = world.random(f"submitter {number}")
    clients = [world.client("submitter", world.credentials.client, each) for each in world.ensemble.instances]
    for turn in count():
        if world.stopping.is_set():
            break
        body = {"gateway": "orders", "payload": {"order": f"{number}-{turn}"}}
        header = f"Idempotency-Key: order-{number}-{turn}"
        # A submission is repeated until it is accepted, even after the end of the run, so that its outcome is known.
        for _ in range(ACCEPT_TRIES_MAX):
            sent = await source.choice(clients).send("POST", "/submissions", body, (header,), action="submit")
            if sent.status == 202:
                world.history.accepted[sent.answer["submissionId"]] = 1
                break
            await asyncio.sleep(RETRY_SECONDS)
        await world.pause(source.uniform(0, 2 * SUBMIT_PAUSE_SECONDS))
    for client in clients:
        client.close()


# Events


class Follower:
    """Reads the feed from its beginning. Whenever the connection is lost, the follower continues on a random
    instance.
    """

    def __init__(self, world: World, name: str) -> None:
        self._ports = [each.front.port for each in world.ensemble.instances]
        self._key = world.credentials.reader[1]
        self._source = world.random(name)
        self.feed = Feed(name=name, events=[])
        self._cursor: str | None = None
        world.history.feeds.append(self.feed)

    async def run(self) -> None:
        while True:
            with suppress(OSError, EOFError, ValueError, TimeoutError, KeyError):
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", self._source.choice(self._ports), limit=LINE_MAX
                    )
                self.feed.connections += 1
                try:
                    await (self._poll if self.feed.name == "long polls" else self._stream)(reader, writer)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(RETRY_SECONDS)

    async def _poll(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            after = "" if self._cursor is None else f"&after={self._cursor}"
            writer.write(request_bytes("GET", f"/events?wait=5&limit=100{after}", self._key, None))
            async with asyncio.timeout(FOLLOW_SECONDS):
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
            if not head.startswith(b"http/1.1 200"):
                return
            self.feed.events += body["events"]
            self._cursor = body["nextCursor"]

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        last = () if self._cursor is None else (f"Last-Event-ID: {self._cursor}",)
        writer.write(request_bytes("GET", "/events", self._key, None, ("Accept: text/event-stream", *last)))
        async with asyncio.timeout(FOLLOW_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            return
        text = b""
        while True:
            # The server sends a comment at least every 15 s.
            async with asyncio.timeout(2 * FOLLOW_SECONDS):
                size = int(await reader.readuntil(b"\r\n"), 16)
                piece = (await reader.readexactly(size + 2))[:-2]
            if not size:
                return
            *blocks, text = (text + piece).split(b"\n\n")
            for block in blocks:
                fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if line[:1] not in ("", ":"))
                if "data" in fields:
                    self.feed.events.append(json.loads(fields["data"]))
                self._cursor = fields.get("id", self._cursor)


# Access


async def _intruder(world: World, label: str) -> None:
    """Sends requests that its API key does not allow: for sessions of other tenants, and to routes of other roles. Also
    reads lists, which must contain only data of its own tenant.
    """
    source = world.random(label)
    credential = {each[0]: each for each in world.credentials}[label]
    clients = [world.client("intruder", credential, each) for each in world.ensemble.instances]
    forbidden = [
        ("GET", "/keys"),
        ("GET", "/leases"),
        ("GET", "/audit-log"),
        ("PUT", "/capacities/{}"),
        ("GET", "/jobs"),
    ]
    while not world.stopping.is_set():
        await world.pause(source.uniform(0, 2 * PAUSE_SECONDS))
        client = source.choice(clients)
        if world.foreign and source.random() < 0.7:
            session_id = source.choice(world.foreign)
            calls = (("POST", "/heartbeat"), ("DELETE", ""), ("GET", ""), ("GET", "/history"))
            method, path = source.choices(calls, (2, 2, 1, 1))[0]
            await client.send(method, f"/sessions/{session_id}{path}", action="foreign session", session_id=session_id)
        elif source.random() < 0.5:
            path = source.choice(("/sessions?limit=50", "/events?limit=50"))
            await client.send("GET", path, action="list")
        else:
            method, path = source.choice(forbidden)
            body = {"maxSessions": 1} if method == "PUT" else None
            await client.send(method, path.format(world.refusing), body, action="forbidden route")
    for each in clients:
        each.close()


async def _key_user(world: World) -> None:
    """Creates API keys, uses each on all instances, revokes it, and continues to use it."""
    source = world.random("keys")
    operator = world.client("operator", world.credentials.operator)
    lives: set[asyncio.Task[None]] = set()
    for number in count():
        if world.stopping.is_set():
            break
        body = {"name": f"short-{number}", "role": "client"}
        made = await operator.send("POST", "/keys", body, action="key")
        if made.status == 201:
            life = KeyLife(label=f"short {number}", public_id=made.answer["publicId"])
            world.history.key_lives.append(life)
            key = made.answer.pop("key")
            task = asyncio.create_task(_use_key(world, life, key))
            lives.add(task)
            task.add_done_callback(lives.discard)
            await world.pause(source.uniform(1, 2))
            # Repeat the request until an answer confirms the revocation.
            for _ in range(ACCEPT_TRIES_MAX):
                revoked = await operator.send("DELETE", f"/keys/{life.public_id}", action="revoke")
                if revoked.status == 200:
                    life.revoked_at = revoked.returned_at
                    break
                await asyncio.sleep(RETRY_SECONDS)
        await world.pause(source.uniform(1, 3))
    for task in list(lives):
        task.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    operator.close()


async def _use_key(world: World, life: KeyLife, key: str) -> None:
    clients = [world.client("key user", (life.label, key), each) for each in world.ensemble.instances]
    try:
        while not life.revoked_at or now() < life.revoked_at + KEY_USE_SECONDS * 1e6:
            for client in clients:
                await client.send("GET", "/me", action="me")
            await asyncio.sleep(0.25)
    finally:
        for client in clients:
            client.close()


async def _lease_watcher(world: World) -> None:
    source = world.random("leases")
    clients = [world.client("lease watcher", world.credentials.reader, each) for each in world.ensemble.instances]
    while not world.stopping.is_set():
        seen = await source.choice(clients).send("GET", "/leases?limit=500", action="leases")
        if seen.status == 200:
            for lease in seen.answer.pop("leases"):
                world.history.sightings.append(
                    Sighting(
                        name=lease["name"],
                        epoch=lease["epoch"],
                        holder=lease["holder"],
                        held=lease["held"],
                        asked_at=seen.called_at,
                        seen_at=seen.returned_at,
                    )
                )
        await world.pause(0.3)
    for client in clients:
        client.close()


def followers(world: World) -> Sequence[Follower]:
    return [Follower(world, "long polls"), Follower(world, "event stream")]
