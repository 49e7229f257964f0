"""What is under way when it is told to stop."""

import asyncio
import threading
from pathlib import Path

import pytest

from tenure.receiver.faults import Faults
from tenure.receiver.ledger import Delivery, Ledger, Outcome, Totals
from tenure.receiver.running import Server, Settings
from tests.receiver.sending import deliver

SECONDS = 5


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
    server = Server(
        Settings(host="127.0.0.1", port=0, ledger=tmp_path / "ledger.db", secrets=(), faults=Faults()),
    )
    delivering = asyncio.create_task(deliver(await server.start(), "k1"))
    assert await asyncio.to_thread(writing.begun.wait, SECONDS)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    writing.may_go_on.set()
    assert ((await delivering).status, (await stopping).keys) == (200, 1)
