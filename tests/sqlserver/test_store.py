"""What the engine does around its statements, without a server."""

import asyncio
import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import make_url

from tenure.deadlines import opened
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.model.leases import ERROR_MAX, BeginFound, Begun, Fence, JobSettings, RunOutcome
from tenure.model.sessions import (
    Attach,
    Attached,
    Closing,
    Ended,
    Found,
    Kept,
    Limits,
    Open,
    Opened,
    Outcome,
    Seats,
    Session,
    StreamCounters,
    StreamUpdate,
    StreamUpdated,
    Swept,
)
from tenure.model.submissions import Accepted, BeginAttemptFound, BegunAttempt, BegunAttempts
from tenure.model.usage import Cut, CutRules, Piece, PrunedUsage, Seal
from tenure.store import sessions
from tenure.store.engines.sqlserver import calls, connections, rows
from tenure.store.engines.sqlserver.connections import connection_url
from tenure.store.engines.sqlserver.store import SqlServerStore
from tests.support.submissions import CONTRACT, end, submit
from tests.support.wishes import LIMITS, NOON, SECOND, again, some_id, wish

LATER = NOON + timedelta(minutes=1)
URL = "mssql://user:secret@host:1433/tenure"
needs_odbc = pytest.mark.skipif(connections.pyodbc is None, reason="unixODBC is not installed")


def line(position: int | None, outcome: str, **columns: Any) -> Any:
    return SimpleNamespace(position=position, outcome=outcome, opened_at=LATER, **columns)


def found(position: int, outcome: str, session: Session) -> Any:
    names = {column.name for column in calls.OPEN.selected_columns} - {"position", "outcome", "opened_at"}
    return line(position, outcome, **{name: getattr(session, name, None) for name in names})


def answer_to(one: Open, *lines: Any, limits: Limits = LIMITS) -> Opened:
    (answer,) = rows.openings([*lines, line(None, "created")], [one], limits)
    return answer


def old_of(one: Open) -> Session:
    return opened(one, LIMITS, NOON)


def test_a_wish_without_a_line_was_created_at_the_common_instant() -> None:
    one = wish(kind=3)
    assert answer_to(one) == Opened(Outcome.CREATED, opened(one, LIMITS, LATER))


def test_a_created_line_names_a_start_of_its_own() -> None:
    one = wish()
    own = line(0, "created")
    own.opened_at = LATER + timedelta(seconds=1)
    assert answer_to(one, own) == Opened(Outcome.CREATED, opened(one, LIMITS, own.opened_at))


def test_an_existing_session_is_answered_as_it_is() -> None:
    old = old_of(wish(kind=2))
    one = wish(user_object_id=old.user_object_id, capacity_id=old.capacity_id)
    assert answer_to(one, found(0, "existing", old)) == Opened(Outcome.EXISTING, old)


def test_nothing_is_told_about_the_session_of_another_tenant() -> None:
    one = wish()
    assert answer_to(again(one, tenant_object_id=some_id()), found(0, "tenant-mismatch", old_of(one))) == Opened(
        Outcome.TENANT_MISMATCH
    )


def test_a_lapsed_session_is_told_with_its_reason_and_its_deadline_as_its_end() -> None:
    old = old_of(wish(lease_microseconds=SECOND))
    one = wish(user_object_id=old.user_object_id, capacity_id=old.capacity_id)
    closing = Closing(old.session_id, "LEASE_EXPIRED", old.deadline_at)
    expected = Opened(Outcome.CREATED, opened(one, LIMITS, LATER), [closing])
    assert answer_to(one, found(0, "lapsed", old)) == expected


@pytest.mark.parametrize("outcome", ["limited", "session-limit", "capacity-of-another-tenant", "again"])
def test_a_wish_that_was_not_opened_is_told_why(outcome: str) -> None:
    assert answer_to(wish(), line(0, outcome)) == Opened(Outcome(outcome))


def test_what_was_closed_on_the_way_stands_with_its_answer() -> None:
    one, two = wish(), wish()
    closed = line(1, "closing", session_id=some_id(), lapse_reason="EVICTED")
    refused, seated = rows.openings([line(0, "session-limit"), line(1, "created"), closed], [one, two], LIMITS)
    assert refused == Opened(Outcome.SESSION_LIMIT)
    expected = Opened(Outcome.CREATED, opened(two, LIMITS, LATER), [Closing(closed.session_id, "EVICTED", LATER)])
    assert seated == expected


def test_a_wish_that_a_lane_without_a_common_instant_does_not_name_comes_again() -> None:
    assert rows.openings([], [wish()], LIMITS) == [Opened(Outcome.AGAIN)]


def test_an_upgrade_inherits_what_the_wish_does_not_bring() -> None:
    one = wish(kind=1, lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND, idle_microseconds=90 * SECOND)
    answer = answer_to(again(one, kind=2, idle_microseconds=30 * SECOND), found(0, "upgraded", old_of(one)))
    assert answer.outcome is Outcome.UPGRADED
    new = answer.session
    assert new is not None
    assert (new.lease_microseconds, new.heartbeat_microseconds, new.idle_microseconds) == (
        60 * SECOND,
        5 * SECOND,
        30 * SECOND,
    )
    assert (new.started_at, new.previous_session_id) == (LATER, one.session_id)


def test_a_request_is_one_parameter_with_everything_in_it() -> None:
    one = wish(kind=2, lease_microseconds=7, heartbeat_microseconds=8, idle_microseconds=9)
    limits = Limits(timedelta(days=30), 4, 5, 6)
    ids = [one.capacity_id, one.user_object_id, one.tenant_object_id]
    assert json.loads(rows.wishes_text([one], limits)) == {
        "term": 2_592_000_000_000,
        "lease": 4,
        "idle": 5,
        "heartbeat": 6,
        "wishes": [[0, *ids, 2, one.session_id, 7, 8, 9]],
    }


def test_a_request_leaves_out_limits_that_are_not_set() -> None:
    assert json.loads(rows.wishes_text([], LIMITS)).keys() == {"term", "wishes"}


def test_requests_about_sessions_are_lists_with_their_positions() -> None:
    counted = StreamCounters(1, 2, 3, 4, 5, 6, 7)
    update = StreamUpdate("a", 8, 9, True, counted, end=None, finished=False)
    assert json.loads(rows.numbered([rows.attach_values(Attach("a", 7, 8, 9))])) == [[0, "a", 7, 9, 8]]
    assert json.loads(rows.numbered([rows.update_values(update)])) == [[0, "a", 8, 9, 1, None, 0, 1, 2, 3, 4, 5, 6, 7]]


def test_a_capacity_leaves_out_what_is_not_set() -> None:
    assert json.loads(rows.seats_text("a", Seats())) == {"capacity": "a", "whenFull": "reject"}
    assert json.loads(rows.seats_text("a", Seats(0, "evictOldest", "b"))) == {
        "capacity": "a",
        "maxSessions": 0,
        "whenFull": "evictOldest",
        "tenant": "b",
    }


def whole(session: Session, **columns: Any) -> Any:
    """A line with a whole row of the table in it."""
    values = {column.name: getattr(session, column.name, None) for column in sessions.COLUMNS} | columns
    return SimpleNamespace(_mapping=values, **values)


def closed_of(one: Open) -> Session:
    return replace(old_of(one), state="closed", closed_at=LATER, close_reason="STOPPED", modified_at=LATER)


def test_a_heartbeat_that_recorded_a_lapse_says_so() -> None:
    over = SimpleNamespace(
        position=1,
        found="over",
        state="closed",
        deadline_at=NOON,
        heartbeat_microseconds=None,
        close_reason="LEASE_EXPIRED",
        recorded=True,
    )
    closing = Closing("b", "LEASE_EXPIRED", NOON)
    assert rows.kept([over], ["a", "b"]) == [
        Kept(Found.UNKNOWN),
        Kept(Found.OVER, "closed", NOON, None, "LEASE_EXPIRED", closing),
    ]


def test_an_end_that_comes_back_live_was_held() -> None:
    one, two = wish(), wish()
    lines = [whole(old_of(one), position=0, recorded=False), whole(closed_of(two), position=2, recorded=True)]
    assert rows.ended(lines, 3) == [
        Ended(Found.HELD),
        Ended(Found.UNKNOWN),
        Ended(Found.OVER, closed_of(two), recorded=True),
    ]


def test_a_sweep_counts_what_it_looked_at() -> None:
    over = SimpleNamespace(session_id="a", reason="EXPIRED", ended_at=NOON, looked_at=None)
    count = SimpleNamespace(session_id=None, reason=None, ended_at=None, looked_at=7)
    assert rows.swept([over, count]) == Swept([Closing("a", "EXPIRED", NOON)], 7)


def test_an_attached_stream_gets_its_own_number() -> None:
    session = old_of(wish())
    told = whole(session, position=1, found="live", attached=3, now=LATER, recorded=False)
    assert rows.attached([told], 2) == [Attached(Found.UNKNOWN), Attached(Found.LIVE, session, 3, LATER)]


def test_an_attach_that_recorded_a_lapse_says_so() -> None:
    session = closed_of(wish(lease_microseconds=SECOND))
    (told,) = rows.attached([whole(session, position=0, found="over", attached=3, now=LATER, recorded=True)], 1)
    assert told.closing == Closing(session.session_id, "LEASE_EXPIRED", session.deadline_at)


def test_a_stream_learns_what_its_session_has_become() -> None:
    session = closed_of(wish())
    told = whole(session, position=1, found="over", now=LATER, recorded=True)
    expected = [StreamUpdated(Found.UNKNOWN), StreamUpdated(Found.OVER, session, LATER, recorded=True)]
    assert rows.streams_updated([told], 2) == expected


def lease_line(**columns: Any) -> Any:
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
    ids=["in time", "run out", "given up"],
)
def test_a_lease_is_held_by_the_clock_that_came_with_it(columns: dict[str, Any], held: bool) -> None:
    assert rows.lease(lease_line(**columns)).held is held


def test_an_acquired_lease_says_whether_it_was_taken_and_from_whom() -> None:
    told = rows.acquired(lease_line(now=NOON, taken=True, reclaimed=True))
    assert (told.taken, told.reclaimed, told.lease.fence) == (True, True, Fence("leader", "one", 7))


def run_line(found: str, **columns: Any) -> Any:
    instants = {"started_at": NOON, "expires_at": LATER, "tick_at": NOON}
    counts = {"lock_timeout_microseconds": 60 * SECOND, "failures_in_a_row": 2}
    return SimpleNamespace(found=found, epoch=7, **instants, **counts, **columns)


def test_a_run_that_was_begun_names_the_one_that_was_abandoned() -> None:
    told = rows.begun(run_line("begun", reclaimed_epoch=6, reclaimed_holder="two"), "tidy", "one")
    assert told == Begun(
        BeginFound.BEGUN,
        fence=Fence("job:tidy", "one", 7),
        started_at=NOON,
        expires_at=LATER,
        tick_at=NOON,
        lock_timeout_microseconds=60 * SECOND,
        failures_in_a_row=2,
        reclaimed=Fence("job:tidy", "two", 6),
    )


def test_a_run_that_was_begun_in_good_order_names_no_other() -> None:
    assert rows.begun(run_line("begun", reclaimed_epoch=None, reclaimed_holder=None), "tidy", "one").reclaimed is None


@pytest.mark.parametrize("found", [BeginFound.HELD, BeginFound.IDLE])
def test_a_run_that_was_not_begun_has_no_fence(found: BeginFound) -> None:
    told = rows.begun(run_line(found.value, reclaimed_epoch=6, reclaimed_holder="two"), "tidy", "one")
    assert told == Begun(found)


def test_a_finished_run_is_told_without_an_error_if_there_was_none() -> None:
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
    ids=["just fits", "characters of two halves", "half a character"],
)
def test_an_error_fits_its_column_and_ends_with_a_whole_character(error: str, kept: str) -> None:
    text = rows.finish_text(Fence("job:tidy", "one", 7), RunOutcome.FAILED, error, SECOND)
    assert json.loads(text)["error"] == kept


def test_jobs_are_told_with_their_timing() -> None:
    job = JobSettings("tidy", 10 * SECOND, 20 * SECOND, paused=True)
    assert json.loads(rows.numbered([rows.job_values(job)])) == [[0, "tidy", 10 * SECOND, 20 * SECOND, 1]]


def test_payloads_travel_one_behind_the_other() -> None:
    wishes = [submit(payload=payload) for payload in (b"\x00\xff", b"", b"abc")]
    told = json.loads(rows.submits_text(wishes))
    payloads = b"".join(wish.payload for wish in wishes)
    assert [entry[0] for entry in told] == [0, 1, 2]
    assert [payloads[entry[6] - 1 :][: entry[7]] for entry in told] == [wish.payload for wish in wishes]


def test_a_submission_is_told_with_its_contract_as_json() -> None:
    one = submit(gateway="pager", caller="shop", key="once", payload=b"x", digest=b"\x01\xab")
    contract = {
        "schedule_seconds": list(CONTRACT.schedule_seconds),
        "max_attempts": CONTRACT.max_attempts,
        "already_have": list(CONTRACT.already_have),
        "timeout_seconds": CONTRACT.timeout_seconds,
        "format": None,
    }
    told = [0, one.submission_id, "pager", "shop", "once", "01ab", 1, 1, contract]
    assert json.loads(rows.submits_text([one])) == [told]


def test_accepted_submissions_are_answered_in_the_order_of_their_positions() -> None:
    second = SimpleNamespace(position=1, submission_id="b", state="delivered", same=False, new=False)
    first = SimpleNamespace(position=0, submission_id="a", state="pending", same=True, new=True)
    lines: Any = [second, first]
    assert rows.accepted(lines) == [
        Accepted("a", "pending", same=True, new=True),
        Accepted("b", "delivered", same=False, new=False),
    ]


def test_attempts_that_were_begun_come_with_the_clock() -> None:
    begun = SimpleNamespace(submission_id="a", found="begun", number=2, failures=1, next_attempt_at=None, now=NOON)
    later = SimpleNamespace(submission_id="b", found="later", number=None, failures=None, next_attempt_at=LATER)
    lines: Any = [begun, later]
    assert rows.begun_attempts(lines) == BegunAttempts(
        NOON,
        [
            BegunAttempt("a", BeginAttemptFound.BEGUN, 2, 1),
            BegunAttempt("b", BeginAttemptFound.LATER, next_attempt_at=LATER),
        ],
    )


def test_the_end_of_an_attempt_is_told_with_what_is_to_come() -> None:
    told = rows.end_values(end("a", 3, status=503, error="later", counts=False, pause_microseconds=7))
    assert json.loads(rows.numbered([told])) == [[0, "a", 3, "failed", 503, "later", 0, 7]]


def test_the_end_of_an_attempt_says_nothing_where_there_is_nothing_to_say() -> None:
    told = rows.end_values(end("a", status=None, error=None, counts=True, pause_microseconds=None))
    assert json.loads(rows.numbered([told])) == [[0, "a", 1, "failed", None, None, 1, None]]


def test_the_error_of_an_attempt_fits_its_column() -> None:
    assert rows.end_values(end("a", error="x" * (ERROR_MAX + 1)))[4] == "x" * ERROR_MAX


def test_what_is_said_of_those_that_wait_fits_its_column() -> None:
    told = json.loads(rows.explanation_text(["a", "b"], "x" * (ERROR_MAX + 1)))
    assert told == {"error": "x" * ERROR_MAX, "submissions": ["a", "b"]}


class Answering(SqlServerStore):
    """Is told what its next call brings back, and notes the call."""

    def __init__(self, *lines: Any) -> None:
        self.lines = lines
        self.called: Any = None
        self.given: dict[str, Any] = {}

    async def _call(self, call: Any, **parameters: Any) -> Any:
        self.called, self.given = call, parameters
        return self.lines


EMITTER = Fence("job:emit-usage", "one", 7)
SHOWN = {"name": "job:emit-usage", "holder": "one", "epoch": 7}


async def test_a_cut_is_told_with_the_clock() -> None:
    store = Answering(SimpleNamespace(now=LATER, last_cut_at=NOON, windows=2))
    assert await store.cut_usage(EMITTER, CutRules(60, (1, 2, 3), None), 128) == Cut(LATER, NOON, 2)
    request = '{"interval":60,"factors":[1,2,3]}'
    assert (store.called, store.given) == (calls.CUT_USAGE, {**SHOWN, "limit": 128, "request": request})


def test_a_contract_of_usage_is_told_as_json() -> None:
    told = json.loads(rows.rules_text(CutRules(60, (1, 2, 3), replace(CONTRACT, format="tenure"))))
    assert told["contract"] == {
        "schedule_seconds": list(CONTRACT.schedule_seconds),
        "max_attempts": CONTRACT.max_attempts,
        "already_have": list(CONTRACT.already_have),
        "timeout_seconds": CONTRACT.timeout_seconds,
        "format": "tenure",
    }


async def test_chunks_are_saved_with_an_id_for_what_is_sent_of_each() -> None:
    store = Answering(SimpleNamespace(saved=0))
    await store.save_chunks(EMITTER, 9, 4, [Piece("a", "b", 1000, 77), Piece("c", "d", 5, 8)], complete=True)
    told = json.loads(store.given.pop("request"))
    assert [entry[:-1] for entry in told] == [[0, "a", "b", 1000, 77], [1, "c", "d", 5, 8]]
    assert len({entry[-1] for entry in told}) == 2
    given = {**SHOWN, "window_id": 9, "first": 4, "complete": True}
    assert (store.called, store.given) == (calls.SAVE_CHUNKS, given)


async def test_a_seal_tells_of_each_whether_it_has_this_digest() -> None:
    lines = [SimpleNamespace(submission_id="a", same=True), SimpleNamespace(submission_id="b", same=False)]
    store = Answering(*lines)
    assert await store.seal_chunks(EMITTER, [Seal("a", b"\x01\xab"), Seal("b", b"")]) == {"a": True, "b": False}
    assert json.loads(store.given["request"]) == [[0, "a", "01ab"], [1, "b", ""]]


async def test_usage_is_pruned_after_400_days() -> None:
    store = Answering(SimpleNamespace(chunks=1, windows=2, sessions=3))
    assert await store.prune_usage(EMITTER, 1000) == PrunedUsage(1, 2, 3)
    assert (store.called, store.given) == (calls.PRUNE_USAGE, {**SHOWN, "limit": 1000, "kept": 400 * 86_400 * SECOND})


def test_instants_travel_as_text_with_all_their_decimals() -> None:
    sent = connections.with_exact_instants(None, None, "?", (NOON.replace(tzinfo=None), "x", 7), None, False)
    assert sent == ("?", ("2041-03-01T12:00:00.123456", "x", 7))


class Cursor:
    """Has its rows after some results without any."""

    def __init__(self, messages: int) -> None:
        self.messages = messages

    @property
    def description(self) -> object:
        return None if self.messages else ()

    def nextset(self) -> None:
        self.messages -= 1


@pytest.mark.parametrize(("answers", "left"), [(True, 0), (False, 2)])
def test_finds_the_answer_behind_messages(answers: bool, left: int) -> None:
    cursor = Cursor(messages=2)
    context = SimpleNamespace(execution_options={"answers": answers})
    connections.wait_for_the_answer(None, cursor, "", (), context, False)
    assert cursor.messages == left


@pytest.mark.parametrize("url", ["mssql://host", "mssql:///tenure", "mssql://"])
def test_refuses_a_url_without_host_or_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=list))
    with pytest.raises(ConfigurationError, match="must name host and database"):
        connection_url(make_url(url))


def test_takes_the_driver_that_the_url_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=list))
    assert connection_url(make_url(f"{URL}?Driver=FreeTDS")).query["driver"] == "FreeTDS"


def test_leaves_what_the_url_says_about_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=list))
    query = connection_url(make_url(f"{URL}?driver=x&keepalive=30&Encrypt=strict")).query
    assert (query["keepalive"], query["Encrypt"], query.get("KeepAlive")) == ("30", "strict", None)


def test_prefers_the_newest_driver_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "FreeTDS",
        "ODBC Driver 17 for SQL Server",
        "ODBC Driver 18 for SQL Server",
        "ODBC Driver 9 for SQL Server",
    ]
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=lambda: names))
    assert connections.driver() == "ODBC Driver 18 for SQL Server"


def test_finds_the_driver_that_pip_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    package = SimpleNamespace(get_libs_dir=lambda: str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "mssql_python_odbc", package)
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=list))
    monkeypatch.setattr(connections, "_linux", lambda: "rhel")
    monkeypatch.setattr(connections.platform, "machine", lambda: "aarch64")
    library = tmp_path / "linux" / "rhel" / "arm64" / "lib" / "libmsodbcsql-18.6.so.2.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert connections.driver() == str(library)


def test_says_what_is_missing_without_any_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "pyodbc", SimpleNamespace(drivers=list))
    monkeypatch.setattr(connections, "_drivers_from_pip", list)
    with pytest.raises(ConfigurationError, match="no ODBC driver"):
        connections.driver()


def test_says_what_is_missing_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "pyodbc", None)
    with pytest.raises(ConfigurationError, match="extra"):
        connection_url(make_url(URL))


@needs_odbc
async def test_has_more_threads_than_connections_can_block() -> None:
    store = SqlServerStore(make_url(f"{URL}?driver=x"), 10)
    assert store._threads._max_workers > 2 * 10
    await store.close()


@needs_odbc
@pytest.mark.parametrize(("pool_size", "own"), [(4, False), (7, True), (100, True)])
async def test_renewals_have_connections_of_their_own_within_the_pool(pool_size: int, own: bool) -> None:
    store = SqlServerStore(make_url(f"{URL}?driver=x"), pool_size)
    sizes = {id(engine): engine.sync_engine.pool.size() for engine in (store._engine, store._renewals)}
    await store.close()
    assert (len(sizes) == 2) is own
    assert sum(sizes.values()) == pool_size


@needs_odbc
async def test_a_caller_who_stops_waiting_does_not_stop_the_statement() -> None:
    store = SqlServerStore(make_url(f"{URL}?driver=x"), 4)
    go_on, ended = asyncio.Event(), asyncio.Event()

    async def statement() -> None:
        await go_on.wait()
        ended.set()

    with pytest.raises(DatabaseUnavailable):
        await store._retries.run(lambda: store._finish(statement()), 0.01)
    go_on.set()
    await asyncio.wait_for(ended.wait(), 20)
    await store.close()


@needs_odbc
async def test_close_waits_for_what_is_under_way() -> None:
    store = SqlServerStore(make_url(f"{URL}?driver=x"), 4)
    ended = asyncio.Event()

    async def statement() -> None:
        await asyncio.sleep(0)
        ended.set()

    asking = asyncio.create_task(store._finish(statement()))
    await asyncio.sleep(0)
    await store.close()
    assert ended.is_set()
    await asking
