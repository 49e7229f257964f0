"""What is under way when it is told to stop."""

import asyncio
import threading
from pathlib import Path

import pytest

from tenure.receiver import running
from tenure.receiver.faults import Faults, read_faults
from tenure.receiver.ledger import Delivery, Ledger, Outcome, Totals
from tenure.receiver.running import Server, Settings
from tests.receiver.sending import connect, deliver, request

SECONDS = 20


def receiver(folder: Path, faults: Faults = Faults()) -> Server:  # noqa: B008 - it is never changed
    return Server(Settings(host="127.0.0.1", port=0, ledger=folder / "ledger.db", secrets=(), faults=faults))


class HeldBack:
    """Keeps the ledger from writing until it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        record = Ledger._record

        def held_back(ledger: Ledger, delivery: Delivery, totals: Totals) -> Outcome:
            self.begun.set()
            self.may_go_on.wait(SECONDS)
            return record(ledger, delivery, totals)

        monkeypatch.setattr(Ledger, "_record", held_back)


async def test_what_is_being_written_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = HeldBack(monkeypatch)
    server = receiver(tmp_path)
    delivering = asyncio.create_task(deliver(await server.start(), "k1"))
    assert await asyncio.to_thread(writing.begun.wait, SECONDS)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    writing.may_go_on.set()
    assert ((await delivering).status, (await stopping).keys) == (200, 1)


async def test_an_endless_body_does_not_hold_up_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STOP_SECONDS", 3 * SECONDS)
    server = receiver(tmp_path, read_faults('{"share": 1, "ways": [{"way": "endless-body"}]}'))
    reader, writer = await connect(await server.start())
    writer.write(request("/", b"", headers={"idempotency-key": "k1"}))
    await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(SECONDS):
        await server.stop()
    writer.close()


async def test_an_idle_connection_does_not_hold_up_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STOP_SECONDS", 3 * SECONDS)
    server = receiver(tmp_path)
    address = await server.start()
    _, writer = await connect(address)
    assert (await deliver(address, "k1")).status == 200
    async with asyncio.timeout(SECONDS):
        await server.stop()
    writer.close()
