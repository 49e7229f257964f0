"""`tenure receiver` as a process: options, signals, kills and restarts."""

import asyncio
import json
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs
from typer.testing import CliRunner

from tenure.cli.main import app
from tenure.receiver.faults import Drop
from tenure.receiver.messages import Request, text_response
from tenure.receiver.server import LOGGED_PER_SECOND, DeliveryLog
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


async def test_sigterm_stops_receiver_which_prints_totals(start: Start) -> None:
    receiver = start()
    for _ in range(2):
        await deliver(receiver.address, "k1", b'[{"usage":1.25}]')
    receiver.send(signal.SIGTERM)
    assert (receiver.wait_for_exit(), receiver.output()) == (0, TOTALS)


async def test_sigint_stops_receiver_which_prints_totals_as_json(start: Start) -> None:
    receiver = start("--json")
    await deliver(receiver.address, "k1")
    before = await totals(receiver.address)
    receiver.send(signal.SIGINT)
    assert receiver.wait_for_exit() == 0
    assert msgspec.json.decode(receiver.output()) == before


async def test_receiver_continues_counts_after_stop_and_after_kill(start: Start) -> None:
    stopped = start()
    await deliver(stopped.address, "k1", b'[{"usage": 0.1}]')
    await deliver(stopped.address, "", b"")
    stopped.stop()
    killed = start()
    assert (await deliver(killed.address, "k1", b'[{"usage": 0.1}]')).reason == "already counted"
    assert (await deliver(killed.address, "k2", b'[{"usage": 0.2}]')).reason == "counted"
    killed.kill()
    last = start()
    assert (await deliver(last.address, "k2", b'[{"usage": 0.2}]')).reason == "already counted"
    counted = await totals(last.address)
    assert [counted[name] for name in ("keys", "requests", "duplicates", "refused", "usage")] == [2, 5, 2, 1, "0.3"]


async def test_options_set_address_secrets_and_faults(start: Start) -> None:
    faults = '{"share": 1, "times": 1, "ways": [{"way": "status", "status": 507}]}'
    secrets = ("--secret", SECRET, "--previous-secret", OTHER_SECRET)
    receiver = start("--host", "0.0.0.0", "--insecure", *secrets, "--fail", faults)
    address = receiver.address.replace("0.0.0.0", "127.0.0.1")
    for key, secret in (("k1", SECRET), ("k2", OTHER_SECRET)):
        assert [(await deliver_signed(address, key, b"{}", secret)).status for _ in range(2)] == [507, 200], key
    assert (await deliver(address, "k3")).status == 401


async def test_receiver_stops_during_endless_body_and_with_idle_connection(start: Start) -> None:
    receiver = start("--fail", '{"share": 1, "ways": [{"way": "endless-body"}]}')
    _, idle = await connect(receiver.address)
    reader, writer = await connect(receiver.address)
    writer.write(request("/", b"", headers={"idempotency-key": "k1"}))
    await reader.readuntil(b"\r\n\r\n")
    receiver.send(signal.SIGTERM)
    assert await asyncio.to_thread(receiver.process.wait, SECONDS) == 0
    writer.close()
    idle.close()


async def test_sender_disconnect_is_not_logged(start: Start) -> None:
    receiver = start("--fail", '{"share": 1, "ways": [{"way": "slow-body", "seconds": 0.02}]}')
    reader, writer = await connect(receiver.address)
    writer.write(request("/", b"", headers={"idempotency-key": "k1"}))
    await reader.readuntil(b"\r\n\r\n")
    # SO_LINGER 0 makes close() send a reset, which reaches the receiver while it is still sending its slow body.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    await deliver(receiver.address, "k2")
    receiver.stop()
    events = [json.loads(line)["event"] for line in receiver.log().splitlines()]
    assert events == ["listening", "delivery", "delivery"]


def test_deliveries_are_logged_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    written, ok = DeliveryLog(), text_response(200, "counted")
    delivery = Request("POST", "/usages", "", {}, b"{}", keep_alive=True)
    # A logger keeps the configuration of its first use. So `capture_logs` needs a logger that was not used before.
    monkeypatch.setattr("tenure.receiver.server.log", structlog.get_logger())
    with capture_logs() as lines:
        for second, count in ((1, 3 * LOGGED_PER_SECOND), (2, 1)):
            monkeypatch.setattr("tenure.receiver.server.monotonic", lambda now=second: now + 0.5)
            for _ in range(count):
                written.add(delivery, ok, None)
        written.add(delivery._replace(path="/\x1b[2J"), ok, Drop())
    assert len(lines) == LOGGED_PER_SECOND + 2
    shown = {
        "event": "delivery",
        "log_level": "info",
        "path": "/usages",
        "bytes": 2,
        "status": 200,
        "result": "counted",
    }
    assert lines[0] == shown
    assert lines[-2] == {**shown, "not_logged_before": 2 * LOGGED_PER_SECOND}
    assert (lines[-1]["path"], lines[-1]["fault"], "status" in lines[-1]) == (r"'/\x1b[2J'", "drop", False)


# Kills


@pytest.mark.slow
async def test_answered_keys_are_counted_once_after_repeated_kills(start: Start) -> None:
    answered: list[str] = []
    for kills in (1, 2):
        receiver = start()
        enough = len(answered) + 400
        senders = [asyncio.create_task(send_until_killed(receiver, answered)) for _ in range(16)]
        async with asyncio.timeout(10):
            await reached(answered, enough)
        receiver.kill()
        await asyncio.gather(*senders)
        assert len(answered) >= enough, f"after {kills} kills"
    counted = Counter(await all_keys(start()))
    assert [key for key in answered if counted[key] != 1] == []


async def send_until_killed(receiver: RunningReceiver, answered: list[str]) -> None:
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
    while len(answered) < enough:  # noqa: ASYNC110 - an event would slow the senders down
        await asyncio.sleep(0.01)


async def all_keys(receiver: RunningReceiver) -> list[str]:
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
        (["--host", "0.0.0.0"], "host: must be a loopback address, such as 127.0.0.1, unless --insecure is set"),
        (["--secret", "my password"], "secret: must be whsec_ and base64"),
        (["--secret", SECRET, "--previous-secret", "whsec_c2hvcnQ="], "previous-secret: must be whsec_ and base64"),
        (["--previous-secret", SECRET], "previous-secret: requires secret"),
        (["--fail", "1.5"], "faults: must be a share from 0 to 1"),
    ],
)
def test_invalid_setting_prevents_start(monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str) -> None:
    monkeypatch.setattr("tenure.receiver.server.run", lambda _: pytest.fail("the receiver started"))
    monkeypatch.setattr("tenure.telemetry.logs.configure_logs", lambda *_level: None)
    refused = CliRunner().invoke(app, ["receiver", *flags])
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"tenure: {words}")


def test_port_in_use_prevents_start(tmp_path: Path) -> None:
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
    reason = "Address already in use; choose another port with --port"
    assert line == f"tenure: host, port: cannot listen on 127.0.0.1:{port}: {reason}"
