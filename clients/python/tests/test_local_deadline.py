"""The local deadline of a client is never after the deadline on the server. Limits, delays and the heartbeats of other
clients are random.
"""

import random
from datetime import UTC, datetime, timedelta

import pytest

from tenure_client._clock import SystemClock
from tenure_client._core import Key
from tenure_client._lease import Anchor, Lease
from tenure_client.models import Session

ZERO = datetime(2026, 1, 1, tzinfo=UTC)


class Server:
    """A session with its limits, as the server stores it.

    The server's clock runs up to 0.05 % faster or slower than the client's.
    """

    def __init__(self, luck: random.Random) -> None:
        self._rate = 1 + luck.uniform(-0.0005, 0.0005)
        self.lease = luck.choice([None, 5, 20, 60])
        self.idle = luck.choice([None, None, 5, 30, 90])
        self._term = luck.choice([40, 3600, 86_400])
        self.started = self.heartbeat = self.activity = self.time(luck.uniform(0, 10))

    def time(self, real: float) -> datetime:
        return ZERO + timedelta(seconds=real * self._rate)

    def real(self, time: datetime) -> float:
        return (time - ZERO).total_seconds() / self._rate

    def deadline(self) -> datetime:
        ends = [self.started + timedelta(seconds=self._term)]
        if self.lease is not None:
            ends.append(self.heartbeat + timedelta(seconds=self.lease))
        if self.idle is not None:
            ends.append(self.activity + timedelta(seconds=self.idle))
        return min(ends)

    def renew(self, real: float, *, active: bool) -> bool:
        if self.time(real) >= self.deadline():
            return False
        self.heartbeat = self.time(real)
        if active:
            self.activity = self.heartbeat
        return True

    @property
    def interval(self) -> int | None:
        return None if self.lease is None else max(self.lease // 12, 1)

    def session(self) -> Session:
        return Session(
            session_id="s",
            user_object_id="u",
            tenant_object_id="t",
            capacity_id="c",
            session_kind=1,
            session_start_utc=self.started,
            session_end_utc=self.started + timedelta(seconds=self._term),
            is_active=True,
            state="created",
            lease_expires_at=self.deadline(),
            heartbeat_interval=self.interval,
            last_heartbeat=self.heartbeat,
            last_activity=self.activity,
            close_reason=None,
            previous_session_id=None,
            created_utc=self.started,
            modified_utc=self.started,
            stream=None,
        )


@pytest.mark.parametrize("opened", [True, False])
def test_local_deadline_is_never_after_the_servers(*, opened: bool) -> None:
    seed = random.SystemRandom().getrandbits(32)
    luck = random.Random(seed)
    for _ in range(400):
        _one_session(luck, seed, opened=opened)


def _one_session(luck: random.Random, seed: int, *, opened: bool) -> None:
    server = Server(luck)
    real = server.real(server.started)
    lease = Lease(server.session(), Key(None), SystemClock(), Anchor(), active=False)
    delay = luck.expovariate(5)
    if opened:
        lease.opened(server.session(), real - delay)
    else:
        # Another program opened the session a while ago. The client sends a heartbeat, then a read.
        real += luck.uniform(0, 4)
        if not server.renew(real, active=luck.random() < 0.5):
            return
        heartbeat_sent = real - delay
        real += luck.expovariate(5)
        if luck.random() < 0.3:
            server.renew(real, active=True)
        lease.read(server.session(), heartbeat_sent)
    for _ in range(60):
        assert lease.deadline <= server.real(server.deadline()) + 1e-5, f"seed {seed}"
        # The keeper sends its next heartbeat, whose response may be lost. Another client may send a heartbeat, too.
        sent = max(lease.sent_at + lease.interval, real) + luck.expovariate(2)
        real = sent + luck.expovariate(3)
        if luck.random() < 0.2:
            server.renew(sent - luck.uniform(0, 0.5), active=luck.random() < 0.5)
        if not server.renew(real, active=luck.random() < 0.2):
            return
        if luck.random() < 0.2:
            continue
        lease.renewed(sent, server.deadline(), server.interval)
        if lease.wants_read(real):
            lease.read(server.session(), sent)


def test_deadline_of_a_session_with_a_lease_only_is_close_to_the_servers() -> None:
    """The test above also passes if local deadlines are far too early. So this test checks that they are close to the
    deadlines of the server.
    """
    luck = random.Random(7)
    server = Server(luck)
    server.lease, server.idle, server._term = 60, None, 10**7
    real = server.real(server.started)
    lease = Lease(server.session(), Key(None), SystemClock(), Anchor(), active=False)
    lease.opened(server.session(), real - 0.01)
    reads = 0
    for _ in range(5000):
        sent = lease.sent_at + lease.interval
        real = sent + 0.01
        assert server.renew(real, active=False)
        lease.renewed(sent, server.deadline(), server.interval)
        if lease.wants_read(real):
            reads += 1
            lease.read(server.session(), sent)
        assert server.real(server.deadline()) - lease.deadline < 4
    assert reads < 20
