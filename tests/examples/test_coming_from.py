"""The examples of `docs/coming-from/`: the clients of five other services work, each with an instance that uses the
`tenure.toml` of its example. The data of four of these services moves to Tenure, and the sessions also move back.
"""

import asyncio
import importlib
import os
import re
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tenure.config import load
from tenure.ensemble import Ensemble
from tenure.errors import LeaseLost
from tests.http.client import open_body
from tests.http.local import LocalService, prepare_process
from tests.support.databases import Clock
from tests.support.receivers import RunningReceiver

EXAMPLES = Path(__file__).parents[2] / "examples" / "coming_from"
CAPACITY = "0190b0a0-0000-7000-8000-0000000000c{}"
SECONDS = 60

pytestmark = pytest.mark.slow

Run = Callable[..., AbstractAsyncContextManager[LocalService]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs an instance with the `tenure.toml` of an example, on the database `tenure.db`."""
    prepare_process(monkeypatch)
    monkeypatch.chdir(tmp_path)

    @asynccontextmanager
    async def running(example: str, **environment: str) -> AsyncIterator[LocalService]:
        config = load(
            {"database": f"sqlite:///{tmp_path / 'tenure.db'}"}, environment, EXAMPLES / example / "tenure.toml"
        )
        async with LocalService(config, Clock()).running() as service:
            yield service

    return running


async def script(name: str, *arguments: str, code: int = 0, **environment: str) -> str:
    """Runs a program of the examples and returns its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(EXAMPLES / name), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    async with asyncio.timeout(SECONDS):
        output, errors = (text.decode() for text in await process.communicate())
    assert process.returncode == code, f"{name}: {process.returncode}\n{output}\n{errors}"
    assert "Traceback" not in errors, errors
    return output


def address(service: LocalService, path: str = "") -> str:
    return f"http://127.0.0.1:{service.port}{path}"


def rows(statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect("old.db")) as old:
        return old.execute(statement).fetchall()


async def live(service: LocalService, path: str = "/sessions") -> dict[str, Mapping[str, Any]]:
    listed = await service.http.get(path, params={"active": "true"}, headers={"Tenure-JSON-Case": "camel"})
    return {session["sessionId"]: session for session in listed.json()["sessions"]}


async def test_capacity_sessions_move_to_tenure_and_back_and_their_client_works(run: Run) -> None:
    moved = [f"0190b0a0-0000-7000-8000-00000000010{number}" for number in (1, 2)]
    async with run("capacity_sessions") as service:
        checked = await script("move.py", "capacity_sessions", "old.db", "--dry-run")
        assert "2 sessions would be imported, 0 existed already, 0 ended in Tenure, 0 had ended" in checked
        assert await live(service) == {}
        assert "2 sessions imported, 0 existed" in await script("move.py", "capacity_sessions", "old.db")
        found = await live(service)
        assert sorted(found) == moved
        assert [found[each]["sessionKind"] for each in moved] == [1, 2]
        ((start,),) = rows("SELECT SessionStartUtc FROM CapacitySessions WHERE Id LIKE '%101}'")
        assert found[moved[0]]["sessionStartUtc"] == f"{start.replace(' ', 'T')}.000000Z"
        capacity = (await service.http.get(f"/capacities/{CAPACITY.format(1)}")).json()
        assert (capacity["maxSessions"], capacity["tenantObjectId"][-2:]) == (3, "a1")

        printed = await script("capacity_sessions/client.py", "--url", address(service))
        assert printed.split() == ["created", "existing", "upgraded", "TERMINATED", "over"]

        opened = await service.open()
        assert "live sessions written back: 3, marked as ended: 0" in await script(
            "move.py", "capacity_sessions", "old.db", "--back", "--url", address(service)
        )
        active = rows("SELECT lower(trim(Id, '{}')), SessionType FROM CapacitySessions WHERE IsActive = 1 ORDER BY Id")
        assert [each for each, _ in active] == sorted([*moved, opened["sessionId"]])
        assert dict(active)[moved[1]] == "Pro"

        # With `--capacity`, only ended sessions of this capacity are marked as ended in the old table. A later import
        # does not open the ended sessions again.
        for each in moved:
            await service.http.delete(f"/sessions/{each}")
        back = ["--back", "--capacity", CAPACITY.format(1)]
        printed = await script("move.py", "capacity_sessions", "old.db", *back, TENURE_URL=address(service))
        assert printed == f"{address(service)}: live sessions written back: 0, marked as ended: 1\n"
        ((is_active, end),) = rows("SELECT IsActive, SessionEndUtc FROM CapacitySessions WHERE Id LIKE '%101}'")
        ended = (await service.http.get(f"/sessions/{moved[0]}")).json()["sessionEndUtc"]
        assert (is_active, end) == (0, ended[:19].replace("T", " "))
        again = await script("move.py", "capacity_sessions", "old.db", "--only", "sessions")
        assert again == "0 sessions imported, 1 existed already, 1 ended in Tenure, 0 had ended before\n"
        none = await script("move.py", "capacity_sessions", "old.db", "--capacity", CAPACITY.format(9))
        assert none == "no capacities in the old table\nno live sessions in the old table\n"


async def test_move_imports_into_the_database_that_tenure_database_names(run: Run) -> None:
    async with run("capacity_sessions") as service:
        elsewhere = {"TENURE_DATABASE": "sqlite:///elsewhere.db"}
        assert "2 sessions imported" in await script("move.py", "capacity_sessions", "old.db", **elsewhere)
        assert await live(service) == {}
        assert "2 sessions imported" in await script("move.py", "capacity_sessions", "old.db")
        assert len(await live(service)) == 2


async def test_old_table_of_capacity_sessions_stays_up_to_date_for_reports(run: Run) -> None:
    table = ["capacity_sessions/report_table.py", "old.db", "--once"]
    statement = (
        "SELECT lower(trim(Id, '{}')), SessionType, IsActive, SessionStartUtc, SessionEndUtc FROM CapacitySessions"
    )

    def table_time(text: str) -> str:
        return text[:19].replace("T", " ")

    async with run("capacity_sessions") as service:
        url = address(service)
        await script("move.py", "capacity_sessions", "old.db")
        before = rows(statement)
        opened = await service.open(sessionKind=3)
        await script("capacity_sessions/client.py", "--url", url)
        assert await script(*table, "--url", url) == "sessions written: 5\n"
        written = {each: rest for each, *rest in rows(statement)}
        assert len(written) == len(before) + 3
        for each, *rest in before:
            assert written[each] == rest, "the rows of imported sessions and of earlier ended sessions are unchanged"
        start, end = table_time(opened["sessionStartUtc"]), table_time(opened["sessionEndUtc"])
        assert written[opened["sessionId"]] == ["Premium", 1, start, end]
        # The client opened a session, upgraded it and ended it.
        others = sorted(rest[:2] for each, rest in written.items() if each not in {id_ for id_, *_ in before})
        assert others == [["Basic", 0], ["Premium", 1], ["Pro", 0]]

        ended = (await service.http.delete(f"/sessions/{opened['sessionId']}")).json()
        assert await script(*table, TENURE_URL=url) == "sessions written: 1\n"
        written = {each: rest for each, *rest in rows(statement)}
        assert written[opened["sessionId"]] == ["Premium", 0, start, table_time(ended["sessionEndUtc"])]
        assert await script(*table, "--url", url) == ""


async def test_applock_sessions_with_live_marker_move_and_jobs_run_once_per_due_time(run: Run) -> None:
    (alive, dead) = (f"0190b0a0-0000-7000-8000-00000000020{number}" for number in (1, 2))
    async with run("applock_sessions") as service:
        assert "1 session imported" in await script("move.py", "applock_sessions", "old.db")
        found = await live(service)
        assert list(found) == [alive]
        assert dead not in found
        assert found[alive]["heartbeatInterval"] is not None

        printed = await script("applock_sessions/client.py", "--url", address(service))
        assert printed.splitlines() == ["created renew every 30 seconds", "over"]

        database = ["--database", "sqlite:///tenure.db", "--seconds", "2.5"]
        nodes = await asyncio.gather(*(script("applock_sessions/jobs.py", *database) for _ in range(2)))
        due = [line for node in nodes for line in re.findall(r"^invoices due at .+$", node, re.MULTILINE)]
        assert due
        assert len(set(due)) == len(due)
        for node in nodes:
            assert re.search(r"^sp_getapplock [01] sp_releaseapplock 0$", node, re.MULTILINE), node
        # In Tenure, the runs of the job correspond to the marker rows of the old job.
        runs = (await service.http.get("/jobs/invoices/runs")).json()["runs"]
        assert sum(each["outcome"] == "succeeded" for each in runs) == len(due)

        assert "live sessions written back: 1, marked as ended: 0" in await script(
            "move.py", "applock_sessions", "old.db", "--back", "--url", address(service)
        )
        ((fresh,),) = [rows("SELECT RenewedAtUtc > datetime('now', '-9 seconds') FROM ExecutionMarkers LIMIT 1")]
        assert fresh == (1,)
        await service.http.delete(f"/sessions/{alive}")
        back = await script("move.py", "applock_sessions", "old.db", "--back", "--url", address(service))
        assert "live sessions written back: 0, marked as ended: 1" in back


async def test_applocks_return_codes_of_sp_getapplock(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "applock_sessions"))
    app_locks = importlib.import_module("jobs").AppLocks
    database = "sqlite:///tenure.db"
    async with run("applock_sessions") as service, Ensemble(database) as one, Ensemble(database) as two:
        mine, theirs = app_locks(one), app_locks(two)
        assert [await mine.get("ledger"), await mine.get("ledger"), await theirs.get("ledger", 10)] == [0, 0, -1]
        waiting = asyncio.create_task(theirs.get("ledger", -1))
        assert await mine.release("ledger") == 0
        await asyncio.sleep(0.1)
        assert not waiting.done(), "the lock was acquired twice and released once"
        assert await mine.release("ledger") == 0
        async with asyncio.timeout(SECONDS):
            assert await waiting == 1
        assert [await mine.release("ledger"), await mine.get("two words")] == [-999, -999]

        # As in T-SQL, a call without @LockTimeout waits.
        waiting = asyncio.create_task(mine.get("ledger"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert await theirs.release("ledger") == 0
        async with asyncio.timeout(SECONDS):
            assert await waiting == 1

        # After a lock was lost, `get` raises `LeaseLost`, and does not return 0 as if the lock were still held.
        assert mine.fence("ledger").name == "ledger"
        assert (await service.http.post("/leases/ledger/resign")).status_code == 200
        async with asyncio.timeout(SECONDS):
            assert await theirs.get("ledger") in (0, 1)
            with pytest.raises(LeaseLost):
                await get_again_and_again(mine, "ledger")
        assert await mine.release("ledger") == -999
        assert await mine.get("ledger", 10) == -1
        assert await theirs.release("ledger") == 0


async def get_again_and_again(locks: Any, resource: str) -> None:
    while await locks.get(resource) == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_capacity_of_one_seat_keeps_other_nodes_out(run: Run) -> None:
    capacity = CAPACITY.format(7)
    async with run("applock_sessions") as service:
        assert (await service.http.put(f"/capacities/{capacity}", json={"maxSessions": 1})).status_code == 200
        held = open_body(capacityId=capacity)
        assert [(await service.put(held)).json()["status"] for _ in range(2)] == ["created", "existing"]
        refused = await service.put(open_body(capacityId=capacity))
        assert (refused.status_code, refused.json()["code"]) == (429, "SESSION_LIMIT")
        session = (await service.put(held)).json()["sessionId"]
        await service.http.delete(f"/sessions/{session}")
        assert (await service.put(open_body(capacityId=capacity))).status_code == 201
        assert (await service.http.post(f"/sessions/{session}/heartbeat")).status_code == 410


async def test_intent_posted_to_follower_is_sent_by_leader_and_waiting_intents_move_once(
    run: Run, tmp_path: Path
) -> None:
    receiver = RunningReceiver(tmp_path, "--ledger", "ledger.db")
    gateway = {"TENURE_GATEWAYS__ORDERS__URL": f"{receiver.address}/orders"}
    try:
        async with run("submission_manager", **gateway) as leader:
            async with asyncio.timeout(SECONDS):
                while "mode=leader" not in await readiness(leader):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            async with run("submission_manager", **gateway, TENURE_LEASES__HOLDER="node-2") as follower:
                printed = (await script("submission_manager/client.py", "--url", address(follower))).splitlines()
                assert re.fullmatch(r"mode=follower holder_id=node-2 lease_expires_at=\S+ leader_id=node-1", printed[0])
                assert re.fullmatch(r"intent-\S+ is submission \S+", printed[1])
                assert printed[2:] == ["delivered"]

                # Without `--tried`, the script only prints the id of an intent that may have reached its target.
                move = ["submission_manager/move_intents.py", "old.db", "--url", address(follower)]
                for _ in range(2):
                    moved = [line.split(maxsplit=1) for line in (await script(*move)).splitlines()]
                    assert [intent for intent, _ in moved] == ["intent-5", "intent-2", "intent-3"]
                    assert moved[0][1].startswith("was being sent")
                await delivered(follower, 3)
                assert "intent-5 pending" in await script(*move, "--tried")
                await delivered(follower, 4)
                listed = (await follower.http.get("/submissions")).json()["submissions"]
                assert [each["request_id"] for each in listed[:3]] == ["intent-5", "intent-3", "intent-2"]
                received = (await follower.http.get(f"{receiver.address}/_totals")).json()
                assert (received["keys"], received["duplicates"]) == (4, 0)
    finally:
        receiver.stop()


async def test_intents_are_posted_with_a_key_of_role_client(run: Run, tmp_path: Path) -> None:
    receiver = RunningReceiver(tmp_path, "--ledger", "ledger.db")
    gateway = {"TENURE_GATEWAYS__ORDERS__URL": f"{receiver.address}/orders"}
    try:
        async with run("submission_manager", **gateway) as service:
            keys = {role: await new_key(service, role) for role in ("operator", "client")}
            await keys_are_required(service)
            client = ["submission_manager/client.py", "--url", address(service), "--intent", "intent-6"]
            for _ in range(2):
                printed = (await script(*client, TENURE_KEY=keys["client"])).splitlines()
                assert "holder_id=node-1 " in printed[0]
                assert printed[2] == "delivered"
            move = ["submission_manager/move_intents.py", "old.db", "--url", address(service)]
            assert "pending" not in await script(*move, code=1)
            assert "intent-2 pending" in await script(*move, TENURE_KEY=keys["client"])
            await delivered(service, 3)
            # Without an API key, the probe names no instance.
            shown = await service.http.get("/readyz", headers={"Accept": "text/plain", "Authorization": ""})
            assert re.fullmatch(r"mode=leader holder_id= lease_expires_at=\S+\n", shown.text)
    finally:
        receiver.stop()


async def new_key(service: LocalService, role: str) -> str:
    created = await service.http.post("/keys", json={"name": role, "role": role})
    assert created.status_code == 201, created.text
    service.http.headers.setdefault("Authorization", f"Bearer {created.json()['key']}")
    return str(created.json()["key"])


async def keys_are_required(service: LocalService) -> None:
    async with asyncio.timeout(SECONDS):
        while (await service.http.get("/leases", headers={"Authorization": ""})).status_code != 401:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def delivered(service: LocalService, count: int) -> None:
    """Waits until there are exactly `count` intents, and all of them are delivered."""
    async with asyncio.timeout(SECONDS):
        while await counts(service) != {"delivered": count}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def readiness(service: LocalService) -> str:
    return (await service.http.get("/readyz", headers={"Accept": "text/plain"})).text


async def counts(service: LocalService) -> dict[str, int]:
    listed = (await service.http.get("/submissions", params={"gateway": "orders"})).json()["submissions"]
    states = [each["state"] for each in listed]
    return {state: states.count(state) for state in set(states)}


async def test_transcription_client_sends_audio_first_and_reads_snake_case(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parents[1]))
    (tmp_path / "audio.pcm").write_bytes(b"one two. three")
    recognizer = {"TENURE_STREAMS__OPTIONS__RECOGNIZER": "tests.transcription.stand_ins:Letters"}
    async with run("transcription_sessions", **recognizer) as service:
        url = f"ws://127.0.0.1:{service.port}/v1"
        printed = (await script("transcription_sessions/client.py", "audio.pcm", "--url", url)).splitlines()
        assert [line for line in printed if line.startswith("final")] == ["final one two", "final three"]
        assert printed[-2:] == ["already_closed STOPPED 14 bytes", "14 bytes 2 transcripts on this instance"]
        # The other service's limit on sessions corresponds to the seats of the capacity.
        await service.http.put(f"/capacities/{CAPACITY.format(4)}", json={"max_sessions": 0})
        refused = await script("transcription_sessions/client.py", "audio.pcm", "--url", url, code=1)
        assert refused.startswith("SESSION_LIMIT ")
        assert refused.endswith("\nclosed with code 1008\n")
        assert (await service.http.get("/v1/health")).json()["active_sessions"] == 0


async def test_player_keeps_imported_session_alive_and_is_refused_if_all_screens_are_taken(run: Run) -> None:
    imported = "0190b0a0-0000-7000-8000-000000000301"
    async with run("playback_sessions") as service:
        assert "1 session imported" in await script("move.py", "playback_sessions", "old.db")
        url = address(service, "/api/v3")
        lease = (await live(service, "/api/v3/sessions"))[imported]
        assert lease["sessionKind"] == 2
        twice = ["--heartbeats", "2", "--pause", "0"]
        printed = (await script("playback_sessions/player.py", "--url", url, *twice)).splitlines()
        assert printed[0] == "created heartbeat every 5 seconds"
        assert [line.split()[:2] for line in printed[1:3]] == [["alive", "until"]] * 2
        assert printed[3] == "TERMINATED"

        capacity = f"/api/v3/capacities/{CAPACITY.format(5)}"
        await service.http.put(capacity, json={"max_sessions": 1, "tenant_object_id": lease["tenantObjectId"]})
        refused = await script("playback_sessions/player.py", "--url", url, code=1)
        assert refused == "all screens of the subscription are taken\n"

        assert "live sessions written back: 1, marked as ended: 0" in await script(
            "move.py", "playback_sessions", "old.db", "--back", "--url", url
        )
        again = ["--url", url, "--session", imported, "--heartbeats", "1", "--pause", "0"]
        assert "alive until" in await script("playback_sessions/player.py", *again)
        assert await script("playback_sessions/player.py", *again, code=1) == "the session is over\n"
