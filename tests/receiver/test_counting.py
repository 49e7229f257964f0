"""The receiver counts each key once, and sums usage exactly."""

import asyncio
from hashlib import sha256

import msgspec

from tenure.clock import from_microseconds, wall_microseconds
from tests.receiver.sending import deliver, keys, send, totals

USAGE = b'[{"sessionId": "a", "usage": 0.100000}, {"sessionId": "b", "usage": 0.200000}]'


def usage_body(*numbers: str) -> bytes:
    return ("[" + ", ".join(f'{{"usage": {number}}}' for number in numbers) + "]").encode()


async def test_receiver_counts_new_key(address: str) -> None:
    received = await deliver(address, "k1", b"hello", "/orders?a=b")
    assert (received.status, received.reason) == (200, "counted")
    (entry,) = await keys(address)
    received_at = entry.pop("receivedAt")
    assert entry == {
        "position": 1,
        "key": "k1",
        "path": "/orders",
        "digest": sha256(b"hello").hexdigest(),
        "size": 5,
        "timesSeen": 1,
        "conflicts": 0,
        "records": None,
        "usage": None,
    }
    age = from_microseconds(wall_microseconds()) - msgspec.convert(received_at, type(from_microseconds(0)))
    assert 0 <= age.total_seconds() < 10


async def test_receiver_names_counted_body_in_receipt(address: str) -> None:
    receipt = f"sha256={sha256(b'hello').hexdigest()}"
    received = [await deliver(address, "k1", body) for body in (b"hello", b"hello", b"other")]
    assert [(each.status, each.headers.get("tenure-receipt")) for each in received] == [
        (200, receipt),
        (200, receipt),
        (422, None),
    ]


async def test_receiver_does_not_count_duplicate_key(address: str) -> None:
    await deliver(address, "k1", USAGE)
    duplicate = await deliver(address, "k1", USAGE)
    assert (duplicate.status, duplicate.reason) == (200, "already counted")
    assert await totals(address) == {
        "keys": 1,
        "requests": 2,
        "duplicates": 1,
        "conflicts": 0,
        "refused": 0,
        "failed": 0,
        "bytes": len(USAGE),
        "usage": "0.300000",
    }
    assert [entry["timesSeen"] for entry in await keys(address)] == [2]


async def test_different_body_under_same_key_is_recorded_as_conflict(address: str) -> None:
    await deliver(address, "k1", b"one")
    other = await deliver(address, "k1", b"two")
    assert (other.status, other.reason) == (422, "another body was already counted under this key")
    (entry,) = await keys(address)
    assert (entry["digest"], entry["timesSeen"], entry["conflicts"]) == (sha256(b"one").hexdigest(), 1, 1)


async def test_conflict_changes_neither_bytes_nor_usage(address: str) -> None:
    await deliver(address, "k1", USAGE)
    await deliver(address, "k1", usage_body("100"))
    counted = await totals(address)
    assert (counted["bytes"], counted["usage"], counted["conflicts"]) == (len(USAGE), "0.300000", 1)


async def test_concurrent_deliveries_of_one_key_are_counted_once(address: str) -> None:
    received = await asyncio.gather(*(deliver(address, "k1", USAGE) for _ in range(30)))
    assert sorted(each.reason for each in received) == ["already counted"] * 29 + ["counted"]
    assert (await totals(address))["usage"] == "0.300000"


async def test_receiver_counts_records_and_usage(address: str) -> None:
    await deliver(address, "k1", USAGE)
    (entry,) = await keys(address)
    assert (entry["records"], entry["usage"]) == (2, "0.300000")


async def test_receiver_sums_usage_exactly(address: str) -> None:
    await deliver(address, "k1", usage_body("123456789012345678901234567890.000001", "0.1", "0.2"))
    await deliver(address, "k2", usage_body("0.000000000000000000000000000001", "-1e3", "1E+2"))
    assert (await totals(address))["usage"] == "123456789012345678901234566990.300001000000000000000000000001"


def cloud_events(*numbers: str) -> bytes:
    events = (
        f'{{"specversion": "1.0", "id": "7-{at}", "data": {{"usage": {each}}}}}' for at, each in enumerate(numbers)
    )
    return f"[{', '.join(events)}]".encode()


async def test_receiver_counts_records_inside_cloud_events(address: str) -> None:
    await deliver(address, "k1", cloud_events("0.000001", "12.5", "3"))
    (entry,) = await keys(address)
    assert (entry["records"], entry["usage"], (await totals(address))["usage"]) == (3, "15.500001", "15.500001")


async def test_total_usage_includes_plain_records_and_cloud_events(address: str) -> None:
    await deliver(address, "k1", USAGE)
    await deliver(address, "k2", cloud_events("0.000007"))
    assert (await totals(address))["usage"] == "0.300007"


WITHOUT_USAGE = [
    b"",
    b"{}",
    b"[1]",
    b'[{"amount": 1}]',
    b'[{"usage": 1}, {"usage": "1"}]',
    b'[{"usage": null}]',
    b'[{"usage": 1e999999999}]',
    b'[{"usage": 1}',
    b"[" * 100_000,
    b'[{"usage": 1}]\xff',
    b'[{"data": {"amount": 1}}]',
    b'[{"data": {"usage": "1"}}]',
    b'[{"data": {"usage": 1e999}}]',
    b'[{"data": {"usage": 1}}, {"usage": 1}]',
]


async def test_body_without_valid_usage_is_counted_without_records_and_usage(address: str) -> None:
    for number, body in enumerate(WITHOUT_USAGE):
        assert (await deliver(address, f"k{number}", body)).status == 200, body[:20]
    entries = await keys(address)
    for body, entry in zip(WITHOUT_USAGE, entries, strict=True):
        assert (entry["records"], entry["usage"]) == (None, None), body[:20]
    assert (await totals(address))["usage"] == "0"


async def test_receiver_refuses_delivery_without_valid_key(address: str) -> None:
    for number, key in enumerate(["", "with space", "k" * 256, "k\u00fc"], 1):
        received = await deliver(address, key)
        assert (received.status, received.reason.split(":")[0]) == (400, "Idempotency-Key is required"), key
        counted = await totals(address)
        assert (counted["keys"], counted["requests"], counted["refused"]) == (0, number, number), key


async def test_receiver_refuses_methods_other_than_post(address: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        assert (await send(address, "/usages", b"", method, {"idempotency-key": "k1"})).status == 405, method
    assert (await totals(address))["keys"] == 0


async def test_keys_are_paged_in_order_of_arrival(address: str) -> None:
    for key in ("c", "a", "e", "b", "d"):
        await deliver(address, key)
    first = (await send(address, "/_keys?limit=2")).json
    second = (await send(address, f"/_keys?limit=2&after={first['next']}")).json
    last = (await send(address, f"/_keys?limit=2&after={second['next']}")).json
    assert [[entry["key"] for entry in page["keys"]] for page in (first, second, last)] == [
        ["c", "a"],
        ["e", "b"],
        ["d"],
    ]
    assert last["next"] is None


async def test_invalid_page_parameters_are_refused(address: str) -> None:
    for query in ("limit=0", "limit=1001", "limit=x", "after=-1", "after=" + "9" * 19, "limit="):
        received = await send(address, f"/_keys?{query}")
        assert (received.status, received.reason.split(" must be ")[0]) == (400, query.partition("=")[0]), query


async def test_unknown_control_route_returns_404_and_lists_control_routes(address: str) -> None:
    received = await deliver(address, "k1", path="/_total")
    assert received.status == 404
    assert "GET /_totals" in received.reason
    assert (await totals(address))["requests"] == 0
