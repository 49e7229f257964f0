"""How `hold` behaves in each of the usual failures of keep-alive loops, on a fake server with a manual clock.

Tests that need real processes, sockets and time are in `test_hold_for_real.py`.
"""

import asyncio
import gc
import threading
from typing import Any

import pytest
from conftest import Kind, ids

from tenure_client import LostReason, SessionLost
from tenure_client.errors import RateLimited, SessionLimit, Unauthenticated, Unavailable
from tenure_client.testing import FakeServer


def beats(server: FakeServer) -> list[Any]:
    return [request for request in server.requests if request.path == "/sessions/heartbeats"]


def advance_until_lost(server: FakeServer, session: Any) -> None:
    """Advance the clock in small steps until the client has lost the session. The client must not rely on the session
    after its end on the server.
    """
    while not session.lost:
        server.clock.advance(0.1)
        assert session.lost or server.clock.now() < server.ends_at(session.id)


def test_session_is_opened_kept_alive_and_ended(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        with kind.entered(client.hold(**ids(lease_seconds=60))) as session:
            server.clock.advance(3600)
            assert not session.lost
            assert kind.run(session.get()).is_active
            assert 50 < session.remaining <= 60
        assert session.ended
        assert kind.run(client.sessions.get(session.id)).close_reason == "STOPPED"
    # The server asks for a heartbeat every five seconds. A few other requests read the session and update the anchor.
    assert len(beats(server)) == 720
    assert len(server.requests) < 750


def test_session_ends_when_work_raises(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        with pytest.raises(ZeroDivisionError), kind.entered(client.hold(**ids())) as session:
            _ = 1 / 0
        assert kind.run(client.sessions.get(session.id)).close_reason == "STOPPED"
        server.clock.advance(600)
        assert beats(server) == []


def test_session_survives_server_down_within_lease(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client, kind.entered(client.hold(**ids(lease_seconds=60))) as session:
        for _ in range(5):
            server.down()
            server.clock.advance(50)
            server.up()
            server.clock.advance(15)
            assert not session.lost
        assert session.lost.error is None


def test_session_is_lost_when_server_is_down_for_longer_than_lease(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client, kind.entered(client.hold(**ids(lease_seconds=60))) as session:
        server.clock.advance(5)
        server.down()
        advance_until_lost(server, session)
        assert session.lost.reason == LostReason.UNREACHABLE
        assert "ConnectError" in str(session.lost.error)
        server.up()
        server.clock.advance(1)
        assert session.lost, "a lost session stays lost, even if the server can be reached again"
        with pytest.raises(SessionLost, match="unreachable"):
            session.check()


@pytest.mark.parametrize("failure", ["hang", "drop", "lost answers"])
def test_requests_without_answer_are_retried_until_deadline(kind: Kind, server: FakeServer, failure: str) -> None:
    with kind.entered(kind.of(server)) as client, kind.entered(client.hold(**ids(lease_seconds=60))) as session:
        for _ in range(3):
            if failure == "hang":
                server.hang(times=4)
            else:
                server.drop(times=4, after=failure == "lost answers")
            server.clock.advance(30)
            assert not session.lost
        server.hang(times=1000)
        advance_until_lost(server, session)


def test_410_loses_session_at_once_with_close_reason(kind: Kind, server: FakeServer) -> None:
    expected = {
        "EVICTED": "evicted",
        "UPGRADED": "upgraded",
        "TERMINATED": "terminated",
        "STOPPED": "stopped",
        "EXPIRED": "expired",
        "IDLE_TIMEOUT": "expired",
        "SHUTDOWN": "terminated",
    }
    with kind.entered(kind.of(server)) as client:
        for close_reason, reason in expected.items():
            with kind.entered(client.hold(**ids(lease_seconds=60))) as session:
                server.end(session.id, close_reason)
                before = len(beats(server))
                server.clock.advance(5.1)
                assert (session.lost.reason, session.lost.close_reason) == (reason, close_reason)
                server.clock.advance(60)
                assert len(beats(server)) == before + 1
                with pytest.raises(SessionLost, match=close_reason):
                    session.touch()


def test_404_loses_session_at_once(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client, kind.entered(client.hold(**ids(lease_seconds=60))) as session:
        server.forget(session.id)
        server.clock.advance(5.1)
        assert session.lost.reason == LostReason.UNKNOWN
        server.clock.advance(60)
        assert len(beats(server)) == 1


@pytest.mark.parametrize(
    ("status", "error"), [(401, Unauthenticated), (429, RateLimited), (503, Unavailable), (502, Exception)]
)
def test_refusals_are_retried_until_deadline(kind: Kind, server: FakeServer, status: int, error: type) -> None:
    with kind.entered(kind.of(server)) as client, kind.entered(client.hold(**ids(lease_seconds=60))) as session:
        server.next(status, times=3, retry_after=1)
        server.clock.advance(30)
        assert not session.lost
        server.next(status, times=10_000, retry_after=1)
        server.clock.advance(30)
        assert isinstance(session.lost.error, error)
        server.clock.advance(30)
        assert session.lost.reason == LostReason.UNREACHABLE
        with pytest.raises(SessionLost) as raised:
            session.check()
        assert isinstance(raised.value.error, error)
        # Retry-After was respected: at most one request a second.
        assert len(beats(server)) < 75


def test_eviction_by_a_full_capacity_is_noticed(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        capacity = ids()["capacity"]
        kind.run(client.capacities.set(capacity, max_sessions=1, when_full="evictOldest"))
        with kind.entered(client.hold(**ids(capacity=capacity))) as session:
            server.clock.advance(1)
            with kind.entered(client.hold(**ids(capacity=capacity))) as other:
                server.clock.advance(6)
                assert session.lost.reason == LostReason.EVICTED
                assert not other.lost
        kind.run(client.capacities.set(capacity, max_sessions=0))
        with pytest.raises(SessionLimit), kind.entered(client.hold(**ids(capacity=capacity))):
            pass


def test_upgrade_by_another_holder_is_noticed(kind: Kind, server: FakeServer) -> None:
    who = ids()
    with (
        kind.entered(kind.of(server)) as client,
        kind.entered(client.hold(**who)) as session,
        kind.entered(client.hold(**{**who, "kind": 3})) as upgraded,
    ):
        server.clock.advance(6)
        assert session.lost.reason == LostReason.UPGRADED
        assert not upgraded.lost
        assert upgraded.session.previous_session_id == session.id


def test_session_that_expired_during_suspension_is_lost_without_a_request(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client, kind.entered(client.hold(**ids(lease_seconds=60))) as session:
        server.clock.advance(12)
        sent = len(server.requests)
        server.clock.jump(61)
        assert session.lost.event.is_set()
        assert session.remaining == 0
        with pytest.raises(SessionLost, match="expired"):
            kind.run(session.heartbeat())
        assert len(server.requests) == sent, "the loss was found without a request"


def test_clock_steps_of_database_do_not_end_or_prolong_sessions(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client, kind.entered(client.hold(**ids(lease_seconds=60))) as session:
        for step in (-120, 30, -5, 45):
            server.clock.advance(7)
            server.step_clock(step)
            server.clock.advance(300)
            assert not session.lost
            assert server.clock.now() + session.remaining <= server.ends_at(session.id)


def test_idle_limit_bounds_deadline_and_touch_extends_it(kind: Kind, server: FakeServer) -> None:
    limits: dict[str, Any] = {"lease_seconds": 60, "idle_seconds": 90}
    with kind.entered(kind.of(server)) as client:
        with kind.entered(client.hold(**ids(**limits))) as session:
            server.clock.advance(70)
            session.touch()
            server.clock.advance(70)
            advance_until_lost(server, session)
            assert session.lost.reason == LostReason.EXPIRED
        with kind.entered(client.hold(**ids(**limits), active=True)) as session:
            server.clock.advance(1000)
            assert not session.lost


def test_session_without_lease_is_checked_and_not_relied_on_after_its_term(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        with kind.entered(client.hold(**ids(lease_seconds=None))) as session:
            server.clock.advance(3600)
            assert len(beats(server)) == 120
            server.end(session.id, "TERMINATED")
            server.clock.advance(31)
            assert session.lost.reason == LostReason.TERMINATED
        with kind.entered(client.hold(**ids(lease_seconds=None))) as session:
            server.clock.jump(30 * 86400 - 10)
            assert server.clock.now() + session.remaining <= server.ends_at(session.id)


def test_session_that_was_live_before_hold_keeps_its_own_lease(kind: Kind, server: FakeServer) -> None:
    """`hold` asks for a lease of 600 s, but gets a session that is already live. The lease of this session is 20 s
    long, and 1 s of it is left.
    """
    who = ids()
    with kind.entered(kind.of(server)) as client:
        opened = kind.run(client.sessions.open(**who, lease_seconds=20))
        server.clock.advance(19)
        with kind.entered(client.hold(**who, lease_seconds=600)) as session:
            assert session.id == opened.session_id
            assert 19 < session.remaining <= 20
            assert server.clock.now() + session.remaining <= server.ends_at(session.id)
            server.down()
            server.clock.advance(19.99)
            assert session.lost


def test_session_with_two_holders_stays_live_when_one_leaves(kind: Kind, server: FakeServer) -> None:
    who = ids()
    with kind.entered(kind.of(server)) as client, kind.entered(client.hold(**who)) as first:
        with kind.entered(client.hold(**who)) as second:
            assert first.id == second.id
        server.clock.advance(6)
        assert not first.lost
        assert kind.run(first.get()).is_active


def test_keep_renews_session_and_does_not_end_it(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        opened = kind.run(client.sessions.open(**ids(lease_seconds=60)))
        with kind.entered(client.keep(opened.session_id)) as session:
            server.clock.advance(600)
            assert not session.lost
        assert kind.run(client.sessions.get(opened.session_id)).is_active
        kind.run(client.sessions.end(opened.session_id))
        with pytest.raises(Exception, match="410"), kind.entered(client.keep(opened.session_id)):
            pass


def test_session_token_uses_heartbeat_route_of_one_session(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client, kind.entered(kind.of(server, key="tns_token")) as device:
        opened = kind.run(client.sessions.open(**ids(lease_seconds=60)))
        with kind.entered(device.keep(opened.session_id)) as session:
            server.clock.advance(60)
            assert not session.lost
            assert beats(server) == []
            server.end(opened.session_id, "TERMINATED")
            server.clock.advance(6)
            assert session.lost.reason == LostReason.TERMINATED


def test_loss_is_reported_by_event_callback_and_await(server: FakeServer) -> None:
    notified: list[Any] = []
    with server.client() as client, client.hold(**ids()) as session:
        waiter = threading.Thread(target=lambda: notified.append(session.lost.wait(10)))
        waiter.start()
        session.lost.on(lambda _loss: 1 / 0)  # The other callbacks are called even if this one fails.
        session.lost.on(lambda loss: notified.append(loss.reason))
        server.end(session.id, "EVICTED")
        server.clock.advance(6)
        waiter.join(10)
        session.lost.on(lambda _loss: notified.append("late"))
    assert sorted(map(str, notified)) == ["True", "evicted", "late"]

    async def awaited() -> None:
        async with server.async_client() as client, client.hold(**ids()) as session:
            threads: list[int] = []
            session.lost.on(lambda _loss: threads.append(threading.get_ident()))
            server.end(session.id, "EVICTED")
            waiting = asyncio.ensure_future(session.lost)
            await asyncio.to_thread(server.clock.advance, 6)
            assert (await waiting).reason == LostReason.EVICTED
            assert threads == [threading.get_ident()], "callbacks of the async client run in its event loop"

    asyncio.run(awaited())


def test_garbage_collected_session_is_ended(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        session = kind.run(client.hold(**ids()).open())
        forgotten = session.id
        del session
        gc.collect()
        for _ in range(100):
            server.clock.advance(0.01)
            if not kind.run(client.sessions.get(forgotten)).is_active:
                break
        assert kind.run(client.sessions.get(forgotten)).close_reason == "STOPPED"


def test_closing_client_ends_its_sessions(kind: Kind, server: FakeServer) -> None:
    client = kind.of(server)
    session = kind.run(client.hold(**ids()).open())
    kind.run(client.aclose() if kind.is_async else client.close())
    assert session.lost.reason == LostReason.STOPPED
    with kind.entered(kind.of(server)) as other:
        assert kind.run(other.sessions.get(session.id)).close_reason == "STOPPED"


def test_leaving_block_does_not_raise_while_server_is_down(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        with kind.entered(client.hold(**ids())) as session:
            server.down()
        assert not session.ended
        with pytest.raises(SessionLost):
            session.check()


def test_many_sessions_share_one_request_per_interval(kind: Kind, server: FakeServer) -> None:
    with kind.entered(kind.of(server)) as client:
        sessions = []
        for _ in range(500):
            sessions.append(kind.run(client.hold(**ids(lease_seconds=60)).open()))
            server.clock.advance(0.02)  # Opening all sessions takes ten seconds: two heartbeat intervals.
        server.clock.advance(10)
        before = len(beats(server))
        server.clock.advance(300)
        assert len(beats(server)) - before == 60
        assert not any(session.lost for session in sessions)


def test_thousands_of_sessions_spread_their_requests(server: FakeServer) -> None:
    with server.client() as client:
        sessions = [client.hold(**ids(lease_seconds=60)).open() for _ in range(2500)]
        server.clock.advance(20)
        before = len(beats(server))
        server.clock.advance(50)
        latest = beats(server)[before:]
        assert 30 <= len(latest) <= 33
        assert max(len(request.body["sessionIds"]) for request in latest) <= 1000
        assert len({request.at for request in latest}) == len(latest), "no two requests are sent at the same instant"
        assert not any(session.lost for session in sessions)
