"""Who may deliver."""

import pytest

from tests.receiver.conftest import Receive
from tests.receiver.sending import OTHER_SECRET, SECRET, ask, deliver, deliver_signed, keys, totals


async def test_takes_what_is_signed(receive: Receive) -> None:
    address = await receive(SECRET)
    assert (await deliver_signed(address, "k1")).status == 200


async def test_refuses_what_is_not_signed(receive: Receive) -> None:
    address = await receive(SECRET)
    received = await deliver(address, "k1")
    assert (received.status, received.reason) == (401, "webhook-id is missing")
    counted = await totals(address)
    assert (counted["keys"], counted["requests"], counted["refused"]) == (0, 1, 1)


async def test_refuses_a_signature_by_another_secret(receive: Receive) -> None:
    address = await receive(SECRET)
    received = await deliver_signed(address, "k1", b"{}", OTHER_SECRET)
    assert (received.status, received.reason.split(" of ")[0]) == (401, "webhook-signature has no v1 signature")


@pytest.mark.parametrize(("age", "words"), [(400, "too old"), (-400, "too far in the future")])
async def test_refuses_a_request_of_another_time(receive: Receive, age: int, words: str) -> None:
    received = await deliver_signed(await receive(SECRET), "k1", age=age)
    assert received.status == 401
    assert words in received.reason


async def test_refuses_a_signed_request_under_another_key(receive: Receive) -> None:
    """Otherwise whoever has seen one could have it counted as often as they like."""
    address = await receive(SECRET)
    received = await deliver_signed(address, "k1", idempotency_key="k2")
    assert (received.status, received.reason) == (401, "Idempotency-Key must be the signed webhook-id")
    assert await keys(address) == []


@pytest.mark.parametrize("by", [[SECRET], [OTHER_SECRET], [SECRET, OTHER_SECRET], [OTHER_SECRET, SECRET]])
async def test_takes_either_secret_while_one_replaces_the_other(receive: Receive, by: list[str]) -> None:
    address = await receive(SECRET, OTHER_SECRET)
    assert (await deliver_signed(address, "k1", b"{}", *by)).status == 200


async def test_without_a_secret_it_checks_nothing(receive: Receive) -> None:
    assert (await deliver(await receive(), "k1", webhook_signature="v1,nonsense")).status == 200


@pytest.mark.parametrize("path", ["/_totals", "/_keys", "/_faults"])
async def test_control_routes_need_no_signature(receive: Receive, path: str) -> None:
    assert (await ask(await receive(SECRET), path)).status == 200


async def test_a_refused_delivery_meets_no_fault(receive: Receive) -> None:
    address = await receive(SECRET)
    await ask(address, "/_faults", b'{"share": 1, "ways": [{"way": "drop"}]}', "PUT")
    assert (await deliver(address, "k1")).status == 401
