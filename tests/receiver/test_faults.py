"""The receiver fails in the configured ways, and in no others."""

import asyncio
import time
from collections import Counter
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
import pytest

from tenure.clock import from_microseconds, wall_microseconds
from tenure.errors import ConfigurationError
from tenure.receiver.faults import EVERY_WAY, Chooser, Drop, Faults, Garbage, Status, Way, read_faults
from tests.receiver.conftest import Receive
from tests.receiver.sending import SECONDS, connect, deliver, exchange, keys, request, send, set_faults, totals

POST = request("/usages", b"{}", headers={"idempotency-key": "k1"})


async def failing(receive: Receive, **way: Any) -> str:
    """Starts a receiver that fails every delivery in the given way, and returns its address."""
    faults = read_faults(msgspec.json.encode({"share": 1, "ways": [way]}))
    return await receive(faults=faults)


async def counted_and_failed(address: str) -> tuple[int, int]:
    now = await totals(address)
    return now["keys"], now["failed"]


# Ways to fail


async def test_status_fault_returns_configured_status(address: str) -> None:
    for failed, status in enumerate((300, 404, 410, 429, 500, 503, 599), 1):
        await set_faults(address, {"share": 1, "ways": [{"way": "status", "status": status}]})
        received = await deliver(address, "k1")
        assert (received.status, received.reason) == (status, "configured fault")
        assert "retry-after" not in received.headers, status
        assert await counted_and_failed(address) == (0, failed), status


async def test_status_fault_can_count_delivery(receive: Receive) -> None:
    address = await failing(receive, way="status", status=500, counted=True)
    assert (await deliver(address, "k1")).status == 500
    assert await counted_and_failed(address) == (1, 1)


async def test_status_fault_204_has_no_body(receive: Receive) -> None:
    received = await deliver(await failing(receive, way="status", status=204, counted=True), "k1")
    assert (received.status, received.content, "content-length" in received.headers) == (204, b"", False)


async def test_status_fault_sends_retry_after_in_seconds(receive: Receive) -> None:
    received = await deliver(await failing(receive, way="status", status=503, retryAfterSeconds=7), "k1")
    assert received.headers["retry-after"] == "7"


async def test_status_fault_sends_retry_after_as_date(receive: Receive) -> None:
    address = await failing(receive, way="status", status=429, retryAfterSeconds=100, retryAfterAs="date")
    received = await deliver(address, "k1")
    wait = parsedate_to_datetime(received.headers["retry-after"]) - from_microseconds(wall_microseconds())
    assert 95 < wait.total_seconds() <= 100


async def test_delay_fault_counts_delivery_and_responds_late(receive: Receive) -> None:
    address = await failing(receive, way="delay", seconds=0.3)
    began = time.monotonic()
    received = await deliver(address, "k1")
    assert (received.status, received.reason) == (200, "counted")
    assert time.monotonic() - began >= 0.3
    assert await counted_and_failed(address) == (1, 1)


async def test_slow_body_fault_sends_body_byte_by_byte(receive: Receive) -> None:
    address = await failing(receive, way="slow-body", seconds=0.05, bytes=4)
    began = time.monotonic()
    received = await deliver(address, "k1")
    assert (received.status, received.content) == (200, b"....")
    assert time.monotonic() - began >= 0.2


async def test_endless_body_fault_sends_endless_body(receive: Receive) -> None:
    address = await failing(receive, way="endless-body")
    reader, writer = await connect(address)
    writer.write(POST)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert len(await reader.readexactly(200_000)) == 200_000
    writer.close()
    assert await counted_and_failed(address) == (1, 1)


async def test_drop_fault_closes_connection_after_counting(receive: Receive) -> None:
    address = await failing(receive, way="drop")
    assert await exchange(address, POST) == b""
    assert await counted_and_failed(address) == (1, 1)


async def test_drop_fault_closes_connection_without_counting(receive: Receive) -> None:
    address = await failing(receive, way="drop", counted=False)
    assert await exchange(address, POST) == b""
    assert await counted_and_failed(address) == (0, 1)


async def test_reject_duplicates_fault_returns_conflict_for_known_key(receive: Receive) -> None:
    address = await failing(receive, way="reject-duplicates")
    statuses = [(await deliver(address, key)).status for key in ("k1", "k1", "k2", "k1")]
    assert statuses == [200, 409, 200, 409]
    assert await counted_and_failed(address) == (2, 2)
    assert [entry["timesSeen"] for entry in await keys(address)] == [3, 1]


async def test_redirect_fault_returns_location(receive: Receive) -> None:
    address = await failing(receive, way="redirect", status=308, location="http://127.0.0.1:1/there")
    received = await deliver(address, "k1")
    assert (received.status, received.headers["location"]) == (308, "http://127.0.0.1:1/there")
    assert await counted_and_failed(address) == (0, 1)


async def test_garbage_fault_returns_invalid_http(receive: Receive) -> None:
    address = await failing(receive, way="garbage")
    response = await exchange(address, POST)
    assert response
    assert b"HTTP" not in response
    assert await counted_and_failed(address) == (0, 1)


@pytest.mark.parametrize("way", ["delay", "slow-body"])
async def test_slow_faults_return_422_for_known_key_with_other_body(receive: Receive, way: str) -> None:
    address = await failing(receive, way=way, seconds=0)
    await deliver(address, "k1", b"one")
    assert (await deliver(address, "k1", b"two")).status == 422


# Setting faults while the receiver runs


async def test_faults_can_be_set_while_receiver_runs(address: str) -> None:
    faults = {"share": 1, "seed": 5, "times": 1, "ways": [{"way": "status", "status": 418}]}
    assert (await set_faults(address, faults)).status == 200
    assert [(await deliver(address, "k1")).status for _ in range(2)] == [418, 200]


async def test_get_faults_returns_current_faults(address: str) -> None:
    await set_faults(address, {"share": 0.5, "seed": 5, "ways": [{"way": "garbage", "weight": 3}]})
    assert (await send(address, "/_faults")).json == {
        "share": 0.5,
        "seed": 5,
        "times": None,
        "ways": [{"way": "garbage", "weight": 3.0, "counted": False}],
    }


async def test_plain_number_sets_share_and_enables_all_ways(address: str) -> None:
    await set_faults(address, 0.25)
    shown = (await send(address, "/_faults")).json
    assert (shown["share"], len(shown["ways"])) == (0.25, len(EVERY_WAY))


async def test_get_faults_result_can_be_put_back(address: str) -> None:
    await set_faults(address, 0.25)
    shown = (await send(address, "/_faults")).json
    assert (await set_faults(address, shown)).json == shown


async def test_share_zero_stops_faults(receive: Receive) -> None:
    address = await failing(receive, way="drop")
    await set_faults(address, 0)
    assert (await deliver(address, "k1")).status == 200


INVALID_FAULTS: list[object] = [
    None,
    -0.1,
    1.1,
    "1",
    {"share": 2},
    {"shares": 1},
    {"ways": []},
    {"ways": [{"way": "explode"}]},
    {"ways": [{"way": "status", "status": 100}]},
    {"ways": [{"way": "status", "status": 200}]},
    {"ways": [{"way": "delay", "counted": False}]},
    {"ways": [{"way": "garbage", "weight": 0}]},
    {"ways": [{"way": "redirect", "location": "/x\r\nset-cookie: a"}]},
    {"times": 0},
]


async def test_invalid_faults_are_refused(address: str) -> None:
    before = (await send(address, "/_faults")).json
    for faults in INVALID_FAULTS:
        received = await set_faults(address, faults)
        assert (received.status, received.reason.split(":")[0]) == (400, "faults"), faults
        assert (await send(address, "/_faults")).json == before, faults


def test_faults_that_are_not_json_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^faults: must be a share"):
        read_faults("often")


# Which delivery fails, and in which way


def chosen(faults: Faults, keys: int = 2000, times: int = 2) -> dict[tuple[str, int], Way | None]:
    """Returns the way in which each delivery fails, or None if it does not fail. There are `keys` delivery keys, and
    each is delivered `times` times.
    """
    chooser = Chooser(faults)
    return {(f"k{key}", time): chooser.choose(f"k{key}") for key in range(keys) for time in range(times)}


def test_same_seed_fails_same_deliveries_in_any_order() -> None:
    faults = Faults(share=0.5, seed=7)
    forwards, backwards = Chooser(faults), Chooser(faults)
    names = [f"k{number}" for number in range(200)]
    first = {name: [forwards.choose(name), forwards.choose(name)] for name in names}
    second = {name: [backwards.choose(name)] for name in reversed(names)}
    for name in names:
        second[name].append(backwards.choose(name))
    assert first == second


def test_different_seed_fails_different_deliveries() -> None:
    assert chosen(Faults(share=0.5, seed=1)) != chosen(Faults(share=0.5, seed=2))


@pytest.mark.parametrize("share", [0.0, 0.1, 1 / 3, 1.0])
def test_failed_share_matches_configured_share(share: float) -> None:
    failed = [way for way in chosen(Faults(share=share)).values() if way is not None]
    assert len(failed) / 4000 == pytest.approx(share, abs=0.03)


def test_ways_are_chosen_by_weight() -> None:
    ways = (Status(weight=1), Drop(weight=3), Garbage(weight=6))
    chosen_faults = Counter(type(way) for way in chosen(Faults(share=1, ways=ways)).values())
    assert [chosen_faults[kind] / 4000 for kind in (Status, Drop, Garbage)] == pytest.approx([0.1, 0.3, 0.6], abs=0.03)


def test_each_attempt_of_key_fails_independently() -> None:
    chosen_faults = chosen(Faults(share=0.5))
    assert {(chosen_faults[f"k{key}", 0] is None, chosen_faults[f"k{key}", 1] is None) for key in range(2000)} == {
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    }


def test_chooser_remembers_only_newest_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.receiver.faults.KEYS_REMEMBERED", 2)
    chooser = Chooser(Faults(share=1, times=1))
    chosen_faults = [chooser.choose(key) is not None for key in ("a", "a", "b", "c", "a", "c")]
    assert chosen_faults == [True, False, True, True, True, False]


async def test_failing_request_does_not_block_other_requests(receive: Receive) -> None:
    address = await failing(receive, way="endless-body")
    reader, writer = await connect(address)
    writer.write(POST)
    await reader.readuntil(b"\r\n\r\n")
    await set_faults(address, 0)
    async with asyncio.timeout(SECONDS):
        assert (await deliver(address, "k2")).status == 200
    writer.close()
