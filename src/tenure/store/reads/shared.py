"""The reads that all engines share. Each is a function that takes a connection, and runs as a short read, a long read
or a page.

An engine that has a better statement for a read overrides the method of this read.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from tenure.domain.usage import Chunk, UsageSumQuery, UsageSums, Window
from tenure.domain.usage_records import DividedChunk, Records, Template
from tenure.store import migrate
from tenure.store.limits import AUDIT_SECONDS, LONG_READ_SECONDS
from tenure.store.reads import (
    alerts,
    capacities,
    events,
    history,
    instances,
    intervals,
    keys,
    leases,
    session_lapses,
    session_list,
    session_matches,
    sessions,
    submissions,
    usage,
    usage_sums,
)

P = ParamSpec("P")
T = TypeVar("T")
Read = Callable[Concatenate[Connection, P], T]
Method = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


def _short(read: Read[P, T]) -> Method[P, T]:
    """A read whose cost does not grow with the table."""

    async def method(store: "SharedReads", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._read(lambda connection: read(connection, *args, **kwargs))  # noqa: SLF001 - of its own class

    return method


def _long(read: Read[P, T], seconds: int = LONG_READ_SECONDS, *, one_core: bool = False) -> Method[P, T]:
    """A read whose cost grows with the table. No writer waits for the end of the read. Long reads together leave at
    least one connection for short reads, if the store has several connections.

    With `one_core`, the read uses only one core of the database, even if it would finish earlier on several. This
    option is for reads in the background, and for counts that every open console repeats.
    """

    async def method(store: "SharedReads", /, *args: P.args, **kwargs: P.kwargs) -> T:
        def run(connection: Connection) -> T:
            if one_core:
                store._use_one_core(connection)  # noqa: SLF001
            return read(connection, *args, **kwargs)

        return await store._read_long(run, seconds)  # noqa: SLF001

    return method


def _page(read: Read[P, T]) -> Method[P, T]:
    """A read that usually takes as little time as a short read. It takes longer if one capacity has very many sessions,
    or if the filter matches few of many rows.

    So it runs as a long read. On PostgreSQL, it need not wait for other long reads, such as the counts of all sessions,
    which every open overview of the console repeats.
    """

    async def method(store: "SharedReads", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._read_page(lambda connection: read(connection, *args, **kwargs))  # noqa: SLF001

    return method


class SharedReads:
    _index_hint = ""
    """Empty on an engine whose statements read one snapshot. On any other engine, a hint that makes a read of usage use
    one index only: between reads of two indexes, a session could be closed, and then be missed or read twice."""

    async def _read(self, read: Callable[[Connection], T]) -> T:
        raise NotImplementedError

    async def _read_long(self, read: Callable[[Connection], T], seconds: int = LONG_READ_SECONDS) -> T:
        raise NotImplementedError

    async def _read_page(self, read: Callable[[Connection], T]) -> T:
        """PostgreSQL overrides this method, so that a page need not wait for the long reads in progress."""
        return await self._read_long(read)

    def _use_one_core(self, connection: Connection) -> None:
        """Makes the rest of the transaction use one core. SQLite does so anyway; SQL Server has no such setting for a
        transaction.
        """

    get_session = _short(sessions.get_session)
    list_sessions = _short(session_list.list_sessions)
    list_next_lapses = _short(session_lapses.list_next_lapses)
    count_live = _short(session_matches.count_live)
    count_matches = _short(session_matches.count_matches)
    read_history = _short(history.read_history)
    count_sessions = _long(sessions.count_sessions, one_core=True)
    count_active_sessions = _long(sessions.count_active_sessions)
    find_overlaps = _long(sessions.find_overlaps, AUDIT_SECONDS)

    get_capacity = _page(capacities.get_capacity)
    list_capacities = _page(capacities.list_capacities)

    list_leases = _short(leases.list_leases)
    list_terms = _short(leases.list_terms)
    list_all_terms = _short(leases.list_all_terms)
    read_board = _short(leases.read_board)
    list_jobs = _short(leases.list_jobs)
    list_runs = _short(leases.list_runs)

    list_pending = _short(submissions.list_pending)
    read_envelopes = _short(submissions.read_envelopes)
    list_orphaned_attempts = _short(submissions.list_orphaned_attempts)
    get_submission = _short(submissions.get_submission)
    list_submissions = _short(submissions.list_submissions)
    count_submissions = _short(submissions.count_submissions)

    list_undivided_windows = _short(usage.list_undivided_windows)
    list_unsent_windows = _short(usage.list_unsent_windows)
    find_unsent_usage = _long(usage.find_unsent_usage)
    divide_window = _long(intervals.divide_window)
    find_chunks = _short(usage.find_chunks)
    find_delivered_windows = _short(usage.find_delivered_windows)
    read_intervals = _long(intervals.read_intervals)
    list_intervals = _long(intervals.list_intervals, AUDIT_SECONDS)

    async def render_chunks(self, window: Window, chunks: Sequence[Chunk], template: Template) -> Sequence[Records]:
        def render(connection: Connection) -> Sequence[Records]:
            return intervals.render_chunks(connection, window, chunks, template, self._index_hint)

        return await self._read_long(render)

    async def divide_and_render(
        self, window: Window, after: str | None, limit: int, template: Template
    ) -> Sequence[DividedChunk]:
        def divide(connection: Connection) -> Sequence[DividedChunk]:
            return intervals.divide_and_render(connection, window, after, limit, template, self._index_hint)

        return await self._read_long(divide)

    list_windows = _short(usage.list_windows)
    get_window = _short(usage.get_window)

    async def sum_usage(self, sum_query: UsageSumQuery, after: str | None, limit: int) -> UsageSums:
        """A quick sum is a short read if possible, so that it does not wait for long reads such as `divide_window`."""
        arguments = (sum_query, after, limit, self._index_hint)
        if sum_query.quick and usage_sums.can_use_marks(sum_query):
            found = await self._read(lambda connection: usage_sums.sum_shortly(connection, *arguments))
            if found is not None:
                return found
        return await self._read_long(lambda connection: usage_sums.sum_usage(connection, *arguments))

    list_marks = _short(usage.list_marks)
    read_mark = _long(usage.read_mark)
    sum_mark = _long(usage_sums.sum_mark, one_core=True)
    read_lag = _short(usage.read_lag)
    read_installation = _short(usage.read_installation)
    list_deliveries = _short(usage.list_deliveries)

    find_key = _short(keys.find_key)
    list_keys = _short(keys.list_keys)
    read_keys_version = _short(keys.read_keys_version)
    get_audit_entry = _short(keys.get_audit_entry)
    list_audit_log = _page(keys.list_audit_log)

    list_alerts = _short(alerts.list_alerts)
    find_alerts = _short(alerts.find_alerts)
    read_observations = _short(alerts.read_observations)
    read_gauges = _long(alerts.read_gauges, one_core=True)
    read_events = _short(events.read_events)
    find_event_batches = _short(events.find_event_batches)

    list_instances = _short(instances.list_instances)
    read_activity = _page(instances.read_activity)

    schema_revision = _short(migrate.current_revision)
