"""`hold` against a real `tenure serve`, with real sockets, signals and time. Many leases have the minimum of 5 s.

Some tests compare two instants: the last one at which the client treated a session as live, and the end of the session
that the server recorded. The first must not be after the second.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import pytest
from conftest import Service, StartService, ids, wait_until
from proxy import Proxy

from tenure_client import Client, HeldSession, LostReason, SessionLost

pytestmark = pytest.mark.slow
LEASE = 5


class Trust(threading.Thread):
    """Records when the client last treated each session as live.

    The thread reads the clock before `session.lost`. So if the thread is paused in between, the recorded time is too
    early, and the test does not fail because of the pause.
    """

    def __init__(self, sessions: dict[str, HeldSession]) -> None:
        super().__init__()
        self._sessions = sessions
        self.until: dict[str, datetime] = {}
        self.start()

    def run(self) -> None:
        trusted = dict(self._sessions)
        while trusted:
            for name, session in list(trusted.items()):
                now = datetime.now(UTC)
                if session.lost:
                    del trusted[name]
                else:
                    self.until[name] = now
            time.sleep(0.001)


def assert_lost_in_time(trusted_until: datetime, session_id: str, url: str, key: str | None) -> None:
    """Assert that the client did not treat the session as live after the end that the server recorded.

    The two times are comparable, because SQLite uses the clock of this machine.
    """
    with Client(url, key) as client:
        wait_until(lambda: not client.sessions.get(session_id).is_active)
        session = client.sessions.get(session_id)
        assert session.session_start_utc < trusted_until <= session.session_end_utc


def test_short_outage_within_lease_is_survived(start_service: StartService) -> None:
    service = start_service()
    with Client(service.url) as client, client.hold(**ids(lease_seconds=20)) as session:
        time.sleep(1)
        service.kill()
        time.sleep(2)
        assert not session.lost
        service.start()
        wait_until(lambda: session.lost.error is None and session.remaining > 18)
        assert session.get().is_active
    assert session.ended


class Outages:
    """Four sessions that are lost in different ways at the same time, and one that survives."""

    def __init__(self, hung: Service, down: Service, keyed: Service, proxy: Proxy, workers: "Workers") -> None:
        del workers  # Required only so that the workers are started before the outages, and run during them.
        self.lost: dict[str, HeldSession] = {}
        with Client(keyed.url) as anonymous:
            self.operator = anonymous.keys.create("operator", "operator").key
        with Client(keyed.url, self.operator) as admin:
            wait_until(lambda: _works(admin))
            key = admin.keys.create("worker", "client")
            self.key = key.key
            clients = {
                "hung": Client(hung.url),
                "down": Client(down.url),
                "revoked": Client(keyed.url, key.key),
                "partition": Client(proxy.url),
            }
            wait_until(lambda: _works(clients["revoked"]))
            self.survivor = clients["partition"].hold(**ids(lease_seconds=20)).open()
            held = {name: client.hold(**ids(lease_seconds=LEASE)).open() for name, client in clients.items()}
            for name, session in held.items():
                session.lost.on(lambda _loss, n=name, s=session: self.lost.update({n: s}))
            trust = Trust(held)
            time.sleep(1.2)
            proxy.swallow()
            hung.send(signal.SIGSTOP)
            down.kill()
            admin.keys.revoke(key.public_id)
        wait_until(lambda: len(self.lost) == len(clients), LEASE + 15)
        trust.join()
        self.trusted_until = trust.until
        self.survivor_was_lost = bool(self.survivor.lost)
        # The old connection stays open, but never gets a response. Only a new connection works.
        proxy.heal()
        wait_until(lambda: self.survivor.lost or (self.survivor.lost.error is None and self.survivor.remaining > 18))
        hung.send(signal.SIGCONT)
        down.start()
        for client in clients.values():
            client.close()


@pytest.fixture(scope="module")
def outages(
    service: Service, workers: "Workers", tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Outages, dict[str, str]]]:
    services = [Service(tmp_path_factory.mktemp(name)) for name in ("hung", "down", "keyed")]
    proxy = Proxy(service.url)
    urls = dict(zip(("hung", "down", "revoked"), (each.url for each in services), strict=True))
    yield Outages(*services, proxy, workers), {**urls, "partition": service.url}
    proxy.close()
    for each in services:
        each.kill()


@pytest.mark.parametrize("name", ["down", "hung", "partition", "revoked"])
def test_client_loses_session_before_server_ends_it(name: str, outages: tuple[Outages, dict[str, str]]) -> None:
    """A killed server refuses connections. A stopped server and a partition accept them, but send no response.

    A revoked key gets 401.
    """
    session, trusted_until = outages[0].lost[name], outages[0].trusted_until[name]
    assert session.lost.reason == LostReason.UNREACHABLE
    with pytest.raises(SessionLost):
        session.check()
    expected = {"revoked": "UNAUTHENTICATED", "partition": "Timeout", "hung": "Timeout", "down": "ConnectError"}
    assert expected[name] in str(session.lost.error)
    assert outages[0].key not in str(session.lost.error)
    assert_lost_in_time(trusted_until, session.id, outages[1][name], outages[0].operator if name == "revoked" else None)


def test_session_survives_partition_that_heals_within_lease(outages: tuple[Outages, dict[str, str]]) -> None:
    assert not outages[0].survivor_was_lost
    assert outages[0].survivor.lost.reason == LostReason.STOPPED, "lost before the client was closed"


STOPPED = """
import json, sys, time
from tenure_client import Client, SessionLost
with Client(sys.argv[1]) as client, client.hold(**json.loads(sys.argv[2])) as session:
    print(session.id, flush=True)
    while True:
        before = time.time()
        try:
            session.check()
        except SessionLost as lost:
            print(lost.reason, before, flush=True)
            break
        time.sleep(0.001)
"""


STARVED = """
import ctypes, sys
from tenure_client import Client
from conftest import ids
with Client(sys.argv[1]) as client, client.hold(**ids(lease_seconds=5)) as session:
    assert not session.lost
    ctypes.PyDLL(None).sleep(6)
    assert session.lost, "still treated as live"
    print("lost", flush=True)
"""

BLOCKED = """
import asyncio, sys, time
from tenure_client import AsyncClient
from conftest import ids
async def main():
    async with AsyncClient(sys.argv[1]) as client, client.hold(**ids(lease_seconds=5)) as session:
        time.sleep(10)
        print(session.lost.reason, (await session.get()).is_active, flush=True)
asyncio.run(main())
"""

MANY = """
import sys, time
from tenure_client import Client
from conftest import ids
with Client(sys.argv[1]) as client:
    held = [client.hold(**ids(lease_seconds=60)).open() for _ in range(500)]
    keeper = client._shared.keeper()
    time.sleep(6)
    requests, began, cpu = keeper.requests, time.monotonic(), time.process_time()
    time.sleep(10)
    took = time.monotonic() - began
    print(keeper.requests - requests, (time.process_time() - cpu) / took, any(s.lost for s in held), flush=True)
"""


class Workers:
    """Processes that take several seconds. They start early, and run while other tests run."""

    def __init__(self, url: str) -> None:
        self.stopped, self.killed = (Worker(STOPPED, url, json.dumps(ids(lease_seconds=LEASE))) for _ in range(2))
        self.starved = Worker(STARVED, url)
        self.blocked = Worker(BLOCKED, url)
        self.many = Worker(MANY, url)
        self.continued_at = 0.0
        self.stopped_session, self.killed_session = self.stopped.line(), self.killed.line()
        self.killed.process.kill()
        self.stopped.process.send_signal(signal.SIGSTOP)
        self._continuing = threading.Timer(LEASE + 1, self._continue)
        self._continuing.start()

    def _continue(self) -> None:
        self.continued_at = time.time()
        self.stopped.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._continuing.join()
        for worker in (self.stopped, self.killed, self.starved, self.blocked, self.many):
            worker.close()


@pytest.fixture(scope="module")
def workers(service: Service) -> Iterator[Workers]:
    made = Workers(service.url)
    yield made
    made.close()


def test_blocked_event_loop_does_not_lose_session(workers: Workers) -> None:
    assert workers.blocked.line() == "None True"
    assert workers.blocked.exit_code() == 0


FORK = """
import gc, os, sys
from tenure_client import Client, SessionLost
from conftest import ids
client = Client(sys.argv[1])
with client.hold(**ids(lease_seconds=5)) as session:
    child = os.fork()
    if child == 0:
        assert session.lost.reason == "forked"
        assert session.lost.event.is_set()
        try:
            session.check()
        except SessionLost as lost:
            assert lost.reason == "forked"
        else:
            os._exit(1)
        # The child's own requests and sessions work: they use new connections and a new thread.
        with client.hold(**ids(lease_seconds=5)) as own:
            assert own.get().is_active and not own.lost
        assert client.sessions.get(session.id).is_active
        os.write(1, b"child\\n")
    else:
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert not session.lost
        assert session.get().is_active, "the child's exit ended the parent's session"
        print("parent", flush=True)
"""


def test_forked_child_does_not_hold_its_parents_session(service: Service) -> None:
    """Parent and child both leave the block, and exit as programs do. Only the parent ends the session."""
    with Worker(FORK, service.url) as worker:
        assert [worker.line(), worker.line()] == ["child", "parent"]
        assert worker.exit_code() == 0


EXIT = """
import sys
from tenure_client import Client
from conftest import ids
client = Client(sys.argv[1])
session = client.hold(**ids(lease_seconds=60)).open()
print(session.id, flush=True)
"""


def test_exit_without_close_ends_session(service: Service) -> None:
    with Worker(EXIT, service.url) as worker:
        session_id = worker.line()
        assert worker.exit_code() == 0
    with Client(service.url) as client:
        assert client.sessions.get(session_id).close_reason in ("STOPPED", "TERMINATED")


def test_client_notices_eviction_and_upgrade(service: Service) -> None:
    with Client(service.url) as client:
        capacity = ids()["capacity"]
        client.capacities.set(capacity, max_sessions=1, when_full="evictOldest")
        who = ids(lease_seconds=LEASE)
        with client.hold(**ids(capacity=capacity, lease_seconds=LEASE)) as evicted, client.hold(**who) as upgraded:
            client.sessions.open(**ids(capacity=capacity))
            client.sessions.open(**{**who, "kind": 3})
            assert evicted.lost.wait(10)
            assert upgraded.lost.wait(10)
            assert (evicted.lost.reason, upgraded.lost.reason) == (LostReason.EVICTED, LostReason.UPGRADED)


def test_session_that_expired_during_sigstop_is_lost_at_once(service: Service, workers: Workers) -> None:
    reason, found_at = workers.stopped.line().split()
    assert reason in ("expired", "unreachable")
    # The check that found the loss began before the process continued, or soon after.
    assert float(found_at) < workers.continued_at + 1
    with Client(service.url) as client:
        assert client.sessions.get(workers.stopped_session).close_reason == "LEASE_EXPIRED"


def test_loss_while_interpreter_lock_was_held_is_noticed_on_use(workers: Workers) -> None:
    """Native code that holds the GIL also stops the thread that renews. The next use shows that the session is lost."""
    assert workers.starved.line() == "lost"
    assert workers.starved.exit_code() == 0


def test_killed_process_stops_renewing(service: Service, workers: Workers) -> None:
    with Client(service.url) as client:
        wait_until(lambda: not client.sessions.get(workers.killed_session).is_active)
        assert client.sessions.get(workers.killed_session).close_reason == "LEASE_EXPIRED"


def test_500_sessions_take_one_request_per_interval_and_little_cpu(workers: Workers) -> None:
    requests, cpu, lost = workers.many.line().split()
    assert int(requests) <= 3
    assert float(cpu) < 0.05
    assert lost == "False"
    assert workers.many.exit_code() == 0


def _works(client: Client) -> bool:
    try:
        client.sessions.list(limit=1).first()
    except Exception:  # noqa: BLE001
        return False
    return True


class Worker:
    """A Python process that runs `code`, and prints lines."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        line: list[str] = []
        reader = threading.Thread(target=lambda: line.append(self.process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        reader.join(40)
        assert line, "the process printed nothing"
        return line[0].strip()

    def exit_code(self) -> int:
        return self.process.wait(30)
