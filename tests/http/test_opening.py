"""`PUT /sessions`: every case of the table but capacities."""

import re
from datetime import datetime, timedelta
from uuid import uuid4

import httpx
import pytest

from tests.http.client import Client, Json, same_key, wish
from tests.http.local import LocalService
from tests.support.databases import Database

SESSION_KEYS = {
    "sessionId",
    "userObjectId",
    "tenantObjectId",
    "capacityId",
    "sessionKind",
    "sessionStartUtc",
    "sessionEndUtc",
    "isActive",
    "state",
    "leaseExpiresAt",
    "heartbeatInterval",
    "lastHeartbeat",
    "lastActivity",
    "closeReason",
    "previousSessionId",
    "createdUtc",
    "modifiedUtc",
    "stream",
}
OPEN_KEYS = SESSION_KEYS | {"status", "wasCreated", "wasUpgraded"}
FLAGS = ("status", "wasCreated", "wasUpgraded")
INSTANTS = [
    "sessionStartUtc",
    "sessionEndUtc",
    "leaseExpiresAt",
    "lastHeartbeat",
    "lastActivity",
    "createdUtc",
    "modifiedUtc",
]
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
TERM = timedelta(days=30)


def flags_of(answer: httpx.Response) -> tuple[int, str, bool, bool]:
    body = answer.json()
    return (answer.status_code, *(body[name] for name in FLAGS))


def moment(session: Json, name: str) -> datetime:
    return datetime.fromisoformat(session[name])


# Nothing there yet.


def test_creates_where_there_is_nothing(client: Client) -> None:
    assert flags_of(client.put(wish())) == (201, "created", True, False)


def test_says_where_a_created_session_can_be_read(client: Client) -> None:
    answer = client.put(wish())
    location = answer.headers["Location"]
    assert location == f"/sessions/{answer.json()['sessionId']}"
    assert client.http.get(location).json()["sessionId"] == answer.json()["sessionId"]


def test_answers_with_just_these_fields(client: Client) -> None:
    assert set(client.put(wish()).json()) == OPEN_KEYS


def test_shows_in_get_what_put_answered_but_for_the_flags(client: Client) -> None:
    opened = client.open(leaseSeconds=60, idleSeconds=90, sessionKind=2)
    read = client.get(opened["sessionId"]).json()
    assert read == {name: value for name, value in opened.items() if name not in FLAGS}


def test_repeats_the_ids_and_the_kind_it_was_sent(client: Client) -> None:
    body = wish(sessionKind=3)
    answer = client.put(body).json()
    assert {name: answer[name] for name in body} == body


def test_session_ids_are_uuid_version_7(client: Client) -> None:
    assert UUID7.fullmatch(client.open()["sessionId"])


@pytest.mark.parametrize("field", INSTANTS)
def test_times_are_utc_with_six_decimals(client: Client, field: str) -> None:
    assert INSTANT.fullmatch(client.open()[field])


async def test_times_have_six_decimals_on_the_full_second(local: LocalService) -> None:
    await local.move_to("2030-01-02T03:04:05Z")
    session = await local.open(leaseSeconds=60)
    assert {name: session[name] for name in INSTANTS} == {
        "sessionStartUtc": "2030-01-02T03:04:05.000000Z",
        "sessionEndUtc": "2030-02-01T03:04:05.000000Z",
        "leaseExpiresAt": "2030-01-02T03:05:05.000000Z",
        "lastHeartbeat": "2030-01-02T03:04:05.000000Z",
        "lastActivity": "2030-01-02T03:04:05.000000Z",
        "createdUtc": "2030-01-02T03:04:05.000000Z",
        "modifiedUtc": "2030-01-02T03:04:05.000000Z",
    }


def test_a_new_session_is_live_unused_and_stamped_by_its_start(client: Client) -> None:
    session = client.open()
    start = session["sessionStartUtc"]
    stamps = [session[name] for name in ("lastHeartbeat", "lastActivity", "createdUtc", "modifiedUtc")]
    assert (session["isActive"], session["state"], stamps) == (True, "created", [start] * 4)


def test_a_new_session_follows_none_and_has_no_reason_and_no_stream(client: Client) -> None:
    session = client.open()
    assert (session["previousSessionId"], session["closeReason"], session["stream"]) == (None, None, None)


def test_a_session_without_limits_ends_with_its_term(client: Client) -> None:
    session = client.open()
    ends = moment(session, "sessionStartUtc") + TERM
    assert (moment(session, "sessionEndUtc"), moment(session, "leaseExpiresAt")) == (ends, ends)


def test_a_session_without_a_lease_has_no_heartbeat_interval(client: Client) -> None:
    assert client.open(idleSeconds=60)["heartbeatInterval"] is None


@pytest.mark.parametrize(("lease", "interval"), [(5, 1), (11, 1), (12, 1), (23, 1), (24, 2), (60, 5), (86_400, 7200)])
def test_the_heartbeat_interval_is_a_twelfth_of_the_lease(client: Client, lease: int, interval: int) -> None:
    answer = client.open(leaseSeconds=lease)["heartbeatInterval"]
    assert (answer, type(answer)) == (interval, int)


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({"leaseSeconds": 60}, 60),
        ({"idleSeconds": 90}, 90),
        ({"leaseSeconds": 60, "idleSeconds": 90}, 60),
        ({"leaseSeconds": 90, "idleSeconds": 60}, 60),
        ({"leaseSeconds": 5, "idleSeconds": 5}, 5),
        ({"leaseSeconds": 86_400, "idleSeconds": 2_592_000}, 86_400),
        ({"leaseSeconds": None, "idleSeconds": None}, 2_592_000),
    ],
)
def test_the_deadline_is_the_earliest_of_term_lease_and_idle_limit(client: Client, limits: Json, seconds: int) -> None:
    session = client.open(**limits)
    assert moment(session, "leaseExpiresAt") - moment(session, "sessionStartUtc") == timedelta(seconds=seconds)


def test_the_end_of_a_leased_session_reads_as_its_term_while_it_is_live(client: Client) -> None:
    session = client.open(leaseSeconds=60)
    assert moment(session, "sessionEndUtc") - moment(session, "sessionStartUtc") == TERM


# A live one is there.


@pytest.mark.parametrize(("held", "asked"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (3, 3)])
def test_finds_the_live_session_of_the_same_or_a_higher_kind(client: Client, held: int, asked: int) -> None:
    first = client.put(wish(sessionKind=held))
    again = client.put(same_key(first.json(), sessionKind=asked))
    assert flags_of(again) == (200, "existing", False, False)
    assert _without_flags(again) == _without_flags(first)


def test_an_existing_session_has_no_location(client: Client) -> None:
    body = wish()
    client.put(body)
    assert "Location" not in client.put(body).headers


def test_ignores_lease_and_idle_limit_asked_for_an_existing_session(client: Client) -> None:
    first = client.put(wish(leaseSeconds=60))
    again = client.put(same_key(first.json(), leaseSeconds=600, idleSeconds=30))
    assert _without_flags(again) == _without_flags(first)


async def test_finding_a_session_writes_nothing(local: LocalService) -> None:
    first = await local.open(leaseSeconds=60)
    await local.move_to(first["sessionStartUtc"], seconds=30)
    again = (await local.put(same_key(first, leaseSeconds=60))).json()
    assert [again[name] for name in INSTANTS] == [first[name] for name in INSTANTS]


def test_the_same_user_has_one_session_per_capacity(client: Client) -> None:
    user = str(uuid4())
    assert client.open(userObjectId=user)["sessionId"] != client.open(userObjectId=user)["sessionId"]


def test_users_of_one_capacity_have_a_session_each(client: Client) -> None:
    capacity = str(uuid4())
    assert client.open(capacityId=capacity)["sessionId"] != client.open(capacityId=capacity)["sessionId"]


# A live one of a lower kind is there.


@pytest.mark.parametrize(("held", "asked"), [(1, 2), (1, 3), (2, 3)])
def test_upgrades_a_session_of_a_lower_kind(client: Client, held: int, asked: int) -> None:
    first = client.put(wish(sessionKind=held))
    second = client.put(same_key(first.json(), sessionKind=asked))
    assert flags_of(second) == (201, "upgraded", True, True)
    assert second.json()["sessionKind"] == asked


def test_an_upgrade_names_the_session_it_replaced(client: Client) -> None:
    first, second = _upgraded(client, {}, {})
    assert second["previousSessionId"] == first["sessionId"]


def test_an_upgrade_has_a_location(client: Client) -> None:
    first = client.put(wish())
    second = client.put(same_key(first.json(), sessionKind=2))
    assert second.headers["Location"] == f"/sessions/{second.json()['sessionId']}"


def test_an_upgrade_closes_the_old_session_where_the_new_one_begins(client: Client) -> None:
    first, second = _upgraded(client, {}, {})
    old = client.get(first["sessionId"]).json()
    assert (old["isActive"], old["state"], old["closeReason"]) == (False, "closed", "UPGRADED")
    assert old["sessionEndUtc"] == old["modifiedUtc"] == second["sessionStartUtc"]


def test_an_upgrade_begins_a_term_of_its_own(client: Client) -> None:
    _, second = _upgraded(client, {}, {})
    assert moment(second, "sessionEndUtc") - moment(second, "sessionStartUtc") == TERM


@pytest.mark.parametrize(
    ("held", "asked", "seconds", "interval"),
    [
        ({}, {}, 2_592_000, None),
        ({"leaseSeconds": 60}, {}, 60, 5),
        ({"idleSeconds": 60}, {}, 60, None),
        ({"leaseSeconds": 60, "idleSeconds": 90}, {}, 60, 5),
        ({"leaseSeconds": 90, "idleSeconds": 60}, {}, 60, 7),
        ({"leaseSeconds": 60}, {"leaseSeconds": 120}, 120, 10),
        ({"leaseSeconds": 120}, {"leaseSeconds": 60}, 60, 5),
        ({"idleSeconds": 60}, {"idleSeconds": 120}, 120, None),
        ({"leaseSeconds": 240}, {"idleSeconds": 60}, 60, 20),
        ({"idleSeconds": 60}, {"leaseSeconds": 240}, 60, 20),
        ({"leaseSeconds": 60, "idleSeconds": 90}, {"leaseSeconds": 120}, 90, 10),
        ({"leaseSeconds": 60}, {"leaseSeconds": None}, 60, 5),
    ],
)
def test_an_upgrade_inherits_the_limits_that_the_request_does_not_give(
    client: Client, held: Json, asked: Json, seconds: int, interval: int | None
) -> None:
    _, second = _upgraded(client, held, asked)
    lasts = moment(second, "leaseExpiresAt") - moment(second, "sessionStartUtc")
    assert (lasts, second["heartbeatInterval"]) == (timedelta(seconds=seconds), interval)


def test_a_chain_of_upgrades_can_be_followed_back(client: Client) -> None:
    first, second = _upgraded(client, {}, {})
    third = client.put(same_key(second, sessionKind=3)).json()
    assert (third["previousSessionId"], client.get(second["sessionId"]).json()["previousSessionId"]) == (
        second["sessionId"],
        first["sessionId"],
    )


# A live one of another tenant is there.


@pytest.mark.parametrize(("held", "asked"), [(1, 1), (1, 3), (3, 1)])
def test_refuses_a_key_that_another_tenant_holds(client: Client, held: int, asked: int) -> None:
    first = client.open(sessionKind=held)
    answer = client.put(same_key(first, tenantObjectId=str(uuid4()), sessionKind=asked))
    assert (answer.status_code, answer.json()["code"]) == (409, "TENANT_MISMATCH")


def test_a_mismatch_shows_nothing_of_the_other_session(client: Client) -> None:
    first = client.open(sessionKind=2, leaseSeconds=60)
    answer = client.put(same_key(first, tenantObjectId=str(uuid4())))
    secrets = [first[name] for name in ("sessionId", "tenantObjectId", *INSTANTS)]
    assert [secret for secret in secrets if secret in answer.text or secret in str(answer.headers)] == []
    assert set(answer.json()) == {"type", "title", "status", "detail", "error", "code"}


def test_a_mismatch_leaves_the_other_session_as_it_is(client: Client) -> None:
    first = client.open()
    client.put(same_key(first, tenantObjectId=str(uuid4()), sessionKind=3))
    assert client.get(first["sessionId"]).json() == {name: first[name] for name in SESSION_KEYS}


def test_another_tenant_can_open_once_the_session_is_over(client: Client) -> None:
    first = client.open()
    client.end(first["sessionId"])
    assert client.put(same_key(first, tenantObjectId=str(uuid4()))).status_code == 201


# One that has lapsed is there, and nobody has recorded it.


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"leaseSeconds": 60}, "LEASE_EXPIRED"),
        ({"idleSeconds": 60}, "IDLE_TIMEOUT"),
        ({"leaseSeconds": 60, "idleSeconds": 60}, "LEASE_EXPIRED"),
        ({}, "EXPIRED"),
    ],
)
async def test_creates_anew_after_a_lapse_and_records_it(
    local: LocalService, database: Database, limits: Json, reason: str
) -> None:
    first = await local.open(**limits)
    await local.move_to(first["leaseExpiresAt"])
    again = await local.put(same_key(first))
    assert flags_of(again) == (201, "created", True, False)
    recorded = await database.rows(
        f"SELECT state, close_reason FROM sessions WHERE session_id = '{first['sessionId']}'"
    )
    assert [(row["state"], row["close_reason"]) for row in recorded] == [("closed", reason)]
    assert (await local.get(first["sessionId"]))["sessionEndUtc"] == first["leaseExpiresAt"]


async def test_finds_a_session_one_microsecond_before_its_deadline(local: LocalService) -> None:
    first = await local.open(leaseSeconds=60)
    await local.move_to(first["leaseExpiresAt"], microseconds=-1)
    assert flags_of(await local.put(same_key(first))) == (200, "existing", False, False)


async def test_a_session_after_a_lapse_is_no_upgrade_and_inherits_nothing(local: LocalService) -> None:
    first = await local.open(leaseSeconds=5, idleSeconds=60)
    await local.move_to(first["leaseExpiresAt"], seconds=1)
    second = (await local.put(same_key(first, sessionKind=3))).json()
    assert (second["status"], second["previousSessionId"], second["heartbeatInterval"]) == ("created", None, None)
    assert moment(second, "leaseExpiresAt") - moment(second, "sessionStartUtc") == TERM


async def test_a_lapsed_session_of_another_tenant_stands_in_nobodys_way(local: LocalService) -> None:
    first = await local.open(leaseSeconds=5)
    await local.move_to(first["leaseExpiresAt"])
    assert (await local.put(same_key(first, tenantObjectId=str(uuid4())))).status_code == 201


async def test_sessions_of_a_key_do_not_overlap_after_a_lapse(local: LocalService) -> None:
    first = await local.open(leaseSeconds=5)
    await local.move_to(first["leaseExpiresAt"])
    second = (await local.put(same_key(first))).json()
    assert second["sessionStartUtc"] >= (await local.get(first["sessionId"]))["sessionEndUtc"]


# Ids.


def test_upper_case_ids_are_the_same_ids(client: Client) -> None:
    body = wish()
    shouted = {name: value.upper() if isinstance(value, str) else value for name, value in body.items()}
    first, again = client.put(shouted), client.put(body)
    assert (again.json()["status"], again.json()["sessionId"]) == ("existing", first.json()["sessionId"])
    assert {name: first.json()[name] for name in body} == body


@pytest.mark.parametrize("path", ["/sessions", "/v1/sessions"])
def test_opens_under_both_addresses(client: Client, path: str) -> None:
    assert client.http.put(path, json=wish()).status_code == 201


def test_both_addresses_open_the_same_session(client: Client) -> None:
    body = wish()
    first, again = client.http.put("/v1/sessions", json=body), client.http.put("/sessions", json=body)
    assert first.json()["sessionId"] == again.json()["sessionId"]


def _upgraded(client: Client, held: Json, asked: Json) -> tuple[Json, Json]:
    first = client.open(**held)
    answer = client.put(same_key(first, sessionKind=2, **asked))
    assert answer.status_code == 201, answer.text
    return first, answer.json()


def _without_flags(answer: httpx.Response) -> Json:
    return {name: value for name, value in answer.json().items() if name not in FLAGS}
