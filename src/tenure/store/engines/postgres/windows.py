"""The statements that divide a window and render its chunks. PostgreSQL divides and renders, so that a window of a
million sessions does not create a million objects in this process.

The statements compute the same as `reads/intervals.py` and `domain/usage_records.py`, which the other engines use;
conformance tests compare the results. Six things keep the cost per session low:

- Each subquery of `_metered` ends with OFFSET 0. Otherwise PostgreSQL would merge the subqueries, and compute a value
  of an inner subquery again wherever an outer one uses it. Each subquery also repeats the ORDER BY of the innermost
  one. Otherwise PostgreSQL would sort again.
- The arithmetic is shorter for sessions that have been live for at most 30 days in the era, as most have.
- Most sessions are live for the whole window. So the bounds of the window, as text, and its length are parameters that
  these sessions share, instead of values that PostgreSQL computes for each session.
- The type `numeric` is avoided: see `_microseconds` and `_AMOUNT`.
- A record is filled by one `concat` with few arguments, because PostgreSQL copies each argument: the texts around the
  kind of a session are one argument, and so is the end of a record.
- The records of a chunk are returned as one text, instead of one row per session.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

from tenure.clock import MICROSECOND, instant_text
from tenure.domain.meter import PERIOD_MICROSECONDS
from tenure.domain.usage import CHUNK_MAX, KINDS, Chunk, Window
from tenure.domain.usage_records import Field, Template


def _window_arguments(window: Window) -> Sequence[Any]:
    """Returns the parameters $1 to $7, which are the same in all statements: the bounds of the window, the beginning of
    its era, the three factors, and the length of the window.
    """
    span = window.ended_at - window.started_at
    return (window.started_at, window.ended_at, window.era.started_at, *window.era.factors, span // MICROSECOND)


_LIVE = "s.closed_at IS NULL AND s.kind > 0 AND s.deadline_at > $1"
_CLOSED = "s.closed_at > $1"
_IDS = "user_object_id, tenant_object_id, capacity_id, "


def _sessions(condition: str, ids: str = "") -> str:
    """Returns a query for the sessions of the window that are not closed (`_LIVE`) or are closed (`_CLOSED`), each with
    its billable interval, `from_at` to `to_at`. The total of the session in this era is counted from `counts_from`.
    `ids` are additional columns.
    """
    end = "s.deadline_at" if condition == _LIVE else "s.closed_at"
    return f"""
SELECT s.session_id, {ids}s.kind, greatest(s.started_at, $1) AS from_at, least({end}, $2) AS to_at,
       greatest(s.started_at, $3) AS counts_from
  FROM sessions s WHERE s.started_at < $2 AND {condition}
"""  # noqa: S608


_PERIOD = PERIOD_MICROSECONDS
_FACTOR_MAX = ((1 << 63) - 1) // _PERIOD
"""Up to this factor, in millionths, the usage of one period can be computed in 64 bits."""


def _short_usage(microseconds: str) -> str:
    """Returns an expression for the usage of the duration in the column `microseconds`. The duration must be at most
    one period, and the factor at most _FACTOR_MAX. The expression has the same value as a call of tenure_usage_1, and
    takes a quarter of the steps.

    The expression rounds half to even: it rounds half up, and subtracts one if the value was exactly between two
    integers and the result is odd.
    """
    raised = f"(t.factor * t.{microseconds} + {_PERIOD // 2})"
    is_odd_half = f"{raised} % {_PERIOD} = 0 AND {raised} / {_PERIOD} % 2 = 1"
    return f"({raised} / {_PERIOD} - CASE WHEN {is_odd_half} THEN 1 ELSE 0 END)"


_FLOAT_MAX = timedelta(days=30 * 365)
"""A duration up to this one can be computed from its seconds as a float: `_microseconds` rounds twice, in `date_part`
and in the multiplication, and the two errors together are at most 0.13 µs."""


def _is_short(window: Window) -> bool:
    """Whether all durations in the window are at most _FLOAT_MAX."""
    return window.ended_at - window.era.started_at <= _FLOAT_MAX


def _microseconds(duration: str, *, is_short: bool) -> str:
    """Returns an expression for the duration in whole microseconds. The cast rounds to the nearest integer. `date_part`
    returns a float, which is faster than the numeric that `extract` returns.
    """
    seconds = f"date_part('epoch', {duration})" if is_short else f"extract(epoch FROM {duration})"
    return f"({seconds} * 1000000)::bigint"


def _metered(intervals: str, ids: str = "", *, is_short: bool) -> str:
    """Returns a query for the intervals that the query `intervals` returns, each with its usage in millionths, sorted
    by session id. `ids` are additional columns.
    """
    before = _microseconds("i.from_at - i.counts_from", is_short=is_short)
    length = _microseconds("i.to_at - i.from_at", is_short=is_short)
    return f"""
SELECT t.session_id, {ids}t.kind, t.from_at, t.to_at,
       CASE WHEN t.total <= {_PERIOD} AND t.factor <= {_FACTOR_MAX}
            THEN {_short_usage("total")} - {_short_usage("before")}
            ELSE tenure_usage_1(t.total, t.factor) - tenure_usage_1(t.before, t.factor) END AS usage
  FROM (SELECT b.*, b.before + b.length AS total
          FROM (SELECT i.*, CASE i.kind WHEN 1 THEN $4::bigint WHEN 2 THEN $5::bigint ELSE $6::bigint END AS factor,
                       CASE WHEN i.from_at = i.counts_from THEN 0 ELSE {before} END AS before,
                       CASE WHEN i.from_at = $1 AND i.to_at = $2 THEN $7::bigint ELSE {length} END AS length
                  FROM ({intervals}) i ORDER BY i.session_id OFFSET 0) b ORDER BY b.session_id OFFSET 0) t
 ORDER BY t.session_id OFFSET 0
"""  # noqa: S608


def _next(condition: str, ids: str = "") -> str:
    """Returns a query for the next $9 sessions after the session $8, or for the first ones if $8 is NULL. The LIMIT
    lets the scan of an index stop early; the caller limits the union of two such queries again.
    """
    is_next = "($8::text IS NULL OR s.session_id > $8::text::uuid)"
    return f"({_sessions(condition, ids)} AND {is_next} ORDER BY s.session_id LIMIT $9)"


def _divide(*, is_short: bool, ids: str = "", columns: str = "") -> str:
    """Returns a query for the bounds of the next chunks, with up to $10 sessions each. `columns` are additional
    aggregates over the sessions `m` of a chunk.

    The sessions are already sorted. The ORDER BY in the aggregates makes PostgreSQL group them in this order, instead
    of putting them into a hash table.
    """
    union = f"{_next(_LIVE, ids)} UNION ALL {_next(_CLOSED, ids)}"
    following = f"SELECT * FROM ({union}) u ORDER BY session_id LIMIT $9"  # noqa: S608
    all_ids = "array_agg(m.session_id ORDER BY m.session_id)"
    return f"""
SELECT ({all_ids})[1]::text, ({all_ids})[count(*)]::text, count(*), sum(m.usage)::bigint{columns}
  FROM (SELECT m.*, (row_number() OVER (ORDER BY m.session_id) - 1) / $10::bigint AS chunk
          FROM ({_metered(following, ids, is_short=is_short)}) m) m
 GROUP BY m.chunk ORDER BY m.chunk
"""  # noqa: S608


@cache
def _divide_statement(is_short: bool) -> str:
    return _divide(is_short=is_short)


def divide_statement(window: Window) -> str:
    return _divide_statement(_is_short(window))


def divide_arguments(window: Window, after: str | None, limit: int) -> Sequence[Any]:
    return (*_window_arguments(window), after, limit * CHUNK_MAX, CHUNK_MAX)


# The statements that render also have the parameters from $11 on, which `_render_arguments` returns.

_INSTANT = """
CASE WHEN m.{column} = {bound} THEN {text}::text
     ELSE to_char(m.{column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END
"""
# The type numeric formats any amount. Most amounts are small and have no trailing zeros. Such an amount is formatted
# faster as two arguments of `concat`: "0." with the leading zeros, and the number of millionths. For other amounts, the
# second argument is NULL, which `concat` ignores.
_IS_SMALL = "m.usage > 0 AND m.usage < 1000000 AND m.usage % 10 > 0"
_AMOUNT = f"""
CASE WHEN {_IS_SMALL}
     THEN CASE WHEN m.usage < 10 THEN '0.00000' WHEN m.usage < 100 THEN '0.0000' WHEN m.usage < 1000 THEN '0.000'
               WHEN m.usage < 10000 THEN '0.00' WHEN m.usage < 100000 THEN '0.0' ELSE '0.' END
     ELSE trim_scale(m.usage * 0.000001)::text END, CASE WHEN {_IS_SMALL} THEN m.usage END
"""
_VALUES = {
    Field.SESSION_ID: "m.session_id",
    Field.USER_OBJECT_ID: "m.user_object_id",
    Field.TENANT_OBJECT_ID: "m.tenant_object_id",
    Field.CAPACITY_ID: "m.capacity_id",
    Field.USAGE: _AMOUNT,
    Field.FROM_AT: _INSTANT.format(column="from_at", bound="$1", text="$11"),
    Field.TO_AT: _INSTANT.format(column="to_at", bound="$2", text="$12"),
}
_FIRST_TEXT = 14
"""The parameters from this one on are the texts of the template."""

# A part of a template: a field, one text for all kinds of sessions, or one text per kind.
_Part = Field | tuple[str, ...]


def _parts(template: Template) -> Sequence[_Part]:
    """The template, with the kind and its neighbouring texts merged into one text per kind."""
    parts: list[_Part] = []
    for part in template:
        texts = (part,) if isinstance(part, str) else tuple(map(str, KINDS))
        if isinstance(part, Field) and part is not Field.KIND:
            parts.append(part)
        elif parts and isinstance(before := parts[-1], tuple):
            parts[-1] = tuple(before[number % len(before)] + texts[number % len(texts)] for number in range(len(KINDS)))
        else:
            parts.append(texts)
    return [part if isinstance(part, Field) or len(set(part)) > 1 else part[:1] for part in parts]


def _tail_start(parts: Sequence[_Part]) -> int:
    """Returns the index at which the tail of a template begins. The tail consists of the texts and instants at the end:
    they are the same for all sessions that are live for the whole window.
    """
    start = len(parts)
    while start and (parts[start - 1] in (Field.FROM_AT, Field.TO_AT) or len(_texts(parts[start - 1])) == 1):
        start -= 1
    return start


def _texts(part: _Part) -> tuple[str, ...]:
    return () if isinstance(part, Field) else part


def _record(shape: Sequence[Field | int]) -> str:
    """Returns an expression for the record of the session `m`. A number in the shape stands for that many texts: one
    for all kinds, or one per kind.
    """
    number, values = _FIRST_TEXT, []
    for part in shape:
        if isinstance(part, Field):
            values.append(_VALUES[part])
            continue
        cases = " ".join(f"WHEN {kind} THEN ${number + place}::text" for place, kind in enumerate(KINDS))
        values.append(f"${number}::text" if part == 1 else f"CASE m.kind {cases} END")
        number += part
    start = _tail_start([part if isinstance(part, Field) else ("",) * part for part in shape])
    tail = ", ".join(["''", *values[start:]])
    values[start:] = [f"CASE WHEN m.from_at = $1 AND m.to_at = $2 THEN $13::text ELSE concat({tail}) END"]
    return f"concat({', '.join(values)})"


def _shape(template: Template) -> tuple[Field | int, ...]:
    return tuple(part if isinstance(part, Field) else len(part) for part in _parts(template))


def _render_arguments(window: Window, template: Template) -> Sequence[Any]:
    bounds = (instant_text(window.started_at), instant_text(window.ended_at))
    instants = dict(zip((Field.FROM_AT, Field.TO_AT), bounds, strict=True))
    parts = _parts(template)
    tail = [instants[part] if isinstance(part, Field) else part[0] for part in parts[_tail_start(parts) :]]
    return (*bounds, "".join(tail), *(text for part in parts for text in _texts(part)))


def divide_and_render_statement(window: Window, template: Template) -> str:
    return _divide_and_render_statement(_shape(template), _is_short(window))


@cache
def _divide_and_render_statement(shape: Sequence[Field | int], is_short: bool) -> str:
    records = f", string_agg({_record(shape)}, ',' ORDER BY m.session_id)"
    return _divide(is_short=is_short, ids=_IDS, columns=records)


def divide_and_render_arguments(window: Window, after: str | None, limit: int, template: Template) -> Sequence[Any]:
    return (*divide_arguments(window, after, limit), *_render_arguments(window, template))


def render_statement(window: Window, template: Template) -> str:
    return _render_statement(_shape(template), _is_short(window))


@cache
def _render_statement(shape: Sequence[Field | int], is_short: bool) -> str:
    """Returns the statement for templates of this shape.

    The statement reads the live sessions chunk by chunk, by the index on ids. It reads the other sessions, which closed
    after the start of the window, only once, for all chunks together. The planner knows the bounds of this second read,
    so it can choose between the index on ids and the index on ends.

    ORDER BY an expression makes PostgreSQL sort the chunks, so it renders all of them before it sends the first.
    Otherwise, while this process is busy with other chunks, PostgreSQL would wait after each chunk until this process
    reads it.
    """
    live = f"{_sessions(_LIVE, _IDS)} AND s.session_id BETWEEN c.first_id AND c.last_id"
    closed = "SELECT k.* FROM closed k WHERE k.session_id BETWEEN c.first_id AND c.last_id"
    union = f"SELECT * FROM ({live} UNION ALL {closed}) u ORDER BY session_id"  # noqa: S608
    metered = _metered(union, _IDS, is_short=is_short)
    return f"""
WITH closed AS MATERIALIZED (
    {_sessions(_CLOSED, _IDS)}
    AND s.session_id BETWEEN ($8::text[])[1]::uuid AND ($9::text[])[$10::int]::uuid)
SELECT coalesce(r.records, ''), r.sessions, r.usage
  FROM unnest($8::text[]::uuid[], $9::text[]::uuid[]) WITH ORDINALITY AS c(first_id, last_id, position)
 CROSS JOIN LATERAL (
       SELECT string_agg({_record(shape)}, ',') AS records, count(*) AS sessions,
              coalesce(sum(m.usage), 0)::bigint AS usage
         FROM ({metered}) m) r
 ORDER BY c.position + 0
"""  # noqa: S608


def render_arguments(window: Window, chunks: Sequence[Chunk], template: Template) -> Sequence[Any]:
    first, last = ([chunk.first_session_id for chunk in chunks], [chunk.last_session_id for chunk in chunks])
    return (*_window_arguments(window), first, last, len(chunks), *_render_arguments(window, template))
