"""The formats of usage, byte by byte: a released format never changes.

If an intended change makes one of these tests fail, add a new format with a new name, and leave these tests unchanged.
"""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.clock import instant_text
from tenure.domain.meter import PERIOD_MICROSECONDS, usage_between
from tenure.domain.usage import BillableInterval, Era, Window
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


def interval(number: int, **given: Any) -> BillableInterval:
    """A billable interval with ids made from the number. By default, the session was live throughout the window;
    `given` replaces fields.
    """
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
    return BillableInterval(**{**values, **given})


THROUGHOUT = interval(1)
INSIDE = interval(2, kind=1, from_at=noon(7), to_at=noon(30.5), total_microseconds=23_500_000)
ONE_MICROSECOND = interval(3, kind=2, to_at=noon(0.000001), before_microseconds=5, total_microseconds=6)

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


def test_tenure_format_is_byte_exact() -> None:
    assert render("tenure", WINDOW, [THROUGHOUT, INSIDE, ONE_MICROSECOND]).body == TENURE


def test_cloudevents_format_is_byte_exact() -> None:
    assert render("cloudevents", WINDOW, [THROUGHOUT, INSIDE]).body == CLOUD_EVENTS


def test_formats_have_expected_names_and_media_types() -> None:
    assert {name: each.media_type for name, each in FORMATS.items()} == {
        "tenure": "application/json",
        "cloudevents": "application/cloudevents-batch+json",
    }


@pytest.mark.parametrize("name", FORMATS)
def test_render_returns_session_count_and_usage_sum(name: str) -> None:
    rendered = render(name, WINDOW, [THROUGHOUT, INSIDE, ONE_MICROSECOND])
    assert (rendered.sessions, rendered.usage_millionths) == (3, 78)


@pytest.mark.parametrize("name", FORMATS)
def test_render_returns_empty_list_without_records(name: str) -> None:
    assert render(name, WINDOW, []) == (b"[]", 0, 0)


@pytest.mark.parametrize("name", FORMATS)
def test_render_keeps_record_order(name: str) -> None:
    body = render(name, WINDOW, [INSIDE, THROUGHOUT]).body
    assert body.index(INSIDE.session_id.encode()) < body.index(THROUGHOUT.session_id.encode())


def test_cloudevent_data_equals_tenure_record() -> None:
    intervals = [THROUGHOUT, INSIDE, ONE_MICROSECOND]
    events = msgspec.json.decode(render("cloudevents", WINDOW, intervals).body)
    assert [event["data"] for event in events] == msgspec.json.decode(render("tenure", WINDOW, intervals).body)


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


@pytest.mark.parametrize("times", AMOUNTS, ids=AMOUNTS.values())
def test_amount_has_no_exponent_and_no_trailing_zeros_after_decimal_point(times: tuple[int, int, int]) -> None:
    kind, before, total = times
    record = interval(1, kind=kind, before_microseconds=before, total_microseconds=total)
    assert f'"usage":{AMOUNTS[times]},"fromUtc"'.encode() in render("tenure", WINDOW, [record]).body


def test_amount_uses_factors_of_window() -> None:
    window = msgspec.structs.replace(WINDOW, era=Era(noon(), (250_000, 1_000_000_000_000, 999_999)))
    intervals = [interval(kind, kind=kind, total_microseconds=30 * DAY) for kind in (1, 2, 3)]
    records = msgspec.json.decode(render("tenure", window, intervals).body, type=list[dict[str, Any]])
    assert [record["usage"] for record in records] == [0.25, 1_000_000, 0.999999]


@given(st.integers(0, 10**16), st.integers(0, 10**16), st.sampled_from([1, 2, 3]))
def test_amount_equals_metered_usage(before: int, more: int, kind: int) -> None:
    rendered = render(
        "tenure", WINDOW, [interval(1, kind=kind, before_microseconds=before, total_microseconds=before + more)]
    )
    (record,) = msgspec.json.Decoder(float_hook=Decimal).decode(rendered.body)
    expected = usage_between(before, before + more, kind * 1_000_000)
    assert (record["usage"] * 1_000_000, rendered.usage_millionths) == (expected, expected)


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
def test_instant_text_always_has_six_decimals(instant: datetime, text: str) -> None:
    assert instant_text(instant) == text


def test_instant_text_accepts_other_utc_timezone_objects() -> None:
    """Some database drivers have their own timezone objects."""
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
def test_record_covers_billable_interval_of_session(given: dict[str, datetime], from_utc: str, to_utc: str) -> None:
    (record,) = msgspec.json.decode(render("tenure", WINDOW, [interval(1, **given)]).body)
    assert (record["fromUtc"], record["toUtc"]) == (f"2026-11-16T{from_utc}Z", f"2026-11-16T{to_utc}Z")
