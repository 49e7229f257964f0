"""The statements that divide a window and render its chunks. PostgreSQL does both: a million sessions never become a
million objects of this process.

They compute the same as `reads/intervals.py` and `domain/usage_records.py`, which the other engines use; conformance
tests compare the results. Four things keep the cost per session low:

- Each layer of a statement ends with OFFSET 0. Otherwise PostgreSQL would merge the layers, and compute a value of an
  inner layer again for each of its uses in an outer one. Each layer also repeats the ORDER BY of the innermost one.
  Otherwise PostgreSQL would sort again.
- The arithmetic is shorter for sessions that are younger than the period of 30 days, as most are.
- Most sessions are live for a whole window. Their bounds, as text, and their time in the window are parameters.
- A chunk is returned as one text.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from tenure.clock import MICROSECOND, instant_text
from tenure.domain.meter import PERIOD_MICROSECONDS
from tenure.domain.usage import CHUNK_MAX, Chunk, Window
from tenure.domain.usage_records import Field, Template
from tenure.store.engines.postgres import rows

# The parameters $1 to $7 of both statements.


def _window_arguments(window: Window) -> Sequence[Any]:
    span = window.ended_at - window.started_at
    return (window.started_at, window.ended_at, window.era.started_at, *window.era.factors, span // MICROSECOND)


_LIVE = "s.closed_at IS NULL AND s.kind > 0 AND s.deadline_at > $1"
_CLOSED = "s.closed_at > $1"
_IDS = "user_object_id, tenant_object_id, capacity_id, "


def _sessions(condition: str, ids: str = "") -> str:
    """The sessions of the window, live or closed, with their billable intervals."""
    end = "s.deadline_at" if condition == _LIVE else "s.closed_at"
    return f"""
SELECT s.session_id, {ids}s.kind, greatest(s.started_at, $1) AS from_at, least({end}, $2) AS to_at,
       greatest(s.started_at, $3) AS counts_from
  FROM sessions s WHERE s.started_at < $2 AND {condition}
"""  # noqa: S608


_PERIOD = PERIOD_MICROSECONDS
_FACTOR_MAX = ((1 << 63) - 1) // _PERIOD
"""Up to this factor, in millionths, the usage of one period is computed without exceeding 64 bits."""


def _short_usage(microseconds: str) -> str:
    """The same as tenure_usage_1, in a third of the steps, for at most a period and _FACTOR_MAX."""
    product = f"t.factor * t.{microseconds}"
    is_up = f"2 * ({product} % {_PERIOD}) + {product} / {_PERIOD} % 2 > {_PERIOD}"
    return f"({product} / {_PERIOD} + CASE WHEN {is_up} THEN 1 ELSE 0 END)"


def _metered(intervals: str, ids: str = "") -> str:
    """The intervals, which are sorted by id, each with its usage in millionths."""
    return f"""
SELECT t.session_id, {ids}t.kind, t.from_at, t.to_at,
       CASE WHEN t.total <= {_PERIOD} AND t.factor <= {_FACTOR_MAX}
            THEN {_short_usage("total")} - {_short_usage("before")}
            ELSE tenure_usage_1(t.total, t.factor) - tenure_usage_1(t.before, t.factor) END AS usage
  FROM (SELECT b.*, b.before + b.length AS total
          FROM (SELECT i.*, CASE i.kind WHEN 1 THEN $4::bigint WHEN 2 THEN $5::bigint ELSE $6::bigint END AS factor,
                       CASE WHEN i.from_at = i.counts_from THEN 0
                            ELSE (extract(epoch FROM i.from_at - i.counts_from) * 1000000)::bigint END AS before,
                       CASE WHEN i.from_at = $1 AND i.to_at = $2 THEN $7::bigint
                            ELSE (extract(epoch FROM i.to_at - i.from_at) * 1000000)::bigint END AS length
                  FROM ({intervals}) i ORDER BY i.session_id OFFSET 0) b ORDER BY b.session_id OFFSET 0) t
 ORDER BY t.session_id OFFSET 0
"""  # noqa: S608


def _next(condition: str) -> str:
    """The next sessions after $8. The LIMIT lets the scan of an index stop early; the caller limits the union again."""
    is_next = "($8::text IS NULL OR s.session_id > $8::text::uuid)"
    return f"({_sessions(condition)} AND {is_next} ORDER BY s.session_id LIMIT $9)"


DIVIDE = f"""
SELECT (array_agg(n.session_id))[1]::text, (array_agg(n.session_id))[count(*)]::text, count(*), sum(n.usage)::bigint
  FROM (SELECT m.session_id, m.usage, (row_number() OVER (ORDER BY m.session_id) - 1) / $10::bigint AS chunk
          FROM ({_metered(f"SELECT * FROM ({_next(_LIVE)} UNION ALL {_next(_CLOSED)}) u ORDER BY session_id LIMIT $9")})
               m) n
 GROUP BY n.chunk ORDER BY n.chunk
"""  # noqa: S608


def divide_arguments(window: Window, after: str | None, limit: int) -> Sequence[Any]:
    return (*_window_arguments(window), after, limit * CHUNK_MAX, CHUNK_MAX)


_INSTANT = """
CASE WHEN m.{column} = {bound} THEN {text}::text
     ELSE to_char(m.{column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END
"""
# The type numeric formats any amount. Most amounts are small and have no trailing zeros: these are formatted faster as
# integers.
_AMOUNT = """
CASE WHEN m.usage > 0 AND m.usage < 1000000 AND m.usage % 10 > 0
     THEN concat(CASE WHEN m.usage < 10 THEN '0.00000' WHEN m.usage < 100 THEN '0.0000' WHEN m.usage < 1000 THEN '0.000'
                      WHEN m.usage < 10000 THEN '0.00' WHEN m.usage < 100000 THEN '0.0' ELSE '0.' END, m.usage)
     ELSE trim_scale(m.usage * 0.000001)::text END
"""
_VALUES = {
    Field.SESSION_ID: "m.session_id",
    Field.USER_OBJECT_ID: "m.user_object_id",
    Field.TENANT_OBJECT_ID: "m.tenant_object_id",
    Field.CAPACITY_ID: "m.capacity_id",
    Field.KIND: "m.kind",
    Field.USAGE: _AMOUNT,
    Field.FROM_AT: _INSTANT.format(column="from_at", bound="$1", text="$8"),
    Field.TO_AT: _INSTANT.format(column="to_at", bound="$2", text="$9"),
}
_FIRST_TEXT = 15
"""The parameters from this one on are the texts of the template."""


def _tail_start(parts: Sequence[Field | str | None]) -> int:
    """Where the texts and instants at the end of a template begin. They are the same for all sessions that are live for
    the whole window.
    """
    start = len(parts)
    while start and (parts[start - 1] in (Field.FROM_AT, Field.TO_AT) or not isinstance(parts[start - 1], Field)):
        start -= 1
    return start


def render_statement(template: Template) -> str:
    return _render_statement(tuple(part if isinstance(part, Field) else None for part in template))


@cache
def _render_statement(parts: Sequence[Field | None]) -> str:
    """The statement for templates with these fields; None stands for a text.

    The live sessions are read chunk by chunk, by the index on ids. The sessions that closed after the window began are
    read once for all chunks. The planner knows the bounds of this read, so it can choose between the index on ids and
    the index on ends.

    ORDER BY an expression makes PostgreSQL sort the chunks, so it renders all of them before it sends the first.
    Otherwise it would wait after each chunk until the service reads it, and the service is busy with other chunks.
    """
    number, values = _FIRST_TEXT, []
    for part in parts:
        values.append(f"${number}::text" if part is None else _VALUES[part])
        number += part is None
    start = _tail_start(parts)
    tail = ", ".join(["''", *values[start:]])
    values[start:] = [f"CASE WHEN m.from_at = $1 AND m.to_at = $2 THEN $14::text ELSE concat({tail}) END"]
    live = f"{_sessions(_LIVE, _IDS)} AND s.session_id BETWEEN c.first_id AND c.last_id"
    closed = "SELECT k.* FROM closed k WHERE k.session_id BETWEEN c.first_id AND c.last_id"
    return f"""
WITH closed AS MATERIALIZED (
    {_sessions(_CLOSED, _IDS)} AND s.session_id BETWEEN $12::text::uuid AND $13::text::uuid)
SELECT coalesce(r.records, ''), r.sessions, r.usage
  FROM unnest($10::text::uuid[], $11::text::uuid[]) WITH ORDINALITY AS c(first_id, last_id, position)
 CROSS JOIN LATERAL (
       SELECT string_agg(concat({", ".join(values)}), ',') AS records, count(*) AS sessions,
              coalesce(sum(m.usage), 0)::bigint AS usage
         FROM ({_metered(f"SELECT * FROM ({live} UNION ALL {closed}) u ORDER BY session_id", _IDS)}) m) r
 ORDER BY c.position + 0
"""  # noqa: S608


def render_arguments(window: Window, chunks: Sequence[Chunk], template: Template) -> Sequence[Any]:
    bounds = (instant_text(window.started_at), instant_text(window.ended_at))
    first, last = ([chunk.first_session_id for chunk in chunks], [chunk.last_session_id for chunk in chunks])
    instants = dict(zip((Field.FROM_AT, Field.TO_AT), bounds, strict=True))
    tail = "".join(instants[part] if isinstance(part, Field) else part for part in template[_tail_start(template) :])
    texts = [part for part in template if not isinstance(part, Field)]
    ids = (rows.array(first), rows.array(last), first[0], last[-1])
    return (*_window_arguments(window), *bounds, *ids, tail, *texts)
