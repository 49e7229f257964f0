"""`tenure receiver` as a person meets it: started, stopped, killed, started again."""

import asyncio
import signal
import socket
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from typer.testing import CliRunner

from tenure.cli.main import app
from tenure.errors import ConfigurationError
from tests.receiver.conftest import Start
from tests.receiver.sending import (
    OTHER_SECRET,
    SECONDS,
    SECRET,
    connect,
    deliver,
    deliver_signed,
    keys,
    parsed,
    request,
    totals,
)
from tests.support.receivers import RunningReceiver

TOTALS = """\
keys           1
requests       2
duplicates     1
conflicts      0
refused        0
failed         0
bytes         16
usage       1.25
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_tells_its_totals_when_it_is_stopped(start: Start, number: signal.Signals) -> None:
    receiver = start()
    for _ in range(2):
        await deliver(receiver.address, "k1", b'[{"usage":1.25}]')
    receiver.send(number)
    assert (receiver.wait_for_its_end(), receiver.told()) == (0, TOTALS)


async def test_tells_its_totals_to_programs(start: Start) -> None:
    receiver = start("--json")
    await deliver(receiver.address, "k1")
    before = await totals(receiver.address)
    assert receiver.stop() == 0
    assert msgspec.json.decode(receiver.told()) == before


async def test_goes_on_counting_where_it_stopped(start: Start) -> None:
    first = start()
    await deliver(first.address, "k1", b'[{"usage": 0.1}]')
    await deliver(first.address, "", b"")
    first.stop()
    second = start()
    await deliver(second.address, "k1", b'[{"usage": 0.1}]')
    await deliver(second.address, "k2", b'[{"usage": 0.2}]')
    counted = await totals(second.address)
    assert [counted[name] for name in ("keys", "requests", "duplicates", "refused", "usage")] == [2, 4, 1, 1, "0.3"]


async def test_is_told_to_fail_at_the_start(start: Start) -> None:
    receiver = start("--fail", '{"share": 1, "times": 1, "ways": [{"way": "status", "status": 507}]}')
    assert [(await deliver(receiver.address, "k1")).status for _ in range(2)] == [507, 200]


async def test_checks_signatures_with_both_secrets(start: Start) -> None:
    receiver = start("--secret", SECRET, "--previous-secret", OTHER_SECRET)
    statuses = [
        (await deliver_signed(receiver.address, "k1", b"{}", SECRET)).status,
        (await deliver_signed(receiver.address, "k2", b"{}", OTHER_SECRET)).status,
        (await deliver(receiver.address, "k3")).status,
    ]
    assert statuses == [200, 200, 401]


async def test_stops_in_the_middle_of_an_endless_body(start: Start) -> None:
    receiver = start("--fail", '{"share": 1, "ways": [{"way": "endless-body"}]}')
    reader, writer = await connect(receiver.address)
    writer.write(request("/", b"", headers={"idempotency-key": "k1"}))
    await reader.readuntil(b"\r\n\r\n")
    receiver.send(signal.SIGTERM)
    assert await asyncio.to_thread(receiver.process.wait, SECONDS) == 0
    writer.close()


async def test_stops_beside_an_idle_connection(start: Start) -> None:
    receiver = start()
    _, writer = await connect(receiver.address)
    await deliver(receiver.address, "k1")
    receiver.send(signal.SIGTERM)
    assert await asyncio.to_thread(receiver.process.wait, SECONDS) == 0
    writer.close()


async def test_a_sender_that_leaves_without_its_answer_is_no_event(start: Start) -> None:
    receiver = start("--fail", '{"share": 1, "ways": [{"way": "slow-body", "seconds": 0.02}]}')
    reader, writer = await connect(receiver.address)
    writer.write(request("/", b"", headers={"idempotency-key": "k1"}))
    await reader.readuntil(b"\r\n\r\n")
    # Closed with a reset, which the receiver meets in the middle of the body.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    await deliver(receiver.address, "k2")
    receiver.stop()
    assert [line for line in receiver.log().splitlines() if '"event":"listening"' not in line] == []


# Killed


@pytest.mark.slow
async def test_every_answered_key_is_counted_once_whenever_it_is_killed(start: Start) -> None:
    answered: list[str] = []
    for kills in range(1, 4):
        receiver = start()
        enough = len(answered) + 400
        senders = [asyncio.create_task(send_until_gone(receiver, answered)) for _ in range(16)]
        async with asyncio.timeout(10):
            await reached(answered, enough)
        receiver.kill()
        await asyncio.gather(*senders)
        assert len(answered) >= enough, f"after {kills} kills"
    counted = await everything(start())
    assert [key for key in answered if counted.count(key) != 1] == []


async def test_an_answered_key_is_known_again_after_a_kill(start: Start) -> None:
    first = start()
    await deliver(first.address, "k1")
    first.kill()
    assert (await deliver(start().address, "k1")).reason == "already counted"


async def send_until_gone(receiver: RunningReceiver, answered: list[str]) -> None:
    reader, writer = await connect(receiver.address)
    with closing(writer):
        while True:
            key = str(uuid4())
            writer.write(request("/usages", b'[{"usage": 1}]', headers={"idempotency-key": key}))
            try:
                head = parsed(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(int(head.headers["content-length"]))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            assert head.status == 200
            answered.append(key)


async def reached(answered: list[str], enough: int) -> None:
    while len(answered) < enough:  # noqa: ASYNC110 - the senders have no time to tell
        await asyncio.sleep(0.01)


async def everything(receiver: RunningReceiver) -> list[str]:
    found: list[str] = []
    after = 0
    while page := await keys(receiver.address, f"?limit=1000&after={after}"):
        found += [entry["key"] for entry in page]
        after = page[-1]["position"]
    counted = await totals(receiver.address)
    assert (counted["keys"], counted["usage"]) == (len(found), str(len(found)))
    return found


# Settings


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "70000"], "port: must be a whole number from 0 to 65535"),
        (["--port", "x"], "port: must be a whole number from 0 to 65535"),
        (["--host", "0.0.0.0"], "host: must be a loopback address, as 127.0.0.1, unless --insecure allows any"),
        (["--secret", "my password"], "secret: must be whsec_ and base64"),
        (["--secret", SECRET, "--previous-secret", "whsec_c2hvcnQ="], "previous-secret: must be whsec_ and base64"),
        (["--previous-secret", SECRET], "previous-secret: must come with secret"),
        (["--fail", "1.5"], "faults: must be a share from 0 to 1"),
    ],
)
def test_a_wrong_setting_stops_the_start(monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str) -> None:
    monkeypatch.setattr("tenure.receiver.running.run", lambda _: pytest.fail("it has started"))
    refused = CliRunner().invoke(app, ["receiver", *flags]).exception
    assert isinstance(refused, ConfigurationError), refused
    assert str(refused).startswith(words)


def test_a_port_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "tenure", "receiver", "--port", str(port)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=30,
            check=False,
        )
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert line.startswith(f"tenure: host, port: cannot listen on 127.0.0.1:{port}: ")


async def test_listens_anywhere_when_told(start: Start) -> None:
    receiver = start("--host", "0.0.0.0", "--insecure")
    assert (await deliver(receiver.address.replace("0.0.0.0", "127.0.0.1"), "k1")).status == 200
