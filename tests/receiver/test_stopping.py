"""When a receiver stops, it answers the requests in progress, but does not wait for faults or for idle connections."""

import asyncio
import threading
from pathlib import Path

import pytest

from tenure.receiver import server as server_module
from tenure.receiver.faults import Faults, read_faults
from tenure.receiver.ledger import Delivery, DeliveryOutcome, Ledger, Totals
from tenure.receiver.server import ReceiverSettings, Server
from tests.receiver.sending import connect, deliver, request

SECONDS = 20


def receiver(folder: Path, faults: Faults = Faults()) -> Server:  # noqa: B008 - immutable
    return Server(ReceiverSettings(host="127.0.0.1", port=0, ledger=folder / "ledger.db", secrets=(), faults=faults))


class BlockedLedger:
    """Blocks writes to the ledger until a test allows them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_continue = threading.Event(), threading.Event()
        record = Ledger._record

        def blocked(ledger: Ledger, delivery: Delivery, totals: Totals) -> DeliveryOutcome:
            self.begun.set()
            self.may_continue.wait(SECONDS)
            return record(ledger, delivery, totals)

        monkeypatch.setattr(Ledger, "_record", blocked)


async def test_delivery_being_written_is_answered_during_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = BlockedLedger(monkeypatch)
    server = receiver(tmp_path)
    delivering = asyncio.create_task(deliver(await server.start(), "k1"))
    assert await asyncio.to_thread(writing.begun.wait, SECONDS)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    writing.may_continue.set()
    assert ((await delivering).status, (await stopping).keys) == (200, 1)


async def test_endless_body_does_not_delay_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "STOP_SECONDS", 3 * SECONDS)
    server = receiver(tmp_path, read_faults('{"share": 1, "ways": [{"way": "endless-body"}]}'))
    reader, writer = await connect(await server.start())
    writer.write(request("/", b"", headers={"idempotency-key": "k1"}))
    await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(SECONDS):
        await server.stop()
    writer.close()


async def test_idle_connection_does_not_delay_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "STOP_SECONDS", 3 * SECONDS)
    server = receiver(tmp_path)
    address = await server.start()
    _, writer = await connect(address)
    assert (await deliver(address, "k1")).status == 200
    async with asyncio.timeout(SECONDS):
        await server.stop()
    writer.close()
