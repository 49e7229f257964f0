"""A receiver with a secret accepts only signed deliveries."""

from tests.receiver.conftest import Receive
from tests.receiver.sending import OTHER_SECRET, SECRET, deliver, deliver_signed, keys, send, set_faults, totals


async def test_receiver_accepts_signed_delivery(receive: Receive) -> None:
    address = await receive(SECRET)
    assert (await deliver_signed(address, "k1")).status == 200


async def test_receiver_refuses_unsigned_delivery(receive: Receive) -> None:
    address = await receive(SECRET)
    received = await deliver(address, "k1")
    assert (received.status, received.reason) == (401, "webhook-id is missing")
    counted = await totals(address)
    assert (counted["keys"], counted["requests"], counted["refused"]) == (0, 1, 1)


async def test_receiver_refuses_signature_of_other_secret(receive: Receive) -> None:
    address = await receive(SECRET)
    received = await deliver_signed(address, "k1", b"{}", OTHER_SECRET)
    assert (received.status, received.reason.split(" that ")[0]) == (401, "webhook-signature has no v1 signature")


async def test_receiver_refuses_timestamp_outside_tolerance(receive: Receive) -> None:
    address = await receive(SECRET)
    for age, words in ((400, "too old"), (-400, "too far in the future")):
        received = await deliver_signed(address, "k1", age=age)
        assert (received.status, words in received.reason) == (401, True), received.reason


async def test_receiver_refuses_idempotency_key_that_differs_from_signed_id(receive: Receive) -> None:
    """Otherwise a copied request could be counted again under other keys."""
    address = await receive(SECRET)
    received = await deliver_signed(address, "k1", idempotency_key="k2")
    assert (received.status, received.reason) == (401, "Idempotency-Key must equal the signed webhook-id")
    assert await keys(address) == []


async def test_receiver_accepts_current_and_previous_secret(receive: Receive) -> None:
    address = await receive(SECRET, OTHER_SECRET)
    for by in ([SECRET], [OTHER_SECRET], [SECRET, OTHER_SECRET], [OTHER_SECRET, SECRET]):
        assert (await deliver_signed(address, "k1", b"{}", *by)).status == 200, by


async def test_receiver_without_secret_ignores_signatures(receive: Receive) -> None:
    assert (await deliver(await receive(), "k1", webhook_signature="v1,nonsense")).status == 200


async def test_control_routes_need_no_signature(receive: Receive) -> None:
    address = await receive(SECRET)
    for path in ("/_totals", "/_keys", "/_faults"):
        assert (await send(address, path)).status == 200, path


async def test_refused_delivery_triggers_no_fault(receive: Receive) -> None:
    address = await receive(SECRET)
    await set_faults(address, {"share": 1, "ways": [{"way": "drop"}]})
    assert (await deliver(address, "k1")).status == 401
