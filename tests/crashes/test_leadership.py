"""Leaders that die, stop, stand still or lose sight of the database: they write nothing more, and another one leads."""

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
from tenure.leases import cancelling
from tenure.leases.held import HeldLease
from tenure.store.engines.postgres.errors import LEASE_LOST
from tests.support.asking import ask
from tests.support.databases import Database, PostgresServer
from tests.support.instances import RunningInstance
from tests.support.lapsed import lapsed_sessions
from tests.support.members import STEPS, Member, Orders, Task, members
from tests.support.processes import eventually
from tests.support.proxies import Proxy, proxy_to
from tests.support.terms import leads, overlapping, table, terms, told
from tests.support.waiting import all_logs, until

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]
StartMember = Callable[[Orders], Member]

LEASE = "submission-executor"
DURATION, ACQUIRE = 3, 2
PATIENT = 4
"""A lease long enough for a renewal to be given up before trust in it ends."""
TERMINATED_WITHIN_SECONDS = 2
NOTICED_WITHIN_SECONDS = 5
STARTED_WITHIN_SECONDS = 20
NOTIFIED_WITHIN_SECONDS = 0.7
UNAVAILABLE = 503
LISTENING = (
    "FROM pg_stat_activity WHERE application_name = 'tenure' AND datname = current_database() "
    "AND query LIKE '%LEFT JOIN leases%' AND pid <> pg_backend_pid()"
)


@pytest.fixture
def start_member(tmp_path: Path) -> Iterator[StartMember]:
    with members(tmp_path) as start:
        yield start


def timing(duration: int = DURATION, acquire: int = ACQUIRE, refresh: int = 1) -> dict[str, str]:
    """No job looks at the board out of turn."""
    return {
        "TENURE_LEASES__DURATION_SECONDS": str(duration),
        "TENURE_LEASES__RENEW_SECONDS": "1",
        "TENURE_LEASES__ACQUIRE_SECONDS": str(acquire),
        "TENURE_LEASES__REFRESH_SECONDS": str(refresh),
        "TENURE_JOBS__EXPIRE_SESSIONS__PAUSED": "true",
    }


# Killed and stopped


async def test_another_leads_soon_after_a_clean_stop_and_in_time_after_a_kill(database: Database, start: Start) -> None:
    instances = first, second, third = await leader_and_followers(start, database.url, 3)
    stopped_at = datetime.now(UTC)
    first.send(signal.SIGTERM)
    heir = await next_leader([second, third], instances)
    assert seconds_after(stopped_at, heir) <= TERMINATED_WITHIN_SECONDS, all_logs(instances)
    killed_at = datetime.now(UTC)
    heir.kill()
    last = await next_leader([each for each in (second, third) if each is not heir], instances)
    assert seconds_after(killed_at, last) <= DURATION + ACQUIRE, all_logs(instances)
    shown = lease_shown(last)
    assert (shown["holder"], shown["held"]) == (holder(last), True), last.log()


# Stopped past its lease in the middle of its work


async def test_a_step_that_stood_still_past_its_lease_is_not_committed(
    postgres_database: Database, start_member: StartMember
) -> None:
    """It had checked its fence and written its row, and only the commit was missing."""
    old, new = await stopped_in_a_step(postgres_database, start_member, "write", 1)
    await until(lambda: old.told("work.refused", "work.cancelled"), 5, "the old one is refused", [old, new])
    await check_steps(postgres_database, old, new)


async def test_a_step_that_shows_its_fence_too_late_is_refused(
    postgres_database: Database, start_member: StartMember
) -> None:
    """It had its fence before it stood still, and goes on although its work was cancelled."""
    old, new = await stopped_in_a_step(postgres_database, start_member, "write_late", 0)
    await until(
        # It may have been stopped in its very first step.
        lambda: [line["event"] for line in old.told("work.fenced_off", "work.step")][-1:] == ["work.fenced_off"],
        5,
        "it is refused",
        [old, new],
    )
    assert old.told("work.fenced_off")[-1]["sqlstate"] == LEASE_LOST, old.log()
    await check_steps(postgres_database, old, new)


async def stopped_in_a_step(
    database: Database, start_member: StartMember, does: str, interval: int
) -> tuple[Member, Member]:
    """The first stood still within a step until the second had worked, and goes on."""
    await database.execute(STEPS)
    old, new = await worker_and_rival(start_member, orders(database, does, interval, seconds=0.3))
    await stop_within(old, "work.step_open", "work.step")
    await another_works(old, new)
    old.send(signal.SIGCONT)
    return old, new


async def check_steps(database: Database, old: Member, new: Member) -> None:
    """Nothing of the old one's comes after the new one's first, nor does the step that was open."""
    steps = await database.rows("SELECT epoch, step FROM steps ORDER BY at")
    open_step = old.told("work.step_open")[-1]
    shown = f"{steps}\n{all_logs([old, new])}"
    assert {"epoch": open_step["epoch"], "step": open_step["step"]} not in steps, shown
    epochs = [row["epoch"] for row in steps]
    assert epochs == sorted(epochs), shown
    assert await goes_on_alone(database, new), shown


async def stop_between_writes(member: Member, database: Database) -> None:
    """One that is stopped inside a write keeps the file, and nobody can lead: that is SQLite's own."""
    for _ in range(100):
        member.send(signal.SIGSTOP)
        if database.engine != "sqlite" or file_is_free(database):
            return
        member.send(signal.SIGCONT)
        await asyncio.sleep(0.01)
    raise AssertionError("it was never between two writes")


def file_is_free(database: Database) -> bool:
    connection = sqlite3.connect(str(make_url(database.url).database), isolation_level=None, timeout=0)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


async def test_nothing_is_written_after_standing_still_between_two_steps(
    database: Database, start_member: StartMember
) -> None:
    """As a leader on a server, in a job's run on a file."""
    interval = int(database.engine == "sqlite")
    await lapsed_sessions(database, 1000)
    old, new = await worker_and_rival(start_member, orders(database, "sweep", interval, pause_seconds=0.02))
    await until(lambda: old.told("work.step"), 5, "it works", [old, new])
    await stop_between_writes(old, database)
    stopped_with = len(old.told("work.step"))
    await another_works(old, new)
    old.send(signal.SIGCONT)
    await until(lambda: old.told("work.refused", "work.cancelled"), 5, "the old one stops", [old, new])
    told_before = len(new.told("work.step"))
    await until(lambda: len(new.told("work.step")) > told_before + 5, 5, "the new one goes on", [old, new])
    # One write may have been under way when it was stopped, and have been committed then.
    assert len(old.told("work.step")) <= stopped_with + 1, all_logs([old, new])
    assert written_twice([old, new]) == [], all_logs([old, new])
    assert not old.told("work.done"), old.log()


# Cut off from the database


@pytest.mark.parametrize("how", ["cut", "swallow"])
async def test_a_leader_that_is_cut_off_stops_and_another_leads(
    postgres_database: Database, start: Start, how: str
) -> None:
    with proxy_to(postgres_database.url) as proxy:
        first, second = await led_through(proxy, start, postgres_database.url, **timing(duration=PATIENT))
        cut_at = datetime.now(UTC)
        getattr(proxy, how)()
        await until(lambda: not leads(first.log()), NOTICED_WITHIN_SECONDS, "it stops", [first, second])
        assert told(first.log(), "leader_lost")[-1]["reason"] == "database", first.log()
        assert told(first.log(), "leader_renew_failed")[-1]["error"], first.log()
        assert (await asyncio.to_thread(ask, first.address, "/readyz")).status == UNAVAILABLE
        await until(lambda: leads(second.log()), PATIENT + ACQUIRE, "the other one leads", [first, second])
        assert seconds_after(cut_at, second) <= PATIENT + ACQUIRE, second.log()
        proxy.restore()
        await asyncio.to_thread(first.wait_until_ready)
        await undisturbed(first, second)


async def test_a_leader_that_was_cut_off_for_a_moment_releases_its_lease(
    postgres_database: Database, start: Start
) -> None:
    """Long before it would have run out."""
    with proxy_to(postgres_database.url) as proxy:
        url = postgres_database.url
        first, second = await led_through(proxy, start, url, **timing(duration=60, acquire=30))
        proxy.cut()
        await until(lambda: not leads(first.log()), NOTICED_WITHIN_SECONDS, "it stops", [first, second])
        proxy.restore()
        both = [first, second]
        await until(lambda: any(leads(each.log()) for each in both), NOTICED_WITHIN_SECONDS, "one leads again", both)
    assert overlapping(terms(each.log() for each in both)) == [], all_logs(both)


async def test_work_stops_before_its_lease_ends_while_a_renewal_gets_no_answer(
    postgres_database: Database, start_member: StartMember
) -> None:
    """A leader's and a job's."""
    with proxy_to(postgres_database.url) as proxy:
        wanted = orders(postgres_database, "wait", 0, seconds=60)
        wanted.tasks += orders(postgres_database, "wait", 1, seconds=60).tasks
        wanted.database = proxy.url
        only = start_member(wanted)
        await until(lambda: len(only.told("work.begun")) == 2, STARTED_WITHIN_SECONDS, "both work", [only])
        proxy.swallow()
        leases = [each for each in await postgres_database.store.list_leases(None, 10) if each.held]
        await until(lambda: len(only.told("work.cancelled")) == 2, NOTICED_WITHIN_SECONDS, "both stop", [only])
    stopped_at = {line["lease"]: line["at"] for line in only.told("work.cancelled")}
    ends_at = {lease.name: lease.expires_at for lease in leases}
    late = {name: stopped_at[name] - ends_at[name] for name in ends_at if stopped_at[name] > ends_at[name]}
    assert late == {}, f"{leases}\n{only.log()}"


async def test_who_was_asked_to_resign_stands_back_though_a_renewal_told_it_first(sqlite_database: Database) -> None:
    """Refreshes of 0.4 s and renewals every 0.03 s: of a resignation, a renewal hears before the board."""
    refresh = 0.4
    timing = LeasesConfig(duration_seconds=2, renew_seconds=0.03, acquire_seconds=refresh, refresh_seconds=refresh)
    ensemble = Ensemble(sqlite_database.store, timing=timing)
    leadership = ensemble.lead("modest")
    await ensemble.start()
    try:
        await eventually(lambda: leadership.is_leading, 3, "it leads")
        await sqlite_database.store.resign_lease("modest")
        await eventually(lambda: not leadership.is_leading, 3, "it resigns")
        led_again = asyncio.create_task(eventually(lambda: leadership.is_leading, 4 * refresh, "it leads again"))
        (outcome,) = await asyncio.gather(led_again, return_exceptions=True)
    finally:
        await ensemble.stop()
    assert isinstance(outcome, AssertionError), f"it led again {outcome} s after it had resigned"


async def test_a_leader_whose_work_will_not_stop_does_not_release_its_lease(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one would work beside it; the lease runs out by itself."""
    monkeypatch.setattr(cancelling, "PATIENCE_SECONDS", 0.2)
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


# The server, and the connections that listen


async def test_exactly_one_leads_again_after_the_server_was_restarted(
    own_postgres: PostgresServer, own_database: Database, start: Start
) -> None:
    instances = await leader_and_followers(start, own_database.url, 3)
    await asyncio.to_thread(own_postgres.stop)
    await until(lambda: not leads(instances[0].log()), NOTICED_WITHIN_SECONDS, "it stops", instances)
    await asyncio.to_thread(own_postgres.start)
    await until(lambda: any(leads(each.log()) for each in instances), DURATION + ACQUIRE, "one leads", instances)
    for each in instances:
        await asyncio.to_thread(each.wait_until_ready)
    found = terms(each.log() for each in instances)
    assert overlapping(found) == [], f"{table(found)}\n{all_logs(instances)}"
    assert [leads(each.log()) for each in instances].count(True) == 1, all_logs(instances)
    roles = [role(each) for each in instances]
    assert sorted(roles) == ["follower", "follower", "leader"], all_logs(instances)


async def test_a_dead_notification_connection_only_costs_the_refresh(postgres_database: Database, start: Start) -> None:
    refresh = 2
    slow = timing(duration=60, acquire=30, refresh=refresh)
    first, second, third = await leader_and_followers(start, postgres_database.url, 3, **slow)
    await until_listening(postgres_database, 3)
    await postgres_database.execute(f"SELECT pg_terminate_backend(pid) {LISTENING}")
    first.send(signal.SIGTERM)
    left = [second, third]
    leading = await next_leader(left, [first, *left])
    await asyncio.to_thread(first.wait_for_its_end)
    await until_listening(postgres_database, 2)
    last = third if leading is second else second
    await until_nobody_looks_within(postgres_database, 1.2 * NOTIFIED_WITHIN_SECONDS, refresh)
    stopped_at = datetime.now(UTC)
    leading.send(signal.SIGTERM)
    await until(lambda: leads(last.log()), refresh + 2, "the last one leads", left)
    assert seconds_after(stopped_at, last) <= NOTIFIED_WITHIN_SECONDS, all_logs(left)


# Instances


async def leader_and_followers(start: Start, url: str, count: int, **environment: str) -> list[RunningInstance]:
    """The leader first."""
    instances = [start(url, **(environment or timing())) for _ in range(count)]
    for instance in instances:
        await asyncio.to_thread(instance.wait_until_ready)
    await until(lambda: any(leads(each.log()) for each in instances), NOTICED_WITHIN_SECONDS, "one leads", instances)
    return sorted(instances, key=lambda each: not leads(each.log()))


async def led_through(proxy: Proxy, start: Start, url: str, **environment: str) -> list[RunningInstance]:
    """A leader that reaches its database through the proxy, and a follower that does not need it."""
    settings = environment or timing()
    first = start(proxy.url, **settings)
    await until(lambda: leads(first.log()), STARTED_WITHIN_SECONDS, "the first leads", [first])
    second = start(url, **settings)
    await asyncio.to_thread(second.wait_until_ready)
    return [first, second]


async def next_leader(of: Sequence[RunningInstance], told_by: Sequence[RunningInstance]) -> RunningInstance:
    found: list[RunningInstance] = []

    def leading() -> list[RunningInstance]:
        found[:] = [each for each in of if leads(each.log())]
        return found

    await until(leading, DURATION + ACQUIRE + 1, "another one leads", told_by)
    return found[0]


async def until_listening(database: Database, count: int) -> None:
    deadline = time.monotonic() + 10
    while len(await database.rows(f"SELECT pid {LISTENING}")) < count:
        assert time.monotonic() < deadline, f"not {count} connections listen"
        await asyncio.sleep(0.05)


async def until_nobody_looks_within(database: Database, seconds: float, refresh: float) -> None:
    """What happens now is then not seen by looking, but only by a notification."""
    late = f"SELECT pid {LISTENING} AND clock_timestamp() - query_start > interval '{refresh - seconds} seconds'"
    deadline = time.monotonic() + 3 * refresh
    while await database.rows(late):
        assert time.monotonic() < deadline, "somebody always looks soon"
        await asyncio.sleep(0.02)


async def undisturbed(follower: RunningInstance, leader: RunningInstance) -> None:
    """Until the next renewal, the one follows and the other leads in the same epoch."""
    renewals = len(told(leader.log(), "leader_renewed"))
    both = [follower, leader]
    await until(lambda: len(told(leader.log(), "leader_renewed")) > renewals, 5, "it renews", both)
    assert (leads(follower.log()), leads(leader.log())) == (False, True), all_logs(both)
    assert (role(follower), role(leader)) == ("follower", "leader"), all_logs(both)
    assert len(terms([leader.log()])) == 1, leader.log()


def seconds_after(instant: datetime, instance: RunningInstance) -> float:
    """From then until it led."""
    seconds: float = (told(instance.log(), "leader_acquired")[-1]["at"] - instant).total_seconds()
    return seconds


def holder(instance: RunningInstance) -> str:
    return str(told(instance.log(), "leader_acquired")[-1]["holder"])


def lease_shown(instance: RunningInstance) -> dict[str, object]:
    leases = ask(instance.address, "/leases").body["leases"]
    found: dict[str, object] = next(lease for lease in leases if lease["name"] == LEASE)
    return found


def role(instance: RunningInstance) -> str:
    leases = ask(instance.address, "/readyz").body["leases"]
    return str(next(lease["role"] for lease in leases if lease["name"] == LEASE))


# Members that work in steps


def orders(database: Database, does: str, interval: int, **task: float) -> Orders:
    """Under a lease of two seconds, as a leader or in a run without end."""
    work = Task(name="work", does=does, interval_seconds=interval, lock_timeout_seconds=2, **task)  # type: ignore[arg-type]
    return Orders(database=database.url, tasks=[work], duration_seconds=2)


async def worker_and_rival(start_member: StartMember, wanted: Orders) -> tuple[Member, Member]:
    both = [start_member(wanted) for _ in range(2)]
    await until(lambda: all(each.told("member.ready") for each in both), STARTED_WITHIN_SECONDS, "they start", both)
    await until(lambda: any(each.told("work.begun") for each in both), NOTICED_WITHIN_SECONDS, "one works", both)
    old, new = sorted(both, key=lambda each: not each.told("work.begun"))
    assert not new.told("work.begun"), all_logs(both)
    return old, new


async def stop_within(member: Member, opened: str, closed: str) -> dict[str, Any]:
    """Stops it between the two events of a step, and tells which step that was."""
    for _ in range(20):
        seen = len(member.told(opened))
        await until(lambda: len(member.told(opened)) > seen, 5, "a step opens", [member])  # noqa: B023
        member.send(signal.SIGSTOP)
        if len(member.told(opened)) > len(member.told(closed)):
            return member.told(opened)[-1]
        member.send(signal.SIGCONT)
    raise AssertionError(f"never stopped within a step\n{member.log()}")


async def another_works(old: Member, new: Member) -> None:
    await until(lambda: new.told("work.step"), 8, "the other one works", [old, new])


async def goes_on_alone(database: Database, new: Member) -> bool:
    """Its next steps are there, and nobody else's are between them."""
    epoch = new.told("work.begun")[-1]["epoch"]
    seen = len(new.told("work.step"))
    await until(lambda: len(new.told("work.step")) > seen + 2, 5, "it goes on", [new])
    rows = await database.rows(f"SELECT step FROM steps WHERE epoch = {epoch} ORDER BY at")
    return [row["step"] for row in rows] == list(range(len(rows)))


def written_twice(both: Sequence[Member]) -> list[str]:
    """Sessions whose end more than one step has written."""
    ended = [session for member in both for step in member.told("work.step") for session in step["ended"]]
    return sorted({session for session in ended if ended.count(session) > 1})
