"""What a receiver gets, spelled out byte by byte: a format that was released never changes.

Whoever makes one of these fail by a change on purpose needs a new format with a new name, and leaves these alone.
"""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.clock import instant_text
from tenure.meter import PERIOD_MICROSECONDS, usage_between
from tenure.model.usage import Era, Life, Window
from tenure.usage.formats import FORMATS, render

DAY = 86_400_000_000
SECOND = 1_000_000


def noon(seconds: float = 0) -> datetime:
    return datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC) + timedelta(seconds=seconds)


WINDOW = Window(
    window_id=4711,
    installation_id="01a1e319-8e37-70d8-90e0-8dd76b11e610",
    started_at=noon(),
    ended_at=noon(60),
    era=Era(noon(-86_400), (1_000_000, 2_000_000, 3_000_000)),
    contract=None,
)


def life(number: int, **given: Any) -> Life:
    """A session that lived from before the window until after it, each with ids of its own."""
    values: dict[str, Any] = {
        "session_id": f"01a1e319-9a00-7c3e-8000-00000000000{number}",
        "user_object_id": f"0190b0a0-0000-7000-8000-00000000001{number}",
        "tenant_object_id": f"0190b0a0-0000-7000-8000-00000000002{number}",
        "capacity_id": f"0190b0a0-0000-7000-8000-00000000003{number}",
        "kind": 3,
        "from_at": None,
        "to_at": None,
        "before_microseconds": 0,
        "total_microseconds": 60 * SECOND,
    }
    return Life(**{**values, **given})


THROUGHOUT = life(1)
INSIDE = life(2, kind=1, from_at=noon(7), to_at=noon(30.5), total_microseconds=23_500_000)
FOR_A_MOMENT = life(3, kind=2, to_at=noon(0.000001), before_microseconds=5, total_microseconds=6)

TENURE = (
    b'[{"sessionId":"01a1e319-9a00-7c3e-8000-000000000001","userObjectId":"0190b0a0-0000-7000-8000-000000000011",'
    b'"tenantObjectId":"0190b0a0-0000-7000-8000-000000000021","capacityId":"0190b0a0-0000-7000-8000-000000000031",'
    b'"sessionKind":3,"usage":0.000069,"fromUtc":"2026-11-16T12:00:00.000000Z","toUtc":"2026-11-16T12:01:00.000000Z"},'
    b'{"sessionId":"01a1e319-9a00-7c3e-8000-000000000002","userObjectId":"0190b0a0-0000-7000-8000-000000000012",'
    b'"tenantObjectId":"0190b0a0-0000-7000-8000-000000000022","capacityId":"0190b0a0-0000-7000-8000-000000000032",'
    b'"sessionKind":1,"usage":0.000009,"fromUtc":"2026-11-16T12:00:07.000000Z","toUtc":"2026-11-16T12:00:30.500000Z"},'
    b'{"sessionId":"01a1e319-9a00-7c3e-8000-000000000003","userObjectId":"0190b0a0-0000-7000-8000-000000000013",'
    b'"tenantObjectId":"0190b0a0-0000-7000-8000-000000000023","capacityId":"0190b0a0-0000-7000-8000-000000000033",'
    b'"sessionKind":2,"usage":0,"fromUtc":"2026-11-16T12:00:00.000000Z","toUtc":"2026-11-16T12:00:00.000001Z"}]'
)
CLOUD_EVENTS = (
    b'[{"specversion":"1.0","type":"tenure.usage","source":"urn:tenure:01a1e319-8e37-70d8-90e0-8dd76b11e610",'
    b'"id":"4711-01a1e319-9a00-7c3e-8000-000000000001","subject":"0190b0a0-0000-7000-8000-000000000021",'
    b'"time":"2026-11-16T12:01:00.000000Z","datacontenttype":"application/json","data":'
    b'{"sessionId":"01a1e319-9a00-7c3e-8000-000000000001","userObjectId":"0190b0a0-0000-7000-8000-000000000011",'
    b'"tenantObjectId":"0190b0a0-0000-7000-8000-000000000021","capacityId":"0190b0a0-0000-7000-8000-000000000031",'
    b'"sessionKind":3,"usage":0.000069,"fromUtc":"2026-11-16T12:00:00.000000Z","toUtc":"2026-11-16T12:01:00.000000Z"}},'
    b'{"specversion":"1.0","type":"tenure.usage","source":"urn:tenure:01a1e319-8e37-70d8-90e0-8dd76b11e610",'
    b'"id":"4711-01a1e319-9a00-7c3e-8000-000000000002","subject":"0190b0a0-0000-7000-8000-000000000022",'
    b'"time":"2026-11-16T12:00:30.500000Z","datacontenttype":"application/json","data":'
    b'{"sessionId":"01a1e319-9a00-7c3e-8000-000000000002","userObjectId":"0190b0a0-0000-7000-8000-000000000012",'
    b'"tenantObjectId":"0190b0a0-0000-7000-8000-000000000022","capacityId":"0190b0a0-0000-7000-8000-000000000032",'
    b'"sessionKind":1,"usage":0.000009,"fromUtc":"2026-11-16T12:00:07.000000Z","toUtc":"2026-11-16T12:00:30.500000Z"}}]'
)


def test_the_format_tenure_to_the_byte() -> None:
    assert render("tenure", WINDOW, [THROUGHOUT, INSIDE, FOR_A_MOMENT]).body == TENURE


def test_the_format_cloudevents_to_the_byte() -> None:
    assert render("cloudevents", WINDOW, [THROUGHOUT, INSIDE]).body == CLOUD_EVENTS


def test_these_are_the_formats_there_are() -> None:
    assert {name: each.media_type for name, each in FORMATS.items()} == {
        "tenure": "application/json",
        "cloudevents": "application/cloudevents-batch+json",
    }


@pytest.mark.parametrize("name", FORMATS)
def test_tells_what_a_body_adds_up_to(name: str) -> None:
    rendered = render(name, WINDOW, [THROUGHOUT, INSIDE, FOR_A_MOMENT])
    assert (rendered.sessions, rendered.usage_millionths) == (3, 78)


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_an_empty_list(name: str) -> None:
    assert render(name, WINDOW, []) == (b"[]", 0, 0)


@pytest.mark.parametrize("name", FORMATS)
def test_keeps_the_order_of_what_it_is_given(name: str) -> None:
    body = render(name, WINDOW, [INSIDE, THROUGHOUT]).body
    assert body.index(INSIDE.session_id.encode()) < body.index(THROUGHOUT.session_id.encode())


def test_an_event_is_about_its_whole_record() -> None:
    lives = [THROUGHOUT, INSIDE, FOR_A_MOMENT]
    events = msgspec.json.decode(render("cloudevents", WINDOW, lives).body)
    assert [event["data"] for event in events] == msgspec.json.decode(render("tenure", WINDOW, lives).body)


# Amounts.

AMOUNTS = {
    (1, 0, PERIOD_MICROSECONDS // 1_000_000): "0.000001",
    (1, 0, PERIOD_MICROSECONDS // 100_000): "0.00001",
    (1, 0, 15 * DAY): "0.5",
    (2, 0, 3 * DAY): "0.2",
    (3, 0, 10 * DAY): "1",
    (3, 0, 100 * DAY): "10",
    (3, 0, 100_000_000 * DAY): "10000000",
    (3, 10 * DAY, 10 * DAY + 60 * SECOND): "0.000069",
    (2, 5, 6): "0",
}


@pytest.mark.parametrize("lived", AMOUNTS, ids=AMOUNTS.values())
def test_an_amount_has_no_exponent_and_no_zeros_at_its_end(lived: tuple[int, int, int]) -> None:
    kind, before, total = lived
    record = life(1, kind=kind, before_microseconds=before, total_microseconds=total)
    assert f'"usage":{AMOUNTS[lived]},"fromUtc"'.encode() in render("tenure", WINDOW, [record]).body


def test_an_amount_goes_by_the_factors_of_the_window() -> None:
    window = msgspec.structs.replace(WINDOW, era=Era(noon(), (250_000, 1_000_000_000_000, 999_999)))
    lives = [life(kind, kind=kind, total_microseconds=30 * DAY) for kind in (1, 2, 3)]
    told = msgspec.json.decode(render("tenure", window, lives).body, type=list[dict[str, Any]])
    assert [record["usage"] for record in told] == [0.25, 1_000_000, 0.999999]


@given(st.integers(0, 10**16), st.integers(0, 10**16), st.sampled_from([1, 2, 3]))
def test_an_amount_is_what_the_meter_says(before: int, more: int, kind: int) -> None:
    record = life(1, kind=kind, before_microseconds=before, total_microseconds=before + more)
    rendered = render("tenure", WINDOW, [record])
    (told,) = msgspec.json.Decoder(float_hook=Decimal).decode(rendered.body)
    expected = usage_between(before, before + more, kind * 1_000_000)
    assert (told["usage"] * 1_000_000, rendered.usage_millionths) == (expected, expected)


# Instants.


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (noon(), "2026-11-16T12:00:00.000000Z"),
        (noon(0.1), "2026-11-16T12:00:00.100000Z"),
        (noon(0.000001), "2026-11-16T12:00:00.000001Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00.000000Z"),
        (datetime.max.replace(tzinfo=UTC), "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_an_instant_always_has_six_decimals(instant: datetime, text: str) -> None:
    assert instant_text(instant) == text


def test_an_instant_of_another_kind_of_utc_is_the_same() -> None:
    """Drivers bring their own."""
    assert instant_text(noon().replace(tzinfo=timezone(timedelta(0), "Z"))) == "2026-11-16T12:00:00.000000Z"


@pytest.mark.parametrize(
    ("given", "from_utc", "to_utc"),
    [
        ({}, "12:00:00.000000", "12:01:00.000000"),
        ({"from_at": noon(0.25)}, "12:00:00.250000", "12:01:00.000000"),
        ({"to_at": noon(59)}, "12:00:00.000000", "12:00:59.000000"),
        ({"from_at": noon(1), "to_at": noon(2)}, "12:00:01.000000", "12:00:02.000000"),
    ],
)
def test_a_record_is_of_the_session_s_own_part(given: dict[str, datetime], from_utc: str, to_utc: str) -> None:
    (told,) = msgspec.json.decode(render("tenure", WINDOW, [life(1, **given)]).body)
    assert (told["fromUtc"], told["toUtc"]) == (f"2026-11-16T{from_utc}Z", f"2026-11-16T{to_utc}Z")
