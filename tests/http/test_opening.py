"""`PUT /sessions` on capacities without a limit."""

import re
from datetime import datetime, timedelta
from uuid import uuid4

import httpx

from tests.http.client import Client, Json, open_body, same_key
from tests.http.local import LAPSES, LocalService

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


def flags_of(response: httpx.Response) -> tuple[int, str, bool, bool]:
    body = response.json()
    return (response.status_code, *(body[name] for name in FLAGS))


def moment(session: Json, name: str) -> datetime:
    return datetime.fromisoformat(session[name])


# The key has no session.


def test_open_creates_session(client: Client) -> None:
    assert flags_of(client.put(open_body())) == (201, "created", True, False)


def test_open_returns_location_of_created_session(client: Client) -> None:
    response = client.put(open_body())
    location = response.headers["Location"]
    assert location == f"/sessions/{response.json()['sessionId']}"
    assert client.http.get(location).json()["sessionId"] == response.json()["sessionId"]


def test_open_returns_exactly_the_expected_fields(client: Client) -> None:
    assert set(client.put(open_body()).json()) == OPEN_KEYS


def test_get_returns_same_session_as_open_without_flags(client: Client) -> None:
    opened = client.open(leaseSeconds=60, idleSeconds=90, sessionKind=2)
    read = client.get(opened["sessionId"]).json()
    assert read == {name: value for name, value in opened.items() if name not in FLAGS}


def test_open_returns_requested_ids_and_kind(client: Client) -> None:
    body = open_body(sessionKind=3)
    response = client.put(body).json()
    assert {name: response[name] for name in body} == body


def test_session_id_is_uuid_version_7(client: Client) -> None:
    assert UUID7.fullmatch(client.open()["sessionId"])


def test_timestamps_are_utc_with_six_decimals(client: Client) -> None:
    session = client.open()
    assert [name for name in INSTANTS if not INSTANT.fullmatch(session[name])] == []


async def test_timestamps_on_full_second_have_six_decimals(local: LocalService) -> None:
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


def test_new_session_is_created_with_timestamps_equal_to_start(client: Client) -> None:
    session = client.open()
    start = session["sessionStartUtc"]
    stamps = [session[name] for name in ("lastHeartbeat", "lastActivity", "createdUtc", "modifiedUtc")]
    assert (session["isActive"], session["state"], stamps) == (True, "created", [start] * 4)


def test_new_session_has_no_previous_session_close_reason_or_stream(client: Client) -> None:
    session = client.open()
    assert (session["previousSessionId"], session["closeReason"], session["stream"]) == (None, None, None)


def test_session_without_limits_expires_at_end_of_term(client: Client) -> None:
    session = client.open()
    ends = moment(session, "sessionStartUtc") + TERM
    assert (moment(session, "sessionEndUtc"), moment(session, "leaseExpiresAt")) == (ends, ends)


def test_heartbeat_interval_is_null_without_lease(client: Client) -> None:
    assert client.open(idleSeconds=60)["heartbeatInterval"] is None


def test_heartbeat_interval_is_a_twelfth_of_lease_in_whole_seconds_and_at_least_one(client: Client) -> None:
    for lease, interval in ((5, 1), (11, 1), (12, 1), (23, 1), (24, 2), (60, 5), (86_400, 7200)):
        response = client.open(leaseSeconds=lease)["heartbeatInterval"]
        assert (response, type(response)) == (interval, int), lease


def test_deadline_is_earliest_of_term_lease_and_idle_limit(client: Client) -> None:
    for limits, seconds in (
        ({"leaseSeconds": 60}, 60),
        ({"idleSeconds": 90}, 90),
        ({"leaseSeconds": 60, "idleSeconds": 90}, 60),
        ({"leaseSeconds": 90, "idleSeconds": 60}, 60),
        ({"leaseSeconds": 5, "idleSeconds": 5}, 5),
        ({"leaseSeconds": 86_400, "idleSeconds": 2_592_000}, 86_400),
        ({"leaseSeconds": None, "idleSeconds": None}, 2_592_000),
    ):
        session = client.open(**limits)
        duration = moment(session, "leaseExpiresAt") - moment(session, "sessionStartUtc")
        assert duration == timedelta(seconds=seconds), limits


def test_session_end_of_live_leased_session_is_end_of_term(client: Client) -> None:
    session = client.open(leaseSeconds=60)
    assert moment(session, "sessionEndUtc") - moment(session, "sessionStartUtc") == TERM


# The key has a live session of the same or a higher kind.


def test_open_returns_existing_session_of_same_or_higher_kind(client: Client) -> None:
    for existing, requested in ((1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (3, 3)):
        first = client.put(open_body(sessionKind=existing))
        again = client.put(same_key(first.json(), sessionKind=requested))
        assert flags_of(again) == (200, "existing", False, False), (existing, requested)
        assert _without_flags(again) == _without_flags(first), (existing, requested)


def test_open_of_existing_session_returns_no_location(client: Client) -> None:
    body = open_body()
    client.put(body)
    assert "Location" not in client.put(body).headers


def test_open_ignores_limits_for_existing_session(client: Client) -> None:
    first = client.put(open_body(leaseSeconds=60))
    again = client.put(same_key(first.json(), leaseSeconds=600, idleSeconds=30))
    assert _without_flags(again) == _without_flags(first)


async def test_open_of_existing_session_changes_no_timestamps(local: LocalService) -> None:
    first = await local.open(leaseSeconds=60)
    await local.move_to(first["sessionStartUtc"], seconds=30)
    again = (await local.put(same_key(first, leaseSeconds=60))).json()
    assert [again[name] for name in INSTANTS] == [first[name] for name in INSTANTS]


def test_user_has_separate_session_per_capacity(client: Client) -> None:
    user = str(uuid4())
    assert client.open(userObjectId=user)["sessionId"] != client.open(userObjectId=user)["sessionId"]


def test_capacity_has_separate_session_per_user(client: Client) -> None:
    capacity = str(uuid4())
    assert client.open(capacityId=capacity)["sessionId"] != client.open(capacityId=capacity)["sessionId"]


# The key has a live session of a lower kind.


def test_open_upgrades_session_of_lower_kind(client: Client) -> None:
    for existing, requested in ((1, 2), (1, 3), (2, 3)):
        first = client.put(open_body(sessionKind=existing))
        second = client.put(same_key(first.json(), sessionKind=requested))
        assert flags_of(second) == (201, "upgraded", True, True), (existing, requested)
        assert second.json()["sessionKind"] == requested


def test_upgrade_returns_previous_session_id(client: Client) -> None:
    first, second = _upgraded(client, {}, {})
    assert second["previousSessionId"] == first["sessionId"]


def test_upgrade_returns_location(client: Client) -> None:
    first = client.put(open_body())
    second = client.put(same_key(first.json(), sessionKind=2))
    assert second.headers["Location"] == f"/sessions/{second.json()['sessionId']}"


def test_upgrade_closes_old_session_at_start_of_new_session(client: Client) -> None:
    first, second = _upgraded(client, {}, {})
    old = client.get(first["sessionId"]).json()
    assert (old["isActive"], old["state"], old["closeReason"]) == (False, "closed", "UPGRADED")
    assert old["sessionEndUtc"] == old["modifiedUtc"] == second["sessionStartUtc"]


def test_upgrade_starts_new_term(client: Client) -> None:
    _, second = _upgraded(client, {}, {})
    assert moment(second, "sessionEndUtc") - moment(second, "sessionStartUtc") == TERM


def test_upgrade_inherits_limits_omitted_from_request(client: Client) -> None:
    for existing, requested, seconds, interval in (
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
    ):
        _, second = _upgraded(client, existing, requested)
        duration = moment(second, "leaseExpiresAt") - moment(second, "sessionStartUtc")
        expected = (timedelta(seconds=seconds), interval)
        assert (duration, second["heartbeatInterval"]) == expected, (existing, requested)


def test_upgrade_chain_is_linked_by_previous_session_id(client: Client) -> None:
    first, second = _upgraded(client, {}, {})
    third = client.put(same_key(second, sessionKind=3)).json()
    assert (third["previousSessionId"], client.get(second["sessionId"]).json()["previousSessionId"]) == (
        second["sessionId"],
        first["sessionId"],
    )


# The key has a live session of another tenant.


def test_open_with_key_of_another_tenant_returns_409(client: Client) -> None:
    for existing, requested in ((1, 1), (1, 3), (3, 1)):
        first = client.open(sessionKind=existing)
        response = client.put(same_key(first, tenantObjectId=str(uuid4()), sessionKind=requested))
        assert (response.status_code, response.json()["code"]) == (409, "TENANT_MISMATCH"), (existing, requested)


def test_tenant_mismatch_discloses_nothing_of_other_session(client: Client) -> None:
    first = client.open(sessionKind=2, leaseSeconds=60)
    response = client.put(same_key(first, tenantObjectId=str(uuid4())))
    secrets = [first[name] for name in ("sessionId", "tenantObjectId", *INSTANTS)]
    assert [secret for secret in secrets if secret in response.text or secret in str(response.headers)] == []
    assert set(response.json()) == {"type", "title", "status", "detail", "error", "code", "requestId"}


def test_tenant_mismatch_does_not_change_other_session(client: Client) -> None:
    first = client.open()
    client.put(same_key(first, tenantObjectId=str(uuid4()), sessionKind=3))
    assert client.get(first["sessionId"]).json() == {name: first[name] for name in SESSION_KEYS}


def test_another_tenant_can_open_after_session_ends(client: Client) -> None:
    first = client.open()
    client.end(first["sessionId"])
    assert client.put(same_key(first, tenantObjectId=str(uuid4()))).status_code == 201


# The key has a session that has lapsed and is not recorded as expired.


async def test_open_after_lapse_creates_session_and_records_lapsed_one(local: LocalService) -> None:
    for limits, reason in [*LAPSES, ({"leaseSeconds": 60, "idleSeconds": 60}, "LEASE_EXPIRED")]:
        first = await local.open(**limits)
        await local.move_to(first["leaseExpiresAt"])
        again = await local.put(same_key(first))
        assert flags_of(again) == (201, "created", True, False), limits
        assert again.json()["sessionStartUtc"] >= first["leaseExpiresAt"], limits
        recorded = await local.database.rows(
            f"SELECT state, close_reason FROM sessions WHERE session_id = '{first['sessionId']}'"
        )
        assert [(row["state"], row["close_reason"]) for row in recorded] == [("closed", reason)], limits
        assert (await local.get(first["sessionId"]))["sessionEndUtc"] == first["leaseExpiresAt"], limits


async def test_open_returns_existing_session_one_microsecond_before_deadline(local: LocalService) -> None:
    first = await local.open(leaseSeconds=60)
    await local.move_to(first["leaseExpiresAt"], microseconds=-1)
    assert flags_of(await local.put(same_key(first))) == (200, "existing", False, False)


async def test_session_opened_after_lapse_is_not_upgrade_and_inherits_no_limits(local: LocalService) -> None:
    first = await local.open(leaseSeconds=5, idleSeconds=60)
    await local.move_to(first["leaseExpiresAt"], seconds=1)
    second = (await local.put(same_key(first, sessionKind=3))).json()
    assert (second["status"], second["previousSessionId"], second["heartbeatInterval"]) == ("created", None, None)
    assert moment(second, "leaseExpiresAt") - moment(second, "sessionStartUtc") == TERM


async def test_lapsed_session_of_another_tenant_does_not_block_open(local: LocalService) -> None:
    first = await local.open(leaseSeconds=5)
    await local.move_to(first["leaseExpiresAt"])
    assert (await local.put(same_key(first, tenantObjectId=str(uuid4())))).status_code == 201


# Ids.


def test_ids_are_case_insensitive(client: Client) -> None:
    body = open_body()
    in_upper_case = {name: value.upper() if isinstance(value, str) else value for name, value in body.items()}
    first, again = client.put(in_upper_case), client.put(body)
    assert (again.json()["status"], again.json()["sessionId"]) == ("existing", first.json()["sessionId"])
    assert {name: first.json()[name] for name in body} == body


def test_versioned_and_unversioned_paths_open_same_session(client: Client) -> None:
    body = open_body()
    first, again = client.http.put("/v1/sessions", json=body), client.http.put("/sessions", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["sessionId"] == again.json()["sessionId"]


def _upgraded(client: Client, existing: Json, requested: Json) -> tuple[Json, Json]:
    first = client.open(**existing)
    response = client.put(same_key(first, sessionKind=2, **requested))
    assert response.status_code == 201, response.text
    return first, response.json()


def _without_flags(response: httpx.Response) -> Json:
    return {name: value for name, value in response.json().items() if name not in FLAGS}
