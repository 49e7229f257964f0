"""The fake server responds as the service does: a test sends the same requests to both and compares the responses."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Service, ids

from tenure_client import Client
from tenure_client.errors import Problem
from tenure_client.testing import FakeServer

Json = dict[str, Any]
Wait = Callable[[float], None]


class Recorder:
    """Sends requests, and records the responses. Ids are replaced by numbers in the order of appearance, and instants
    by a constant.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._names: dict[str, str] = {}
        self.answers: list[Any] = []

    def __call__(self, method: str, path: str, body: Json | None = None, **query: str) -> Any:
        try:
            answer = self._client.request(method, path, json=body, query=query)
        except Problem as problem:
            kept = [problem.status, problem.code, problem.close_reason, problem.retry_after is not None]
            self.answers.append([method, *kept, [error.field for error in problem.errors]])
            return None
        self.answers.append([method, answer.status, self._plain(answer.json())])
        return answer.json()

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            # `modifiedUtc` depends on when an end is recorded. The API does not promise when that is.
            return {name: self._plain(inner) for name, inner in sorted(value.items()) if name != "modifiedUtc"}
        if isinstance(value, list):
            return [self._plain(inner) for inner in value]
        if isinstance(value, str) and re.fullmatch(r"[0-9a-f-]{36}", value):
            return self._names.setdefault(value, f"id-{len(self._names)}")
        if isinstance(value, str) and re.fullmatch(r"\d{4}-.*Z", value):
            return "instant"
        return value


def listings(send: Recorder, tenant: str) -> None:
    for query in ({}, {"active": "true"}, {"active": "false"}, {"kind": "3"}, {"closeReason": "UPGRADED"}):
        send("GET", "/sessions", tenant=tenant, **query)
        send("GET", "/sessions/count", tenant=tenant, **query)
    send("GET", "/sessions", tenant=tenant, order="lapse")
    send("GET", "/sessions", order="oldest")
    send("GET", "/sessions", limit="501")


def ends(send: Recorder) -> None:
    who, action = ids(), ids()["user"]
    body = {"tenantObjectId": who["tenant"], "capacityId": who["capacity"], "sessionKind": 1}
    opened = [send("PUT", "/sessions", {**body, "userObjectId": ids()["user"]}) for _ in range(3)]
    send("POST", "/sessions/end", {"tenant": who["tenant"], "dryRun": True})
    send("POST", "/sessions/end", {"tenant": who["tenant"], "limit": 1, "actionId": action})
    send("POST", "/sessions/end", {"tenant": who["tenant"], "actionId": action})
    send("POST", "/sessions/end", {"sessionIds": [each["sessionId"] for each in opened]})
    send("POST", "/sessions/end", {})
    send("POST", "/sessions/end", {"all": True, "kind": 1})
    for tenant in (who["tenant"], ids()["tenant"]):
        send("GET", "/sessions", tenant=tenant, closeReason="TERMINATED")


def scenarios(send: Recorder, wait: Wait) -> None:
    who = ids()
    body = {"userObjectId": who["user"], "tenantObjectId": who["tenant"], "capacityId": who["capacity"]}

    # Open requests: a new session, an existing one, an upgrade, another tenant, wrong fields.
    first = send("PUT", "/sessions", {**body, "sessionKind": 1, "leaseSeconds": 60})
    send("PUT", "/sessions", {**body, "sessionKind": 1, "leaseSeconds": 30})
    second = send("PUT", "/sessions", {**body, "sessionKind": 3, "idleSeconds": 600})
    send("PUT", "/sessions", {**body, "sessionKind": 2})
    send("PUT", "/sessions", {**body, "sessionKind": 1, "tenantObjectId": ids()["tenant"]})
    for wrong in ({"sessionKind": 4}, {"sessionKind": 1, "userObjectId": "me"}, {"sessionKind": 1, "leaseSeconds": 4}):
        send("PUT", "/sessions", {**body, **wrong})

    # Heartbeats.
    send("POST", f"/sessions/{second['sessionId']}/heartbeat", {"active": True})
    send("POST", f"/sessions/{second['sessionId']}/heartbeat", {})
    send("POST", f"/sessions/{first['sessionId']}/heartbeat", {})
    send("POST", f"/sessions/{who['user']}/heartbeat", {})
    three = [second["sessionId"], first["sessionId"], who["user"]]
    send("POST", "/sessions/heartbeats", {"sessionIds": three})
    send("POST", "/sessions/heartbeats", {"sessionIds": []})

    # Reading, listing, ending.
    send("GET", f"/sessions/{first['sessionId']}")
    send("GET", "/sessions/nonsense")
    listings(send, who["tenant"])
    ends(send)
    send("DELETE", f"/sessions/{second['sessionId']}")
    send("DELETE", f"/sessions/{second['sessionId']}")
    send("DELETE", f"/sessions/{who['user']}")

    # Seats: a refusal, an eviction, and a capacity that is bound to another tenant.
    full = ids()["capacity"]
    seats = {**body, "capacityId": full, "sessionKind": 1}
    send("GET", f"/capacities/{full}")
    send("PUT", f"/capacities/{full}", {"maxSessions": 1})
    send("PUT", "/sessions", seats)
    send("PUT", "/sessions", {**seats, "userObjectId": ids()["user"]})
    send("PUT", "/sessions", {**seats, "sessionKind": 2})
    send("PUT", f"/capacities/{full}", {"maxSessions": 1, "whenFull": "evictOldest"})
    wait(0.01)
    send("PUT", "/sessions", {**seats, "userObjectId": ids()["user"]})
    send("GET", "/sessions", capacity=full)
    send("PUT", f"/capacities/{full}", {"maxSessions": 0})
    send("PUT", "/sessions", {**seats, "userObjectId": ids()["user"]})
    send("PUT", f"/capacities/{full}", {"tenantObjectId": ids()["tenant"]})
    send("PUT", "/sessions", {**seats, "userObjectId": ids()["user"]})
    send("GET", f"/capacities/{full}")
    send("DELETE", f"/capacities/{full}")
    send("DELETE", f"/capacities/{full}")
    send("PUT", "/capacities/nonsense", {})

    # Three sessions: the first lapses because its lease runs out; the second because its idle limit runs out, although
    # a heartbeat renews its lease; activity keeps the third one alive.
    limits = {"leaseSeconds": 6, "idleSeconds": 5}
    lapses = [
        send("PUT", "/sessions", {**body, "userObjectId": ids()["user"], "sessionKind": 1, **given})["sessionId"]
        for given in ({"leaseSeconds": 5}, limits, limits)
    ]
    wait(3)
    send("POST", f"/sessions/{lapses[1]}/heartbeat", {})
    send("POST", f"/sessions/{lapses[2]}/heartbeat", {"active": True})
    wait(2.5)
    for session_id in lapses:
        send("GET", f"/sessions/{session_id}")
        send("POST", f"/sessions/{session_id}/heartbeat", {})
    send("DELETE", f"/sessions/{lapses[0]}")


@pytest.mark.slow
def test_fake_server_answers_as_the_service_does(service: Service) -> None:
    fake = FakeServer(role="operator")
    with fake.client(max_retries=0) as client:
        expected = Recorder(client)
        scenarios(expected, fake.clock.advance)
    with Client(service.url, max_retries=0) as client:
        actual = Recorder(client)
        scenarios(actual, time.sleep)
    for number, (one, other) in enumerate(zip(expected.answers, actual.answers, strict=True)):
        assert one == other, f"request {number}"
    assert len(actual.answers) > 50


def test_dry_run_of_end_all_sends_one_request() -> None:
    with FakeServer().client() as client:
        client.sessions.open(**ids())
        (answer,) = client.sessions.end_all(all=True, dry_run=True)
        assert (answer.ended, answer.remaining) == (0, 1)
        assert [each.ended for each in client.sessions.end_all(all=True)] == [1]


def test_fake_server_refuses_unsupported_requests() -> None:
    with FakeServer().client() as client, pytest.raises(NotImplementedError, match="GET /jobs"):
        client.jobs.list().first()
    with FakeServer().client() as client, pytest.raises(NotImplementedError, match="GET /sessions/metrics"):
        client.sessions.metrics()
    with (
        FakeServer().client() as client,
        pytest.raises(NotImplementedError, match="/sessions/stream"),
        client.stream(**ids()),
    ):
        pass


def test_end_never_changes() -> None:
    server = FakeServer()
    with server.client() as client:
        session = client.sessions.open(**ids())
        server.end(session.session_id, "EVICTED")
        server.end(session.session_id, "TERMINATED")
        assert client.sessions.get(session.session_id).close_reason == "EVICTED"
