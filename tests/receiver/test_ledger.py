"""The ledger file: its totals match its entries, and files of other applications are left unchanged."""

import asyncio
import sqlite3
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import ConfigurationError
from tenure.receiver.ledger import Delivery, DeliveryOutcome, Ledger, LedgerFailed, RequestCounts
from tenure.receiver.recorder import Recorder
from tests.receiver.sending import deliver, keys, totals

IN_MEMORY = Path(":memory:")

bodies = st.sampled_from([b"", b"{}", b'[{"usage": 0.1}]', b'[{"usage": 0.000001}, {"usage": 3}]', b"[]"])
deliveries = st.builds(Delivery, st.sampled_from("abcd"), st.just("/"), bodies, st.integers(0, 10**15))
counts = st.builds(RequestCounts, *[st.integers(0, 9)] * 3)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.lists(deliveries, max_size=6), counts), max_size=6))
def test_ledger_totals_match_entries(batches: Sequence[tuple[list[Delivery], RequestCounts]]) -> None:
    ledger = Ledger(IN_MEMORY)
    first: dict[str, bytes] = {}
    for batch, added in batches:
        expected = [_expected(first, delivery) for delivery in batch]
        assert ledger.record(batch, added) == expected
    entries, kept = ledger.page(0, 100), ledger.totals()
    assert {entry.key: entry.size for entry in entries} == {key: len(body) for key, body in first.items()}
    assert (kept.keys, kept.bytes) == (len(entries), sum(entry.size for entry in entries))
    assert kept.duplicates == sum(entry.times_seen - 1 for entry in entries)
    assert kept.conflicts == sum(entry.conflicts for entry in entries)
    assert Decimal(kept.usage) == sum(Decimal(entry.usage or 0) for entry in entries)
    assert kept.requests == sum(len(batch) + added.requests for batch, added in batches)
    assert (kept.refused, kept.failed) == (sum(b.refused for _, b in batches), sum(b.failed for _, b in batches))
    ledger.close()


def _expected(first: dict[str, bytes], delivery: Delivery) -> DeliveryOutcome:
    if delivery.key not in first:
        first[delivery.key] = delivery.body
        return DeliveryOutcome.COUNTED
    return DeliveryOutcome.DUPLICATE if first[delivery.key] == delivery.body else DeliveryOutcome.CONFLICT


def test_two_receivers_can_share_ledger(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path / "ledger.db"), Ledger(tmp_path / "ledger.db")
    one.record([Delivery("a", "/", b'[{"usage": 1.5}]', 0)])
    assert other.record([Delivery("a", "/", b'[{"usage": 1.5}]', 0)]) == [DeliveryOutcome.DUPLICATE]
    other.record([Delivery("b", "/", b'[{"usage": 2.5}]', 0)])
    assert (one.totals().keys, one.totals().usage) == (2, "4.0")
    one.close()
    other.close()


def test_find_returns_same_entry_as_page(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    bodies = {"a": b'[{"usage": 1.5}]', "b": b'[{"data": {"usage": 2}}, {"data": {"usage": 0.25}}]', "c": b"other"}
    ledger.record([Delivery(key, f"/{key}", body, 10**15 + at) for at, (key, body) in enumerate(bodies.items())])
    ledger.record([Delivery("b", "/b", bodies["b"], 1), Delivery("b", "/b", b"[]", 2), Delivery("b", "/b", b"[]", 3)])
    assert [ledger.find(key) for key in bodies] == ledger.page(0, 9)
    found = ledger.find("b")
    assert found is not None
    assert (found.position, found.times_seen, found.conflicts, found.records, found.usage) == (2, 2, 2, 2, "2.25")
    ledger.close()


def test_find_returns_none_for_unknown_key() -> None:
    ledger = Ledger(IN_MEMORY)
    ledger.record([Delivery("a", "/", b"", 0)])
    assert {key: ledger.find(key) for key in ("", "A", "a ", "ab", "%")} == dict.fromkeys(("", "A", "a ", "ab", "%"))
    ledger.close()


@pytest.mark.parametrize("content", [None, b"not a database at all" * 100, b"directory"])
def test_ledger_refuses_file_that_is_not_ledger(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "other.db"
    if content == b"directory":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    else:
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE sessions (id)")
        other.close()
    with pytest.raises(ConfigurationError, match=r"^ledger: cannot use .*other\.db"):
        Ledger(file)


def test_ledger_refuses_path_that_cannot_be_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unable to open database file"):
        Ledger(tmp_path / "missing" / "ledger.db")


def test_ledger_does_not_change_foreign_database(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE sessions (id)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(ConfigurationError, match="a database of another application"):
        Ledger(file)
    assert file.read_bytes() == before


class CountingLedger(Ledger):
    commits = 0

    def record(self, deliveries: Sequence[Delivery], counts: RequestCounts = RequestCounts()) -> list[DeliveryOutcome]:  # noqa: B008
        self.commits += 1
        return super().record(deliveries, counts)


async def test_concurrent_deliveries_share_one_commit(tmp_path: Path) -> None:
    ledger = CountingLedger(tmp_path / "ledger.db")
    recorder = Recorder(ledger)
    outcomes = await asyncio.gather(*(recorder.record(Delivery(f"k{n}", "/", b"", 0)) for n in range(500)))
    commits = ledger.commits
    await recorder.close()
    assert (set(outcomes), commits) == ({DeliveryOutcome.COUNTED}, 1)


class BrokenLedger(Ledger):
    broken = True

    def record(self, deliveries: Sequence[Delivery], counts: RequestCounts = RequestCounts()) -> list[DeliveryOutcome]:  # noqa: B008
        if self.broken:
            raise LedgerFailed("the ledger cannot be used: disk full")
        return super().record(deliveries, counts)


async def test_recorder_keeps_counts_while_ledger_cannot_be_written(tmp_path: Path) -> None:
    ledger = BrokenLedger(tmp_path / "ledger.db")
    recorder = Recorder(ledger)
    recorder.add_counts(RequestCounts(requests=1, refused=1))
    with pytest.raises(LedgerFailed):
        await recorder.record(Delivery("k", "/", b"", 0))
    ledger.broken = False
    assert await recorder.record(Delivery("k", "/", b"", 0)) is DeliveryOutcome.COUNTED
    kept = await recorder.close()
    assert (kept.keys, kept.requests, kept.refused) == (1, 2, 1)


async def test_receiver_returns_503_when_ledger_cannot_be_written(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "_record", fail)
        received = await deliver(address, "k1")
    assert (received.status, received.reason) == (503, "the ledger cannot be used: database or disk is full")
    assert (await deliver(address, "k1")).status == 200
    assert [entry["timesSeen"] for entry in await keys(address)] == [1]


async def test_ledger_can_be_read_by_other_connections(address: str, tmp_path: Path) -> None:
    await deliver(address, "k1", b'[{"usage": 1.25}]')
    reading = sqlite3.connect(tmp_path / "ledger.db")
    assert reading.execute("SELECT key, records, usage FROM deliveries").fetchall() == [("k1", 1, "1.25")]
    reading.close()
    assert (await totals(address))["keys"] == 1
