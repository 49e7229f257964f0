"""The Python code of the SQL Server engine: JSON arguments, result rows, connection URLs. The tests need no server."""

import asyncio
import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import make_url

from tenure.domain.alerts import CONDITIONS_MAX, Alert, AlertChanges, AlertName, Condition
from tenure.domain.capacities import Seats
from tenure.domain.deadlines import opened
from tenure.domain.jobs import BeginRunOutcome, BeginRunResult, JobSettings, RunOutcome
from tenure.domain.keys import CreateKeyOutcome
from tenure.domain.leases import Fence
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.session_tokens import SIGNING_KEYS_MAX, RotateOutcome, new_signing_key
from tenure.domain.sessions import (
    ClosedSession,
    EndResult,
    Found,
    HeartbeatResult,
    Limits,
    OpenOutcome,
    OpenRequest,
    OpenResult,
    Session,
    StreamCounters,
    SweepResult,
)
from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult
from tenure.domain.submissions import BeginAttemptOutcome, BeginAttemptResult, BeginAttemptsResult, SubmitResult
from tenure.domain.usage import (
    ChunkBounds,
    ChunkDigest,
    Cut,
    CutRules,
    Mark,
    MarkState,
    MarkSums,
    PrunedUsage,
    WindowToSend,
)
from tenure.errors import ERROR_MAX, ConfigurationError, DatabaseUnavailable
from tenure.store.engines.sqlserver import calls, connections, rows
from tenure.store.engines.sqlserver.connections import connection_url
from tenure.store.engines.sqlserver.store import SqlServerStore
from tenure.store.reads import sessions
from tests.support.audit_log import ACTOR, draft
from tests.support.keys import OPERATOR, new_key
from tests.support.open_requests import LIMITS, NOON, SECOND, ending, request, same_key_request, some_id
from tests.support.submissions import CONTRACT, attempt_end, submit_request

LATER = NOON + timedelta(minutes=1)
WHOSE = {"user_object_id": "user", "tenant_object_id": "tenant", "capacity_id": "capacity"}
URL = "mssql://user:secret@host:1433/tenure"
needs_odbc = pytest.mark.skipif(connections.pyodbc is None, reason="unixODBC is not installed")


def row(position: int | None, outcome: str, **columns: Any) -> Any:
    """A result row for the open request at this position in the batch. The row without a position contains the common
    instant: the start of every new session that has no row of its own.
    """
    return SimpleNamespace(position=position, outcome=outcome, opened_at=LATER, **columns)


def found(position: int, outcome: str, session: Session) -> Any:
    names = {column.name for column in calls.OPEN.selected_columns} - {"position", "outcome", "opened_at"}
    return row(position, outcome, **{name: getattr(session, name, None) for name in names})


def result_of(one: OpenRequest, *result_rows: Any, limits: Limits = LIMITS) -> OpenResult:
    (result,) = rows.open_results([*result_rows, row(None, "created")], [one], limits)
    return result


def old_of(one: OpenRequest) -> Session:
    return opened(one, LIMITS, NOON)


def test_open_request_without_row_is_created_at_common_instant() -> None:
    one = request(kind=3)
    assert result_of(one) == OpenResult(OpenOutcome.CREATED, opened(one, LIMITS, LATER))


def test_new_session_with_row_of_its_own_starts_at_instant_of_row() -> None:
    one = request()
    own = row(0, "created")
    own.opened_at = LATER + timedelta(seconds=1)
    assert result_of(one, own) == OpenResult(OpenOutcome.CREATED, opened(one, LIMITS, own.opened_at))


def test_existing_session_is_returned_unchanged() -> None:
    old = old_of(request(kind=2))
    one = request(user_object_id=old.user_object_id, capacity_id=old.capacity_id)
    assert result_of(one, found(0, "existing", old)) == OpenResult(OpenOutcome.EXISTING, old)


def test_tenant_mismatch_returns_no_session() -> None:
    one = request()
    assert result_of(
        same_key_request(one, tenant_object_id=some_id()), found(0, "tenant-mismatch", old_of(one))
    ) == OpenResult(OpenOutcome.TENANT_MISMATCH)


def test_lapsed_session_is_returned_as_closed_with_reason_and_deadline() -> None:
    old = old_of(request(lease_microseconds=SECOND))
    one = request(user_object_id=old.user_object_id, capacity_id=old.capacity_id)
    closed = ending(old, "LEASE_EXPIRED", old.deadline_at)
    expected = OpenResult(OpenOutcome.CREATED, opened(one, LIMITS, LATER), [closed])
    assert result_of(one, found(0, "lapsed", old)) == expected


@pytest.mark.parametrize("outcome", ["limited", "session-limit", "capacity-of-another-tenant", "again"])
def test_unopened_request_returns_its_outcome(outcome: str) -> None:
    assert result_of(request(), row(0, outcome)) == OpenResult(OpenOutcome(outcome))


def test_evicted_session_is_returned_with_its_open_request() -> None:
    one, two = request(), request()
    evicted = request()
    closed = row(
        1,
        "closing",
        session_id=evicted.session_id,
        lapse_reason="EVICTED",
        user_object_id=evicted.user_object_id,
        tenant_object_id=evicted.tenant_object_id,
        capacity_id=evicted.capacity_id,
    )
    refused, seated = rows.open_results([row(0, "session-limit"), row(1, "created"), closed], [one, two], LIMITS)
    assert refused == OpenResult(OpenOutcome.SESSION_LIMIT)
    expected = OpenResult(OpenOutcome.CREATED, opened(two, LIMITS, LATER), [ending(evicted, "EVICTED", LATER)])
    assert seated == expected


def test_open_request_without_row_or_common_instant_has_outcome_again() -> None:
    assert rows.open_results([], [request()], LIMITS) == [OpenResult(OpenOutcome.AGAIN)]


def test_upgrade_inherits_limits_missing_in_request() -> None:
    one = request(
        kind=1, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND, idle_microseconds=90 * SECOND
    )
    result = result_of(same_key_request(one, kind=2, idle_microseconds=30 * SECOND), found(0, "upgraded", old_of(one)))
    assert result.outcome is OpenOutcome.UPGRADED
    new = result.session
    assert new is not None
    assert (new.lease_microseconds, new.heartbeat_microseconds, new.idle_microseconds) == (
        60 * SECOND,
        5 * SECOND,
        30 * SECOND,
    )
    assert (new.started_at, new.previous_session_id) == (LATER, one.session_id)


def test_open_requests_are_encoded_as_one_json_parameter() -> None:
    one = request(kind=2, lease_microseconds=7, heartbeat_microseconds=8, idle_microseconds=9)
    limits = Limits(timedelta(days=30), 4, 5, 6)
    ids = [one.capacity_id, one.user_object_id, one.tenant_object_id]
    assert json.loads(rows.open_requests_text([one], limits)) == {
        "term": 2_592_000_000_000,
        "lease": 4,
        "idle": 5,
        "heartbeat": 6,
        "requests": [[0, *ids, 2, one.session_id, 7, 8, 9]],
    }


def test_open_request_json_omits_unset_limits() -> None:
    assert json.loads(rows.open_requests_text([], LIMITS)).keys() == {"term", "requests"}


def test_session_requests_are_encoded_as_lists_with_positions() -> None:
    counted = StreamCounters(1, 2, 3, 4, 5, 6, 7)
    update = StreamUpdate("a", 8, 9, True, counted, end=None, finished=False)
    attach = AttachRequest("a", 7, 8, 9, Scope("t", "u"))
    assert json.loads(rows.numbered([rows.attach_values(attach)])) == [[0, "a", 7, 9, 8, "t", "u"]]
    assert json.loads(rows.numbered([rows.update_values(update)])) == [[0, "a", 8, 9, 1, None, 0, 1, 2, 3, 4, 5, 6, 7]]


def test_capacity_json_omits_unset_values() -> None:
    unset = json.loads(rows.seats_text("a", Seats(), EVERYTHING, ACTOR))
    actor = unset.pop("actor")
    assert unset == {"capacity": "a", "whenFull": "reject"}
    assert actor == {"entry": actor["entry"], "subject": ACTOR.subject, "name": ACTOR.name, "request": ACTOR.request_id}
    given = json.loads(rows.seats_text("a", Seats(0, "evictOldest", "b"), Scope("b"), ACTOR))
    del given["actor"]
    assert given == {"capacity": "a", "maxSessions": 0, "whenFull": "evictOldest", "tenant": "b", "scope": "b"}


def whole(session: Session, **columns: Any) -> Any:
    """A result row with all columns of a session."""
    values = {column.name: getattr(session, column.name, None) for column in sessions.COLUMNS} | columns
    return SimpleNamespace(_mapping=values, **values)


def closed_of(one: OpenRequest) -> Session:
    return replace(old_of(one), state="closed", closed_at=LATER, close_reason="STOPPED", modified_at=LATER)


def test_heartbeat_that_recorded_lapse_returns_closed_session() -> None:
    over = SimpleNamespace(
        position=1,
        found="over",
        state="closed",
        deadline_at=NOON,
        heartbeat_microseconds=None,
        close_reason="LEASE_EXPIRED",
        recorded=True,
        **WHOSE,
    )
    closed = ClosedSession("b", "LEASE_EXPIRED", NOON, **WHOSE)
    assert rows.heartbeat_results([over], ["a", "b"]) == [
        HeartbeatResult(Found.UNKNOWN),
        HeartbeatResult(Found.OVER, "closed", NOON, None, "LEASE_EXPIRED", closed),
    ]


def test_end_returns_held_for_session_that_is_still_live() -> None:
    one, two = request(), request()
    result = [whole(old_of(one), position=0, recorded=False), whole(closed_of(two), position=2, recorded=True)]
    assert rows.end_results(result, 3) == [
        EndResult(Found.HELD),
        EndResult(Found.UNKNOWN),
        EndResult(Found.OVER, closed_of(two), recorded=True),
    ]


def test_sweep_returns_number_of_checked_sessions() -> None:
    over = SimpleNamespace(session_id="a", reason="EXPIRED", ended_at=NOON, looked_at=None, **WHOSE)
    count = SimpleNamespace(session_id=None, reason=None, ended_at=None, looked_at=7)
    assert rows.sweep_result([over, count]) == SweepResult([ClosedSession("a", "EXPIRED", NOON, **WHOSE)], 7)


def test_attach_returns_attachment_of_stream() -> None:
    session = old_of(request())
    row_of_stream = whole(session, position=1, found="live", attached=3, now=LATER, recorded=False)
    assert rows.attach_results([row_of_stream], 2) == [
        AttachResult(Found.UNKNOWN),
        AttachResult(Found.LIVE, session, 3, LATER),
    ]


def test_attach_that_recorded_lapse_returns_closed_session() -> None:
    session = closed_of(request(lease_microseconds=SECOND))
    (result,) = rows.attach_results([whole(session, position=0, found="over", attached=3, now=LATER, recorded=True)], 1)
    assert result.closed_session == ending(session, "LEASE_EXPIRED", session.deadline_at)


def test_stream_update_returns_current_session() -> None:
    session = closed_of(request())
    row_of_stream = whole(session, position=1, found="over", now=LATER, recorded=True, counted=True)
    over = StreamUpdateResult(Found.OVER, session, LATER, recorded=True, counted=True)
    expected = [StreamUpdateResult(Found.UNKNOWN), over]
    assert rows.stream_update_results([row_of_stream], 2) == expected


def lease_row(**columns: Any) -> Any:
    instants = {"acquired_at": NOON, "renewed_at": NOON, "expires_at": LATER}
    values = {
        "name": "leader",
        "holder": "one",
        "epoch": 7,
        "released": False,
        "resigned": False,
        **instants,
        **columns,
    }
    return SimpleNamespace(_mapping=values, **values)


@pytest.mark.parametrize(
    ("columns", "held"),
    [({"now": NOON}, True), ({"now": LATER}, False), ({"now": NOON, "released": True}, False)],
    ids=["held", "expired", "released"],
)
def test_lease_is_held_until_row_time_reaches_expiry_or_lease_is_released(columns: dict[str, Any], held: bool) -> None:
    assert rows.lease(lease_row(**columns)).held is held


def test_acquire_returns_taken_reclaimed_and_fence() -> None:
    result = rows.acquire_result(lease_row(now=NOON, taken=True, reclaimed=True))
    assert (result.taken, result.reclaimed, result.lease.fence) == (True, True, Fence("leader", "one", 7))


def run_row(found: str, **columns: Any) -> Any:
    instants = {"started_at": NOON, "expires_at": LATER, "tick_at": NOON, "clock_behind": None}
    counts = {"lock_timeout_microseconds": 60 * SECOND, "failures_in_a_row": 2}
    return SimpleNamespace(found=found, epoch=7, **instants, **counts, **columns)


def test_begin_run_returns_fence_of_reclaimed_run() -> None:
    result = rows.begin_run_result(run_row("begun", reclaimed_epoch=6, reclaimed_holder="two"), "tidy", "one")
    assert result == BeginRunResult(
        BeginRunOutcome.BEGUN,
        fence=Fence("job:tidy", "one", 7),
        started_at=NOON,
        expires_at=LATER,
        tick_at=NOON,
        lock_timeout_microseconds=60 * SECOND,
        failures_in_a_row=2,
        reclaimed=Fence("job:tidy", "two", 6),
    )


def test_begin_run_returns_no_reclaimed_fence_after_normal_run() -> None:
    assert (
        rows.begin_run_result(run_row("begun", reclaimed_epoch=None, reclaimed_holder=None), "tidy", "one").reclaimed
        is None
    )


@pytest.mark.parametrize("found", [BeginRunOutcome.HELD, BeginRunOutcome.IDLE])
def test_begin_run_returns_no_fence_when_held_or_idle(found: BeginRunOutcome) -> None:
    result = rows.begin_run_result(run_row(found.value, reclaimed_epoch=6, reclaimed_holder="two"), "tidy", "one")
    assert result == BeginRunResult(found)


def test_finish_json_omits_missing_error() -> None:
    fence = Fence("job:tidy", "one", 7)
    assert json.loads(rows.finish_text(fence, RunOutcome.SUCCEEDED, None, 0)) == {
        "name": "job:tidy",
        "holder": "one",
        "epoch": 7,
        "outcome": "succeeded",
        "retry": 0,
    }


@pytest.mark.parametrize(
    ("error", "kept"),
    [("x" * ERROR_MAX, "x" * ERROR_MAX), ("x" + "🎟" * ERROR_MAX, "x" + "🎟" * (ERROR_MAX // 2 - 1)), ("\ud83c", "?")],
    ids=["fits exactly", "surrogate pairs", "lone surrogate"],
)
def test_run_error_is_sent_as_valid_text_that_fits_column(error: str, kept: str) -> None:
    text = rows.finish_text(Fence("job:tidy", "one", 7), RunOutcome.FAILED, error, SECOND)
    assert json.loads(text)["error"] == kept


def test_job_settings_are_encoded_with_timing() -> None:
    job = JobSettings("tidy", 10 * SECOND, 20 * SECOND, paused=True)
    assert json.loads(rows.numbered([rows.job_values(job)])) == [[0, "tidy", 10 * SECOND, 20 * SECOND, 1]]


def test_payloads_are_concatenated_with_offsets_and_lengths() -> None:
    requests = [submit_request(payload=payload) for payload in (b"\x00\xff", b"", b"abc")]
    encoded = json.loads(rows.submit_requests_text(requests))
    payloads = b"".join(request.payload for request in requests)
    assert [entry[0] for entry in encoded] == [0, 1, 2]
    assert [payloads[entry[6] - 1 :][: entry[7]] for entry in encoded] == [request.payload for request in requests]


def test_submission_is_encoded_with_contract_as_json() -> None:
    one = submit_request(gateway="pager", caller="caller", key="once", payload=b"x", digest=b"\x01\xab")
    one = replace(one, request_id="id-1", traceparent="00-a-b-01")
    contract = {
        "schedule_seconds": list(CONTRACT.schedule_seconds),
        "max_attempts": CONTRACT.max_attempts,
        "already_have": list(CONTRACT.already_have),
        "timeout_seconds": CONTRACT.timeout_seconds,
        "format": None,
    }
    encoded = [0, one.submission_id, "pager", "caller", "once", "01ab", 1, 1, contract, "id-1", "00-a-b-01"]
    assert json.loads(rows.submit_requests_text([one])) == [encoded]


def test_accepted_submissions_are_returned_in_order_of_position() -> None:
    second = SimpleNamespace(position=1, submission_id="b", state="delivered", same=False, new=False)
    first = SimpleNamespace(position=0, submission_id="a", state="pending", same=True, new=True)
    result: Any = [second, first]
    assert rows.submit_results(result) == [
        SubmitResult("a", "pending", same=True, new=True),
        SubmitResult("b", "delivered", same=False, new=False),
    ]


def test_begun_attempts_include_database_time() -> None:
    begun = SimpleNamespace(
        submission_id="a",
        found="begun",
        number=2,
        failures=1,
        unknowns=3,
        was_due_at=LATER,
        next_attempt_at=None,
        now=NOON,
    )
    later = SimpleNamespace(
        submission_id="b", found="later", number=None, failures=None, unknowns=0, was_due_at=None, next_attempt_at=LATER
    )
    result: Any = [begun, later]
    assert rows.begin_attempts_result(result) == BeginAttemptsResult(
        NOON,
        [
            BeginAttemptResult("a", BeginAttemptOutcome.BEGUN, 2, 1, 3, LATER),
            BeginAttemptResult("b", BeginAttemptOutcome.LATER, next_attempt_at=LATER),
        ],
    )


def test_attempt_end_is_encoded_with_retry_pause() -> None:
    given = {"status": 503, "error": "later", "counts": False, "pause_microseconds": 7, "is_binding": True}
    encoded = rows.end_values(attempt_end("a", 3, **given))
    assert json.loads(rows.numbered([encoded])) == [[0, "a", 3, "failed", 503, "later", 0, 7, 1, 0]]


def test_early_submissions_are_marked_in_request_to_begin() -> None:
    encoded = [rows.begin_values(each, ["b"]) for each in ("a", "b")]
    assert json.loads(rows.numbered(encoded)) == [[0, "a", 0], [1, "b", 1]]


def test_attempt_end_encodes_missing_values_as_null() -> None:
    encoded = rows.end_values(attempt_end("a", status=None, error=None, counts=True, pause_microseconds=None))
    assert json.loads(rows.numbered([encoded])) == [[0, "a", 1, "failed", None, None, 1, None, 0, 0]]


def test_attempt_error_is_truncated_to_column() -> None:
    assert rows.end_values(attempt_end("a", error="x" * (ERROR_MAX + 1)))[4] == "x" * ERROR_MAX


def test_waiting_reason_is_truncated_to_column() -> None:
    encoded = json.loads(rows.waiting_reason_text(["a", "b"], "x" * (ERROR_MAX + 1)))
    assert encoded == {"error": "x" * ERROR_MAX, "submissions": ["a", "b"]}


class ScriptedStore(SqlServerStore):
    """Returns prepared rows from each call, and records the last call."""

    def __init__(self, *result: Any) -> None:
        self.result = result
        self.called: Any = None
        self.given: dict[str, Any] = {}

    async def _call(self, call: Any, **parameters: Any) -> Any:
        self.called, self.given = call, parameters
        return self.result


FENCE = Fence("job:emit-usage", "one", 7)
FENCE_PARAMETERS = {"name": "job:emit-usage", "holder": "one", "epoch": 7}


async def test_create_key_is_encoded_with_actor_and_without_unset_values() -> None:
    store = ScriptedStore()
    new = new_key(others_expire_at=NOON)
    assert (await store.create_key(new, OPERATOR)).outcome is CreateKeyOutcome.NAME_TAKEN
    encoded = json.loads(store.given["request"])
    actor = encoded.pop("actor")
    assert (actor["subject"], actor["name"], actor["request"]) == ("4fJ0aQz81LmN", "console", "request-7")
    assert encoded.pop("othersExpire") == "2041-03-01T12:00:00.123456"
    assert encoded.pop("detail").startswith("client web; other keys")
    assert encoded == {
        "publicId": new.public_id,
        "name": "web",
        "role": "client",
        "digest": new.digest.hex(),
        "liveMax": 2,
    }


async def test_rotation_encodes_overlap_in_microseconds_and_omits_missing_overlap() -> None:
    key = new_signing_key()
    for overlap, encoded_overlap in ((timedelta(days=30), {"overlap": 2_592_000_000_000}), (None, {})):
        store = ScriptedStore(SimpleNamespace(outcome="too-many"))
        assert await store.rotate_signing_key(key, overlap, OPERATOR) is RotateOutcome.TOO_MANY
        encoded = json.loads(store.given["request"])
        assert encoded.pop("actor")["subject"] == OPERATOR.subject
        del encoded["detail"]
        expected = {"keyId": key.key_id, "secret": key.secret.hex(), "most": SIGNING_KEYS_MAX, **encoded_overlap}
        assert (store.called, encoded) == (calls.ROTATE_SIGNING_KEY, expected)


async def test_touch_keys_sends_instants_in_utc() -> None:
    store = ScriptedStore(SimpleNamespace(touched=1))
    await store.touch_keys({"one": NOON, "two": LATER})
    assert json.loads(store.given["request"])[0] == [0, "one", "2041-03-01T12:00:00.123456"]


async def test_cut_usage_returns_database_time_and_last_cut() -> None:
    store = ScriptedStore(SimpleNamespace(now=LATER, last_cut_at=NOON, windows=2))
    assert await store.cut_usage(FENCE, CutRules(60, (1, 2, 3), None), 128) == Cut(LATER, NOON, 2)
    request = '{"interval":60,"factors":[1,2,3]}'
    assert (store.called, store.given) == (calls.CUT_USAGE, {**FENCE_PARAMETERS, "limit": 128, "request": request})


def test_usage_contract_is_encoded_as_json() -> None:
    encoded = json.loads(rows.rules_text(CutRules(60, (1, 2, 3), replace(CONTRACT, format="tenure"))))
    assert encoded["contract"] == {
        "schedule_seconds": list(CONTRACT.schedule_seconds),
        "max_attempts": CONTRACT.max_attempts,
        "already_have": list(CONTRACT.already_have),
        "timeout_seconds": CONTRACT.timeout_seconds,
        "format": "tenure",
    }


async def test_conditions_are_encoded_with_submission_id_for_every_possible_change() -> None:
    values = {"alert_id": "a", "name": "job-failing", "subject": "", "detail": "why", "raised_at": NOON}
    raised = SimpleNamespace(_mapping={**values, "cleared_at": None, "cleared_epoch": None})
    cleared = SimpleNamespace(_mapping={**values, "alert_id": "b", "cleared_at": LATER, "cleared_epoch": 7})
    store = ScriptedStore(raised, cleared)
    changes = await store.update_alerts(FENCE, [Condition(AlertName.JOB_FAILING, None, "x" * 2000)], CONTRACT)
    alert = Alert(alert_id="a", name="job-failing", subject=None, detail="why", raised_at=NOON)
    assert changes == AlertChanges([alert], [replace(alert, alert_id="b", cleared_at=LATER)])
    encoded = json.loads(store.given["request"])
    ((position, _, *condition),) = encoded["conditions"]
    assert [position, *condition] == [0, "job-failing", "", "x" * 1000]
    assert len({each for _, each in encoded["submissions"]}) == 1 + CONDITIONS_MAX
    assert store.called is calls.UPDATE_ALERTS
    await store.update_alerts(FENCE, [], None)
    assert json.loads(store.given["request"]) == {"conditions": [], "submissions": []}


async def test_save_chunks_assigns_submission_id_to_each_chunk() -> None:
    store = ScriptedStore(SimpleNamespace(saved=0))
    await store.save_chunks(FENCE, 9, 4, [ChunkBounds("a", "b", 1000, 77), ChunkBounds("c", "d", 5, 8)], complete=True)
    encoded = json.loads(store.given.pop("request"))
    assert [entry[:-1] for entry in encoded] == [[0, "a", "b", 1000, 77], [1, "c", "d", 5, 8]]
    assert len({entry[-1] for entry in encoded}) == 2
    given = {**FENCE_PARAMETERS, "window_id": 9, "first": 4, "complete": True}
    assert (store.called, store.given) == (calls.SAVE_CHUNKS, given)


async def test_send_windows_passes_contract_windows_and_chunks() -> None:
    store = ScriptedStore(SimpleNamespace(window_id=4))
    windows = [WindowToSend(4, ["a", "b"]), WindowToSend(5, [])]
    assert await store.send_windows(CONTRACT, windows, draft()) == [4]
    given = json.loads(store.given["request"])
    assert (store.called, list(given)) == (calls.SEND_WINDOWS, ["contract", "kept", "windows", "chunks", "draft"])
    assert (given["contract"]["timeout_seconds"], given["kept"]) == (CONTRACT.timeout_seconds, 400 * 86_400 * SECOND)
    assert (given["windows"], given["chunks"]) == ([[4, 2], [5, 0]], [[4, 1, "a"], [4, 2, "b"]])


async def test_store_digests_returns_whether_digest_of_each_chunk_matches() -> None:
    result = [SimpleNamespace(submission_id="a", same=True), SimpleNamespace(submission_id="b", same=False)]
    store = ScriptedStore(*result)
    assert await store.store_digests(FENCE, [ChunkDigest("a", b"\x01\xab"), ChunkDigest("b", b"")]) == {
        "a": True,
        "b": False,
    }
    assert json.loads(store.given["request"]) == [[0, "a", "01ab"], [1, "b", ""]]


async def test_rows_of_mark_are_sent_as_json() -> None:
    store = ScriptedStore(SimpleNamespace(saved=1, deleted=3))
    mark = Mark(NOON, 2, MarkState.COMPLETE)
    await store.save_mark(FENCE, mark, [MarkSums("a", "b", 3, 4, 5, 6)])
    at = "2041-03-01T12:00:00.123456"
    encoded = json.loads(store.given.pop("request"))
    assert encoded == {"at": at, "series": 2, "state": "complete", "sums": [["a", "b", 3, 4, 5, 6]]}
    assert (store.called, store.given) == (calls.SAVE_MARK, FENCE_PARAMETERS)
    assert await store.delete_mark(FENCE, NOON, 9) == 3
    assert (store.called, store.given) == (
        calls.DELETE_MARK,
        {**FENCE_PARAMETERS, "limit": 9, "request": json.dumps({"at": at}, separators=(",", ":"))},
    )


async def test_usage_is_pruned_after_400_days() -> None:
    store = ScriptedStore(SimpleNamespace(chunks=1, windows=2, sessions=3))
    assert await store.prune_usage(FENCE, 1000) == PrunedUsage(1, 2, 3)
    assert (store.called, store.given) == (
        calls.PRUNE_USAGE,
        {**FENCE_PARAMETERS, "limit": 1000, "kept": 400 * 86_400 * SECOND},
    )


def test_instants_are_sent_as_text_with_microseconds() -> None:
    sent = connections.with_exact_instants(None, None, "?", (NOON.replace(tzinfo=None), "x", 7), None, False)
    assert sent == ("?", ("2041-03-01T12:00:00.123456", "x", 7))


class Cursor:
    """A cursor whose first `messages` result sets are messages of the server. The rows follow them."""

    def __init__(self, messages: int) -> None:
        self.messages = messages

    @property
    def description(self) -> object:
        return None if self.messages else ()

    def nextset(self) -> None:
        self.messages -= 1


@pytest.mark.parametrize(("returns_rows", "left"), [(True, 0), (False, 2)])
def test_messages_are_skipped_only_if_statement_returns_rows(returns_rows: bool, left: int) -> None:
    cursor = Cursor(messages=2)
    context = SimpleNamespace(execution_options={"returns_rows": returns_rows})
    connections.skip_server_messages(None, cursor, "", (), context, False)
    assert cursor.messages == left


@pytest.mark.parametrize("url", ["mssql://host", "mssql:///tenure", "mssql://"])
def test_url_without_host_or_database_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=list))
    with pytest.raises(ConfigurationError, match="must name host and database"):
        connection_url(make_url(url))


def test_connection_url_keeps_driver_from_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=list))
    assert connection_url(make_url(f"{URL}?Driver=FreeTDS")).query["driver"] == "FreeTDS"


def test_connection_url_keeps_settings_from_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=list))
    query = connection_url(make_url(f"{URL}?driver=x&keepalive=30&Encrypt=strict")).query
    assert (query["keepalive"], query["Encrypt"], query.get("KeepAlive")) == ("30", "strict", None)


def test_driver_prefers_newest_installed_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "FreeTDS",
        "ODBC Driver 17 for SQL Server",
        "ODBC Driver 18 for SQL Server",
        "ODBC Driver 9 for SQL Server",
    ]
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=lambda: names))
    assert connections.driver() == "ODBC Driver 18 for SQL Server"


def test_driver_finds_library_installed_by_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    package = SimpleNamespace(get_libs_dir=lambda: str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "mssql_python_odbc", package)
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=list))
    monkeypatch.setattr(connections, "_linux_family", lambda: "rhel")
    monkeypatch.setattr(connections.platform, "machine", lambda: "aarch64")
    library = tmp_path / "linux" / "rhel" / "arm64" / "lib" / "libmsodbcsql-18.6.so.2.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert connections.driver() == str(library)


def test_missing_driver_raises_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=list))
    monkeypatch.setattr(connections, "_drivers_from_pip", list)
    with pytest.raises(ConfigurationError, match="no ODBC driver"):
        connections.driver()


def test_missing_extra_raises_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "pyodbc", None)
    with pytest.raises(ConfigurationError, match="extra"):
        connection_url(make_url(URL))


@needs_odbc
async def test_store_has_more_threads_than_connections() -> None:
    store = SqlServerStore(make_url(f"{URL}?driver=x"), 10)
    assert store._threads._max_workers > 2 * 10
    await store.close()


@needs_odbc
@pytest.mark.parametrize(("pool_size", "own"), [(4, False), (7, True), (100, True)])
async def test_only_pool_of_at_least_seven_reserves_connections_for_renewals(pool_size: int, own: bool) -> None:
    store = SqlServerStore(make_url(f"{URL}?driver=x"), pool_size)
    sizes = {id(engine): engine.sync_engine.pool.size() for engine in (store._engine, store._renewals)}
    await store.close()
    assert (len(sizes) == 2) is own
    assert sum(sizes.values()) == pool_size


@needs_odbc
async def test_caller_timeout_does_not_cancel_statement() -> None:
    store = SqlServerStore(make_url(f"{URL}?driver=x"), 4)
    proceed, ended = asyncio.Event(), asyncio.Event()

    async def statement() -> None:
        await proceed.wait()
        ended.set()

    with pytest.raises(DatabaseUnavailable):
        await store._retries.run(lambda: store._finish(statement()), 0.01)
    proceed.set()
    await asyncio.wait_for(ended.wait(), 20)
    await store.close()


@needs_odbc
async def test_close_waits_for_running_statements() -> None:
    store = SqlServerStore(make_url(f"{URL}?driver=x"), 4)
    ended = asyncio.Event()

    async def statement() -> None:
        await asyncio.sleep(0)
        ended.set()

    running = asyncio.create_task(store._finish(statement()))
    await asyncio.sleep(0)
    await store.close()
    assert ended.is_set()
    await running
