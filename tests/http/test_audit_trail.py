"""Every change leaves one audit entry, in the transaction of the change. Ordinary traffic, such as opens, heartbeats
and submissions, leaves none.

TRAIL has an expectation for every route that is not a GET, including WebSocket routes, except the routes of API keys.
The tests fail if a new route has no expectation. Each change is requested twice, as if the client had lost the first
response. The second request changes nothing and writes no entry.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from tenure.domain.audit_log import Action, AuditEntry
from tenure.sessions.end import END_BATCH
from tenure.store.limits import BATCH_MAX
from tests.http.client import Json
from tests.http.local import LocalService
from tests.support.audit_log import entries
from tests.support.leases import hold_lease
from tests.support.open_requests import some_id
from tests.support.submissions import accept, create_in_state
from tests.support.usage import cut_one, minute, save

Request = tuple[str, str, Json | None]


class Change(NamedTuple):
    """A change. `prepare` returns the request that makes the change, and the target of the audit entry. `changes` is
    the expected number of changes in the entry.
    """

    action: Action
    prepare: Callable[[LocalService], Awaitable[tuple[Request, str]]]
    changes: int = 1


async def end(service: LocalService) -> tuple[Request, str]:
    session_id = (await service.open())["sessionId"]
    return ("DELETE", f"/sessions/{session_id}", None), session_id


async def end_many(service: LocalService) -> tuple[Request, str]:
    """Returns a request that needs more than one transaction, because it ends more than END_BATCH sessions."""
    tenant = some_id()
    for _ in range(END_BATCH + 2):
        await service.open(tenantObjectId=tenant)
    return ("POST", "/sessions/end", {"tenant": tenant}), "sessions"


async def put_capacity(_service: LocalService) -> tuple[Request, str]:
    capacity = some_id()
    return ("PUT", f"/capacities/{capacity}", {"maxSessions": 5}), capacity


async def delete_capacity(service: LocalService) -> tuple[Request, str]:
    capacity = some_id()
    await service.http.put(f"/capacities/{capacity}", json={"maxSessions": 5})
    return ("DELETE", f"/capacities/{capacity}", None), capacity


def job(command: str) -> Callable[[LocalService], Awaitable[tuple[Request, str]]]:
    async def prepare(service: LocalService) -> tuple[Request, str]:
        # The test holds the lock of the job, so the requested run does not begin.
        await hold_lease(service.database.store, "job:prune")
        await service.http.post(f"/jobs/prune/{'pause' if command == 'resume' else 'resume'}")
        return ("POST", f"/jobs/prune/{command}", None), "prune"

    return prepare


async def resign(service: LocalService) -> tuple[Request, str]:
    name = f"lease {some_id()}"
    await hold_lease(service.database.store, name)
    return ("POST", f"/leases/{name}/resign", None), name


async def retry(service: LocalService) -> tuple[Request, str]:
    submission_id = await create_in_state(service.database.store, "failed")
    return ("POST", f"/submissions/{submission_id}/retry", None), submission_id


async def cancel(service: LocalService) -> tuple[Request, str]:
    (submission_id,) = await accept(service.database.store)
    return ("POST", f"/submissions/{submission_id}/cancel", None), submission_id


async def retry_many(service: LocalService) -> tuple[Request, str]:
    for _ in range(3):
        await create_in_state(service.database.store, "failed", gateway="retried")
    return ("POST", "/submissions/retry", {"gateway": "retried"}), "submissions"


async def cancel_many(service: LocalService) -> tuple[Request, str]:
    """Returns a request that needs more than one transaction, because it cancels more than BATCH_MAX submissions."""
    for count in (BATCH_MAX, 2):
        await accept(service.database.store, count, gateway="cancelled")
    return ("POST", "/submissions/cancel", {"gateway": "cancelled"}), "submissions"


async def send(service: LocalService) -> tuple[Request, str]:
    for number in (1, 2):
        await save(service.database, await cut_one(service.database, minute(number), contract=None), [])
    return ("POST", "/usage/windows/send", {"from": "2041-03-01T00:00:00Z"}), "windows"


TRAIL: dict[str, Change | None] = {
    # Ordinary traffic: the rows of sessions and submissions are its record.
    "PUT /sessions": None,
    "POST /sessions/{sessionId}/heartbeat": None,
    "POST /sessions/heartbeats": None,
    "WS /sessions/stream": None,
    "WS /sessions/{sessionId}/stream": None,
    "POST /transcribe": None,
    "WS /transcribe/stream": None,
    "POST /submissions": None,
    # Nothing is stored: the browser keeps the credential.
    "POST /sign-in": None,
    "POST /sign-out": None,
    "DELETE /sessions/{sessionId}": Change(Action.SESSION_ENDED, end),
    "POST /sessions/end": Change(Action.SESSION_ENDED, end_many, END_BATCH + 2),
    "PUT /capacities/{capacityId}": Change(Action.CAPACITY_CHANGED, put_capacity),
    "DELETE /capacities/{capacityId}": Change(Action.CAPACITY_DELETED, delete_capacity),
    "POST /jobs/{name}/run": Change(Action.JOB_RUN_REQUESTED, job("run")),
    "POST /jobs/{name}/pause": Change(Action.JOB_PAUSED, job("pause")),
    "POST /jobs/{name}/resume": Change(Action.JOB_RESUMED, job("resume")),
    "POST /leases/{name}/resign": Change(Action.LEASE_RESIGNED, resign),
    "POST /submissions/{submissionId}/retry": Change(Action.SUBMISSION_RETRIED, retry),
    "POST /submissions/{submissionId}/cancel": Change(Action.SUBMISSION_CANCELLED, cancel),
    "POST /submissions/retry": Change(Action.SUBMISSION_RETRIED, retry_many, 3),
    "POST /submissions/cancel": Change(Action.SUBMISSION_CANCELLED, cancel_many, BATCH_MAX + 2),
    "POST /usage/windows/send": Change(Action.USAGE_WINDOWS_SENT, send, 2),
}
KEYS = {"POST /keys", "DELETE /keys/{publicId}"}
"""Tested separately: after the first API key is created, requests without a credential are refused."""


async def requested(service: LocalService, request: Request) -> tuple[int, Sequence[AuditEntry]]:
    """Sends the request. Returns the status of the response, and the audit entries that the request has written."""
    before = {entry.entry_id for entry in await entries(service.database.store)}
    method, path, body = request
    response = await service.http.request(method, path, json=body)
    return response.status_code, [e for e in await entries(service.database.store) if e.entry_id not in before]


def test_every_change_has_an_expectation(any_local: LocalService) -> None:
    changing = {f"{each.method} {each.path}" for each in any_local.instance.pipeline.table if each.method != "GET"}
    assert changing == TRAIL.keys() | KEYS
    covered = {change.action for change in TRAIL.values() if change is not None}
    by_command = {Action.SIGNING_KEY_ROTATED, Action.SESSIONS_IMPORTED}
    assert covered | {Action.KEY_CREATED, Action.KEY_REVOKED} | by_command == set(Action)


async def test_every_change_writes_one_entry_and_its_repetition_none(metered: LocalService) -> None:
    for place, change in TRAIL.items():
        if change is None:
            continue
        request, target = await change.prepare(metered)
        status, (entry,) = await requested(metered, request)
        assert status < 300, place
        assert (entry.action, entry.target, entry.changes) == (change.action, target, change.changes), place
        assert (entry.subject, entry.name) == ("anonymous", "anonymous")
        assert (await requested(metered, request))[1] == [], place


async def test_ordinary_traffic_and_refused_changes_leave_no_entry(metered: LocalService) -> None:
    session = await metered.open()
    path = f"/sessions/{session['sessionId']}"
    unknown = some_id()
    requests: list[tuple[Request, int]] = [
        (("PUT", "/sessions", {name: session[name] for name in KEY}), 200),
        (("POST", f"{path}/heartbeat", {"active": True}), 200),
        (("POST", "/sessions/heartbeats", {"sessionIds": [session["sessionId"]]}), 200),
        (("GET", path, None), 200),
        (("DELETE", f"/sessions/{unknown}", None), 404),
        (("POST", "/sessions/end", {"tenant": unknown}), 200),
        (("POST", "/sessions/end", {"all": True, "dryRun": True}), 200),
        (("DELETE", f"/capacities/{unknown}", None), 404),
        (("PUT", f"/capacities/{unknown}", {"maxSessions": -1}), 400),
        (("POST", f"/submissions/{unknown}/retry", None), 404),
        (("POST", f"/submissions/{unknown}/cancel", None), 404),
        (("POST", "/submissions/cancel", {"gateway": "nothing"}), 200),
        (("POST", "/usage/windows/send", {"from": "2041-03-01T00:00:00Z"}), 200),
        (("POST", "/jobs/unknown/run", None), 404),
        (("POST", "/leases/unknown/resign", None), 404),
        (("DELETE", "/keys/4fJ0aQz81LmN", None), 404),
    ]
    for request, status in requests:
        assert await requested(metered, request) == (status, []), request


KEY = ("userObjectId", "tenantObjectId", "capacityId", "sessionKind")


async def test_key_changes_leave_one_entry_each_that_names_the_credential(metered: LocalService) -> None:
    created = await metered.http.post("/keys", json={"name": "ops", "role": "operator"})
    (first,) = await entries(metered.database.store, action="key.created")
    assert (first.subject, first.target) == ("anonymous", created.json()["publicId"])
    metered.http.headers["Authorization"] = f"Bearer {created.json()['key']}"
    await metered.instance._authenticator.refresh()
    made = (
        await metered.http.post("/keys", json={"name": "web", "role": "client", "tenantObjectId": some_id()})
    ).json()
    request = ("DELETE", f"/keys/{made['publicId']}", None)
    status, (entry,) = await requested(metered, request)
    assert (status, entry.subject, entry.name) == (200, created.json()["publicId"], "ops")
    assert (await requested(metered, request))[1] == []
    session = await metered.open()
    _, (ended,) = await requested(metered, ("DELETE", f"/sessions/{session['sessionId']}", None))
    assert (ended.subject, ended.detail) == (created.json()["publicId"], "TERMINATED")


async def test_concurrent_ends_of_one_session_leave_one_entry(own_local: LocalService) -> None:
    session = await own_local.open()
    ends = [own_local.http.delete(f"/sessions/{session['sessionId']}") for _ in range(8)]
    assert {response.status_code for response in await asyncio.gather(*ends)} == {200}
    assert len(await entries(own_local.database.store, target=session["sessionId"])) == 1


async def test_change_is_not_made_if_its_entry_cannot_be_written(own_local: LocalService) -> None:
    session = await own_local.open()
    database = own_local.database
    await database.execute("ALTER TABLE audit_log RENAME TO hidden_log")
    try:
        response = await own_local.http.delete(f"/sessions/{session['sessionId']}")
        assert response.status_code >= 500
        assert (await own_local.get(session["sessionId"]))["isActive"]
    finally:
        await database.execute("ALTER TABLE hidden_log RENAME TO audit_log")
    found: Any = await own_local.http.delete(f"/sessions/{session['sessionId']}")
    assert found.json()["closeReason"] == "TERMINATED"
    assert len(await entries(database.store, target=session["sessionId"])) == 1
