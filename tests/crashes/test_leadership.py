"""A leader that is killed, stopped, paused or cut off from the database writes nothing more, and another instance takes
over.
"""

import asyncio
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from tenure.config import LeasesConfig
from tenure.ensemble import Ensemble
from tenure.leases import waiting as cancelling
from tenure.leases.held import HeldLease
from tenure.store.engines.postgres.errors import LEASE_LOST
from tests.support.audit_log import ACTOR
from tests.support.databases import Database, PostgresServer
from tests.support.instances import RunningInstance
from tests.support.lapsed import insert_lapsed_sessions
from tests.support.members import STEPS, Member, MemberConfig, Task, members
from tests.support.processes import eventually
from tests.support.proxies import Proxy, proxy_to
from tests.support.simple_http import send_request
from tests.support.terms import leads, logged, overlapping, table, terms
from tests.support.waiting import all_logs, until

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]
StartMember = Callable[[MemberConfig], Member]

LEASE = "submission-executor"
DURATION, ACQUIRE = 3, 2
LONGER_DURATION = 4
"""The duration of a lease in seconds, long enough for a renewal to time out before the lease expires."""
TERMINATED_WITHIN_SECONDS = 2
NOTICED_WITHIN_SECONDS = 5
STARTED_WITHIN_SECONDS = 20
NOTIFIED_WITHIN_SECONDS = 0.7
UNAVAILABLE = 503
LISTENING = (
    "FROM pg_stat_activity WHERE application_name = 'tenure' AND datname = current_database() "
    "AND (query LIKE '%LEFT JOIN leases%' OR query LIKE '%keys_version%') AND pid <> pg_backend_pid()"
)


@pytest.fixture
def start_member(tmp_path: Path) -> Iterator[StartMember]:
    with members(tmp_path) as start:
        yield start


def timing(duration: int = DURATION, acquire: int = ACQUIRE, refresh: int = 1) -> dict[str, str]:
    """Settings of leases. The sweep is paused, because each of its runs would make instances read the board before the
    next refresh is due.
    """
    return {
        "TENURE_LEASES__DURATION_SECONDS": str(duration),
        "TENURE_LEASES__RENEW_SECONDS": "1",
        "TENURE_LEASES__ACQUIRE_SECONDS": str(acquire),
        "TENURE_LEASES__REFRESH_SECONDS": str(refresh),
        "TENURE_JOBS__EXPIRE_SESSIONS__PAUSED": "true",
    }


# Kill and stop


async def test_another_instance_leads_in_time_after_stop_and_after_kill(database: Database, start: Start) -> None:
    instances = first, second, third = await leader_and_followers(start, database.url, 3)
    stopped_at = datetime.now(UTC)
    first.send(signal.SIGTERM)
    successor = await next_leader([second, third], instances)
    assert seconds_after(stopped_at, successor) <= TERMINATED_WITHIN_SECONDS, all_logs(instances)
    killed_at = datetime.now(UTC)
    successor.kill()
    last = await next_leader([each for each in (second, third) if each is not successor], instances)
    assert seconds_after(killed_at, last) <= DURATION + ACQUIRE, all_logs(instances)
    shown = lease_shown(last)
    assert (shown["holder"], shown["held"]) == (holder(last), True), last.log()


# Paused past its lease


async def test_step_paused_past_its_lease_is_not_committed(
    postgres_database: Database, start_member: StartMember
) -> None:
    """The step has checked its fence and written its row before the pause, but not committed."""
    old, new = await paused_in_step(postgres_database, start_member, "write", 1)
    await until(
        lambda: old.logged("work.refused", "work.cancelled"), 5, "the old one is refused or cancelled", [old, new]
    )
    await check_steps(postgres_database, old, new)


async def test_step_that_checks_its_fence_after_lease_is_lost_is_refused(
    postgres_database: Database, start_member: StartMember
) -> None:
    """The step got its fence before the pause, and continues after the pause, although its work was cancelled."""
    old, new = await paused_in_step(postgres_database, start_member, "write_late", 0)
    await until(
        # `work.step` may be missing, because the member may have been paused in its first step.
        lambda: [line["event"] for line in old.logged("work.fenced_off", "work.step")][-1:] == ["work.fenced_off"],
        5,
        "the fence is refused",
        [old, new],
    )
    assert old.logged("work.fenced_off")[-1]["sqlstate"] == LEASE_LOST, old.log()
    await check_steps(postgres_database, old, new)


async def paused_in_step(
    database: Database, start_member: StartMember, does: str, interval: int
) -> tuple[Member, Member]:
    """Pauses the first member within a step until the second member has worked, and then resumes the first one."""
    await database.execute(STEPS)
    old, new = await worker_and_rival(start_member, member_config(database, does, interval, seconds=0.3))
    await pause_within(old, "work.step_open", "work.step")
    await another_works(old, new)
    old.send(signal.SIGCONT)
    return old, new


async def check_steps(database: Database, old: Member, new: Member) -> None:
    """Asserts that the step in which `old` was paused is never committed, that all other steps of `old` precede the
    first step of `new`, and that the steps of `new` have no gap.
    """
    steps = await database.rows("SELECT epoch, step FROM steps ORDER BY at")
    open_step = old.logged("work.step_open")[-1]
    shown = f"{steps}\n{all_logs([old, new])}"
    assert {"epoch": open_step["epoch"], "step": open_step["step"]} not in steps, shown
    epochs = [row["epoch"] for row in steps]
    assert epochs == sorted(epochs), shown
    assert await continues_alone(database, new), shown


async def pause_between_writes(member: Member, database: Database) -> None:
    """Pauses the member. On SQLite, pauses it between two writes, because a member that is paused during a write would
    keep the file locked.
    """
    for _ in range(100):
        member.send(signal.SIGSTOP)
        if database.engine != "sqlite" or file_is_free(database):
            return
        member.send(signal.SIGCONT)
        await asyncio.sleep(0.01)
    raise AssertionError("never paused between two writes")


def file_is_free(database: Database) -> bool:
    connection = sqlite3.connect(str(make_url(database.url).database), isolation_level=None, timeout=0)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


async def test_member_paused_between_steps_past_its_lease_writes_nothing(
    database: Database, start_member: StartMember
) -> None:
    """On PostgreSQL, the paused member works as a leader; on SQLite, in a run of a job."""
    interval = int(database.engine == "sqlite")
    await insert_lapsed_sessions(database, 1000)
    old, new = await worker_and_rival(start_member, member_config(database, "sweep", interval, pause_seconds=0.02))
    await until(lambda: old.logged("work.step"), 5, "a step is done", [old, new])
    await pause_between_writes(old, database)
    steps_before_pause = len(old.logged("work.step"))
    await another_works(old, new)
    old.send(signal.SIGCONT)
    # The call that the pause interrupted may have timed out. In that case the run fails because its lock is lost.
    stopped = ("work.refused", "work.cancelled", "job.lock_lost")
    await until(lambda: old.logged(*stopped), 15, "the old one stops working", [old, new])
    steps = len(new.logged("work.step"))
    await until(lambda: len(new.logged("work.step")) > steps + 5, 5, "the new one continues", [old, new])
    # One write that was in progress when the member was paused may have been committed.
    assert len(old.logged("work.step")) <= steps_before_pause + 1, all_logs([old, new])
    assert written_twice([old, new]) == [], all_logs([old, new])
    assert not old.logged("work.done"), old.log()


# Cut off from the database


async def test_leader_cut_off_from_database_stops_and_another_leads(postgres_database: Database, start: Start) -> None:
    """The connections of the first leader are closed. Those of the next leader stay open, but transfer no more data."""
    environment = timing(duration=LONGER_DURATION)
    with proxy_to(postgres_database.url) as one, proxy_to(postgres_database.url) as other:
        both = [start(proxy.url, **environment) for proxy in (one, other)]
        proxies = dict(zip(both, (one, other), strict=True))
        for instance in both:
            await asyncio.to_thread(instance.wait_until_ready)
        await until(lambda: any(leads(each.log()) for each in both), STARTED_WITHIN_SECONDS, "one leads", both)
        leader, follower = sorted(both, key=lambda each: not leads(each.log()))
        await cut_off(leader, follower, proxies[leader].cut)
        proxies[leader].restore()
        await asyncio.to_thread(leader.wait_until_ready)
        await undisturbed(leader, follower)
        await cut_off(follower, leader, proxies[follower].swallow)
        proxies[follower].restore()
        await asyncio.to_thread(follower.wait_until_ready)
        await undisturbed(follower, leader)


async def cut_off(leader: RunningInstance, follower: RunningInstance, cut: Callable[[], None]) -> None:
    both = [leader, follower]
    cut_at = datetime.now(UTC)
    cut()
    await until(lambda: not leads(leader.log()), NOTICED_WITHIN_SECONDS, "the leader loses the lease", both)
    assert logged(leader.log(), "leader_lost")[-1]["reason"] == "database", leader.log()
    assert logged(leader.log(), "leader_renew_failed")[-1]["error"], leader.log()
    assert (await asyncio.to_thread(send_request, leader.address, "/readyz")).status == UNAVAILABLE
    await until(lambda: leads(follower.log()), LONGER_DURATION + ACQUIRE, "the follower leads", both)
    assert seconds_after(cut_at, follower) <= LONGER_DURATION + ACQUIRE, follower.log()


async def test_leader_cut_off_briefly_releases_its_lease(postgres_database: Database, start: Start) -> None:
    """The leader releases the lease as soon as it reaches the database again. Otherwise no instance could lead until
    the lease expires, after a minute.
    """
    with proxy_to(postgres_database.url) as proxy:
        url = postgres_database.url
        first, second = await led_through(proxy, start, url, **timing(duration=60, acquire=30))
        proxy.cut()
        await until(lambda: not leads(first.log()), NOTICED_WITHIN_SECONDS, "it loses the lease", [first, second])
        proxy.restore()
        both = [first, second]
        await until(lambda: any(leads(each.log()) for each in both), NOTICED_WITHIN_SECONDS, "one leads again", both)
    assert overlapping(terms(each.log() for each in both)) == [], all_logs(both)


async def test_work_stops_before_lease_expires_when_renewal_gets_no_response(
    postgres_database: Database, start_member: StartMember
) -> None:
    """The member does the work of a leader and the work of a job at the same time. It must stop both."""
    with proxy_to(postgres_database.url) as proxy:
        config = member_config(postgres_database, "wait", 0, seconds=60)
        config.tasks += member_config(postgres_database, "wait", 1, seconds=60).tasks
        config.database = proxy.url
        only = start_member(config)
        await until(lambda: len(only.logged("work.begun")) == 2, STARTED_WITHIN_SECONDS, "both have begun", [only])
        proxy.swallow()
        leases = [each for each in await postgres_database.store.list_leases(None, 10) if each.held]
        await until(
            lambda: len(only.logged("work.cancelled")) == 2, NOTICED_WITHIN_SECONDS, "both are cancelled", [only]
        )
    cancelled_at = {line["lease"]: line["at"] for line in only.logged("work.cancelled")}
    ends_at = {lease.name: lease.expires_at for lease in leases}
    late = {name: cancelled_at[name] - end for name, end in ends_at.items() if cancelled_at[name] > end}
    assert late == {}, f"{leases}\n{only.log()}"


async def test_resigned_leader_keeps_cool_down_when_renewal_detects_resign_first(sqlite_database: Database) -> None:
    """The instance refreshes its board every 0.4 s and renews its lease every 0.03 s. So a renewal detects the
    resignation before the board shows it.
    """
    refresh = 0.4
    timing = LeasesConfig(duration_seconds=2, renew_seconds=0.03, acquire_seconds=refresh, refresh_seconds=refresh)
    ensemble = Ensemble(sqlite_database.store, timing=timing)
    leadership = ensemble.lead("resigned")
    await ensemble.start()
    try:
        await eventually(lambda: leadership.is_leading, 3, "the instance leads")
        await sqlite_database.store.resign_lease("resigned", ACTOR)
        await eventually(lambda: not leadership.is_leading, 3, "the instance resigns")
        led_again = asyncio.create_task(eventually(lambda: leadership.is_leading, 4 * refresh, "leads again"))
        (outcome,) = await asyncio.gather(led_again, return_exceptions=True)
    finally:
        await ensemble.stop()
    assert isinstance(outcome, AssertionError), f"the instance led again {outcome} s after the resign"


async def test_leader_whose_work_ignores_cancellation_does_not_release_its_lease(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the lease were released, another instance would work at the same time. So the lease is left to expire."""
    monkeypatch.setattr(cancelling, "CANCEL_SECONDS", 0.2)
    begun, release = asyncio.Event(), asyncio.Event()

    async def work(_held: HeldLease) -> None:
        begun.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    ensemble = Ensemble(postgres_database.store)
    ensemble.lead("stubborn", work)
    await ensemble.start()
    await asyncio.wait_for(begun.wait(), 3)
    await ensemble.stop()
    (lease,) = await postgres_database.store.list_leases(None, 10)
    release.set()
    assert lease.held, lease


# Database restart and notification connections


async def test_exactly_one_instance_leads_after_database_restart(
    own_postgres: PostgresServer, own_database: Database, start: Start
) -> None:
    instances = await leader_and_followers(start, own_database.url, 3)
    await asyncio.to_thread(own_postgres.stop)
    await until(lambda: not leads(instances[0].log()), NOTICED_WITHIN_SECONDS, "the leader loses the lease", instances)
    await asyncio.to_thread(own_postgres.start)
    await until(lambda: any(leads(each.log()) for each in instances), DURATION + ACQUIRE, "one leads", instances)
    for each in instances:
        await asyncio.to_thread(each.wait_until_ready)
    found = terms(each.log() for each in instances)
    assert overlapping(found) == [], f"{table(found)}\n{all_logs(instances)}"
    assert [leads(each.log()) for each in instances].count(True) == 1, all_logs(instances)
    roles = [role(each) for each in instances]
    assert sorted(roles) == ["follower", "follower", "leader"], all_logs(instances)


async def test_failover_works_after_notification_connections_are_terminated(
    postgres_database: Database, start: Start
) -> None:
    refresh = 2
    environment = timing(duration=60, acquire=30, refresh=refresh)
    first, second, third = await leader_and_followers(start, postgres_database.url, 3, **environment)
    await until_listening(postgres_database, 3)
    await postgres_database.execute(f"SELECT pg_terminate_backend(pid) {LISTENING}")
    first.send(signal.SIGTERM)
    remaining = [second, third]
    leading = await next_leader(remaining, [first, *remaining])
    await asyncio.to_thread(first.wait_for_exit)
    await until_listening(postgres_database, 2)
    last = third if leading is second else second
    await until_no_refresh_is_near(postgres_database, 1.2 * NOTIFIED_WITHIN_SECONDS, refresh)
    stopped_at = datetime.now(UTC)
    leading.send(signal.SIGTERM)
    await until(lambda: leads(last.log()), refresh + 2, "the last one leads", remaining)
    assert seconds_after(stopped_at, last) <= NOTIFIED_WITHIN_SECONDS, all_logs(remaining)


# Instances


async def leader_and_followers(start: Start, url: str, count: int, **environment: str) -> list[RunningInstance]:
    """Starts instances, and returns them with the leader first."""
    instances = [start(url, **(environment or timing())) for _ in range(count)]
    for instance in instances:
        await asyncio.to_thread(instance.wait_until_ready)
    await until(lambda: any(leads(each.log()) for each in instances), NOTICED_WITHIN_SECONDS, "one leads", instances)
    return sorted(instances, key=lambda each: not leads(each.log()))


async def led_through(proxy: Proxy, start: Start, url: str, **environment: str) -> list[RunningInstance]:
    """Starts a leader that is connected through the proxy, and a follower that is connected directly."""
    first = start(proxy.url, **environment)
    await until(lambda: leads(first.log()), STARTED_WITHIN_SECONDS, "the first leads", [first])
    second = start(url, **environment)
    await asyncio.to_thread(second.wait_until_ready)
    return [first, second]


async def next_leader(of: Sequence[RunningInstance], processes: Sequence[RunningInstance]) -> RunningInstance:
    found: list[RunningInstance] = []

    def leading() -> list[RunningInstance]:
        found[:] = [each for each in of if leads(each.log())]
        return found

    await until(leading, DURATION + ACQUIRE + 1, "another one leads", processes)
    return found[0]


async def until_listening(database: Database, count: int) -> None:
    deadline = time.monotonic() + 10
    while len(await database.rows(f"SELECT pid {LISTENING}")) < count:
        assert time.monotonic() < deadline, f"fewer than {count} connections listen"
        await asyncio.sleep(0.05)


async def until_no_refresh_is_near(database: Database, seconds: float, refresh: float) -> None:
    """Waits until no refresh of the board is due soon, so that only a notification can announce the next change."""
    late = f"SELECT pid {LISTENING} AND clock_timestamp() - query_start > interval '{refresh - seconds} seconds'"
    deadline = time.monotonic() + 3 * refresh
    while await database.rows(late):
        assert time.monotonic() < deadline, "a refresh is always near"
        await asyncio.sleep(0.02)


async def undisturbed(follower: RunningInstance, leader: RunningInstance) -> None:
    """Asserts that the leader keeps its epoch until its next renewal, and that the follower does not lead."""
    epoch = terms([leader.log()])[-1].epoch
    renewals = len(logged(leader.log(), "leader_renewed"))
    both = [follower, leader]
    await until(lambda: len(logged(leader.log(), "leader_renewed")) > renewals, 5, "the leader renews", both)
    assert (leads(follower.log()), leads(leader.log())) == (False, True), all_logs(both)
    assert (role(follower), role(leader)) == ("follower", "leader"), all_logs(both)
    assert terms([leader.log()])[-1].epoch == epoch, leader.log()


def seconds_after(instant: datetime, instance: RunningInstance) -> float:
    """Returns the seconds from `instant` until the instance acquired the lease."""
    seconds: float = (logged(instance.log(), "leader_acquired")[-1]["at"] - instant).total_seconds()
    return seconds


def holder(instance: RunningInstance) -> str:
    return str(logged(instance.log(), "leader_acquired")[-1]["holder"])


def lease_shown(instance: RunningInstance) -> dict[str, object]:
    leases = send_request(instance.address, "/leases").body["leases"]
    found: dict[str, object] = next(lease for lease in leases if lease["name"] == LEASE)
    return found


def role(instance: RunningInstance) -> str:
    leases = send_request(instance.address, "/readyz").body["leases"]
    return str(next(lease["role"] for lease in leases if lease["name"] == LEASE))


# Members that work in steps


def member_config(database: Database, does: str, interval: int, **task: float) -> MemberConfig:
    """Configures a member with a lease of two seconds. The member leads if `interval` is 0; otherwise it runs a job."""
    work = Task(name="work", does=does, interval_seconds=interval, lock_timeout_seconds=2, **task)  # type: ignore[arg-type]
    return MemberConfig(database=database.url, tasks=[work], duration_seconds=2)


async def worker_and_rival(start_member: StartMember, config: MemberConfig) -> tuple[Member, Member]:
    both = [start_member(config) for _ in range(2)]
    await until(
        lambda: all(each.logged("member.ready") for each in both), STARTED_WITHIN_SECONDS, "both are ready", both
    )
    await until(lambda: any(each.logged("work.begun") for each in both), NOTICED_WITHIN_SECONDS, "one works", both)
    old, new = sorted(both, key=lambda each: not each.logged("work.begun"))
    assert not new.logged("work.begun"), all_logs(both)
    return old, new


async def pause_within(member: Member, opened: str, closed: str) -> dict[str, Any]:
    """Pauses the member between the two events of a step; returns the first event."""
    for _ in range(20):
        seen = len(member.logged(opened))
        await until(lambda: len(member.logged(opened)) > seen, 5, "a step opens", [member])  # noqa: B023
        member.send(signal.SIGSTOP)
        if len(member.logged(opened)) > len(member.logged(closed)):
            return member.logged(opened)[-1]
        member.send(signal.SIGCONT)
    raise AssertionError(f"never paused within a step\n{member.log()}")


async def another_works(old: Member, new: Member) -> None:
    await until(lambda: new.logged("work.step"), 8, "the other one works", [old, new])


async def continues_alone(database: Database, new: Member) -> bool:
    """Waits for further steps of the new member, and returns whether the numbers of its committed steps have no gap."""
    epoch = new.logged("work.begun")[-1]["epoch"]
    seen = len(new.logged("work.step"))
    await until(lambda: len(new.logged("work.step")) > seen + 2, 5, "the new member continues", [new])
    rows = await database.rows(f"SELECT step FROM steps WHERE epoch = {epoch} ORDER BY at")
    return [row["step"] for row in rows] == list(range(len(rows)))


def written_twice(both: Sequence[Member]) -> list[str]:
    """Returns sessions whose end was written by more than one step."""
    ended = [session for member in both for step in member.logged("work.step") for session in step["ended"]]
    return sorted({session for session in ended if ended.count(session) > 1})
