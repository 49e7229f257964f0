"""A URL with several hosts: each is tried, the primary is found, and a fail-over loses no acknowledged session."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from sqlalchemy import make_url

from tenure.errors import DatabaseUnavailable
from tenure.store.contract import Store
from tenure.store.engines import open_store
from tests.support.databases import POOL_SIZE, Clock, Database, PostgresServer, postgres_server
from tests.support.history import find_violations, read_sessions
from tests.support.instances import RunningInstance
from tests.support.load import Exchange, clients, retry_until, some_keys, steady_load
from tests.support.processes import eventually, frozen
from tests.support.proxies import proxy_to

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

SERVED_WITHIN_SECONDS = 5


def url_of(*urls: str, form: str = "address") -> str:
    """Combines several URLs into one that names all hosts, in its address or in the parameters `host` and `port`."""
    parts = [make_url(url) for url in urls]
    names, ports = [str(part.host) for part in parts], [str(part.port) for part in parts]
    if form == "address":
        hosts = ",".join(f"{name}:{port}" for name, port in zip(names, ports, strict=True))
        return f"postgresql://postgres@{hosts}/{parts[0].database}?target_session_attrs=read-write"
    return f"postgresql://postgres@/{parts[0].database}?host={','.join(names)}&port={','.join(ports)}"


@contextmanager
def dropping_host() -> Iterator[str]:
    """The URL of a host that neither accepts nor refuses connections, like a host behind a firewall, because its queue
    of new connections is full.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            for each in waiting:
                each.close()


@pytest.mark.parametrize("form", ["address", "parameters"])
async def test_next_host_is_tried_when_first_host_drops_packets(own_database: Database, form: str) -> None:
    """Later connections begin with the host that worked."""
    with dropping_host() as first, proxy_to(own_database.url) as second:
        database = make_url(own_database.url).database or ""
        store = open_store(url_of(first.replace("/postgres", f"/{database}"), second.url, form=form), POOL_SIZE)
        try:
            await until_answered(store)
            assert store._hosts._first == 1  # type: ignore[attr-defined]
        finally:
            await store.close()


async def test_later_calls_try_hosts_that_the_first_call_did_not_reach(own_database: Database) -> None:
    database = make_url(own_database.url).database or ""
    with dropping_host() as first, dropping_host() as second, proxy_to(own_database.url) as third:
        hosts = [url.replace("/postgres", f"/{database}") for url in (first, second)]
        store = open_store(url_of(*hosts, third.url), POOL_SIZE)
        try:
            with pytest.raises(DatabaseUnavailable):
                await store.schema_revision()
            await until_answered(store)
        finally:
            await store.close()


async def until_answered(store: Store) -> None:
    async with asyncio.timeout(SERVED_WITHIN_SECONDS):
        while True:
            with suppress(DatabaseUnavailable):
                assert await store.schema_revision() is not None
                return


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


async def test_instance_leaves_frozen_primary_and_nothing_acknowledged_is_lost(
    primary: PostgresServer, start: Start, seed: int
) -> None:
    """The URL names the standby first. The instance does not use the standby until the standby is promoted.

    Connections to the frozen primary stay open, but get no response. `test_fail_over.py` has a primary that crashes.
    """
    name = await primary.create_database()
    with (
        ExitStack() as losing,
        postgres_server(standby_of=primary) as standby,
        proxy_to(primary.url(name)) as to_primary,
        proxy_to(standby.url(name)) as to_standby,
    ):
        await primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await primary.execute("SELECT pg_reload_conf()")
        instance = start(url_of(to_standby.url, to_primary.url)).wait_until_ready()
        on_standby = start(standby.url(name))
        await check_reason(on_standby)
        async with steady_load([instance.address], 8, keys=some_keys(200, seed), seed=seed) as exchanges:
            await eventually(lambda: len(exchanges) > 300, 20, "the load has begun")
            await read_sessions_of(instance)
            losing.enter_context(frozen(primary.pid))
            await standby.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await asyncio.to_thread(standby.control, "promote")
            promoted = len(exchanges)
            await read_sessions_of(instance)
            await eventually(lambda: served(exchanges[promoted:]), SERVED_WITHIN_SECONDS, instance.log()[-3000:])
            await asyncio.sleep(1)
        on_standby.wait_until_ready()
        url = standby.url(name)
        database = Database(url, open_store(url, POOL_SIZE), Clock())
        try:
            assert find_violations(exchanges, await read_sessions(database), also=[503]) == [], f"seed {seed}"
        finally:
            await database.close()


async def read_sessions_of(instance: RunningInstance) -> None:
    """Waits until a read succeeds. Reads use other connections than writes."""
    async with clients([instance.address], 1) as (client,):
        await retry_until(lambda: client.get("/sessions"), lambda one: one.status == 200, SERVED_WITHIN_SECONDS)


async def check_reason(on_standby: RunningInstance) -> None:
    """Asserts that an instance that knows only the standby reports why it is not ready."""
    async with clients([on_standby.address], 1) as (client,):
        await retry_until(lambda: client.get("/readyz"), lambda one: "is read only" in one.answer["detail"], 10)


def served(exchanges: list[Exchange]) -> bool:
    return sum(one.status in (200, 201) for one in exchanges) > 50
