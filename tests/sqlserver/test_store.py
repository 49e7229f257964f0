"""What the engine does around its statements, without a server."""

import asyncio
import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import make_url

from tenure.deadlines import as_recorded, opened
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.model import Limits, Open, Opened, Outcome, Session
from tenure.store.engines import sqlserver
from tenure.store.engines.sqlserver import SqlServerStore, connection_url
from tests.support.wishes import LIMITS, NOON, SECOND, again, some_id, wish

LATER = NOON + timedelta(minutes=1)
URL = "mssql://user:secret@host:1433/tenure"
needs_odbc = pytest.mark.skipif(sqlserver.pyodbc is None, reason="unixODBC is not installed")


def line(position: int | None, outcome: str, **columns: Any) -> Any:
    return SimpleNamespace(position=position, outcome=outcome, opened_at=LATER, **columns)


def found(position: int, outcome: str, session: Session) -> Any:
    names = {column.name for column in sqlserver.OPEN.selected_columns} - {"position", "outcome", "opened_at"}
    return line(position, outcome, **{name: getattr(session, name) for name in names})


def answer_to(one: Open, *lines: Any, limits: Limits = LIMITS) -> Opened:
    (answer,) = sqlserver._answers([*lines, line(None, "created")], [one], limits)
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


def test_a_lapsed_session_is_handed_on_as_recorded_with_its_own_tenant() -> None:
    old = old_of(wish(lease_microseconds=SECOND))
    one = wish(user_object_id=old.user_object_id, capacity_id=old.capacity_id)
    expected = Opened(Outcome.CREATED, opened(one, LIMITS, LATER), as_recorded(old, LATER))
    assert answer_to(one, found(0, "lapsed", old)) == expected


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
    assert json.loads(sqlserver._request([one], limits)) == {
        "term": 2_592_000_000_000,
        "lease": 4,
        "idle": 5,
        "heartbeat": 6,
        "wishes": [[0, *ids, 2, one.session_id, 7, 8, 9]],
    }


def test_a_request_leaves_out_limits_that_are_not_set() -> None:
    assert json.loads(sqlserver._request([], LIMITS)).keys() == {"term", "wishes"}


def test_instants_travel_as_text_with_all_their_decimals() -> None:
    sent = sqlserver._with_exact_instants(None, None, "?", (NOON.replace(tzinfo=None), "x", 7), None, False)
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
    sqlserver._wait_for_the_answer(None, cursor, "", (), context, False)
    assert cursor.messages == left


@pytest.mark.parametrize("url", ["mssql://host", "mssql:///tenure", "mssql://"])
def test_refuses_a_url_without_host_or_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlserver, "pyodbc", SimpleNamespace(drivers=list))
    with pytest.raises(ConfigurationError, match="must name host and database"):
        connection_url(make_url(url))


def test_takes_the_driver_that_the_url_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlserver, "pyodbc", SimpleNamespace(drivers=list))
    assert connection_url(make_url(f"{URL}?Driver=FreeTDS")).query["driver"] == "FreeTDS"


def test_leaves_what_the_url_says_about_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlserver, "pyodbc", SimpleNamespace(drivers=list))
    query = connection_url(make_url(f"{URL}?driver=x&keepalive=30&Encrypt=strict")).query
    assert (query["keepalive"], query["Encrypt"], query.get("KeepAlive")) == ("30", "strict", None)


def test_prefers_the_newest_driver_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "FreeTDS",
        "ODBC Driver 17 for SQL Server",
        "ODBC Driver 18 for SQL Server",
        "ODBC Driver 9 for SQL Server",
    ]
    monkeypatch.setattr(sqlserver, "pyodbc", SimpleNamespace(drivers=lambda: names))
    assert sqlserver.driver() == "ODBC Driver 18 for SQL Server"


def test_finds_the_driver_that_pip_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    package = SimpleNamespace(get_libs_dir=lambda: str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "mssql_python_odbc", package)
    monkeypatch.setattr(sqlserver, "pyodbc", SimpleNamespace(drivers=list))
    monkeypatch.setattr(sqlserver, "_linux", lambda: "rhel")
    monkeypatch.setattr(sqlserver.platform, "machine", lambda: "aarch64")
    library = tmp_path / "linux" / "rhel" / "arm64" / "lib" / "libmsodbcsql-18.6.so.2.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert sqlserver.driver() == str(library)


def test_says_what_is_missing_without_any_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlserver, "pyodbc", SimpleNamespace(drivers=list))
    monkeypatch.setattr(sqlserver, "_drivers_from_pip", list)
    with pytest.raises(ConfigurationError, match="no ODBC driver"):
        sqlserver.driver()


def test_says_what_is_missing_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlserver, "pyodbc", None)
    with pytest.raises(ConfigurationError, match="extra"):
        connection_url(make_url(URL))


@needs_odbc
async def test_has_more_threads_than_connections_can_block() -> None:
    store = SqlServerStore(make_url(f"{URL}?driver=x"), 10)
    assert store._threads._max_workers > 2 * 10
    await store.close()


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
    await asyncio.wait_for(ended.wait(), 1)
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
