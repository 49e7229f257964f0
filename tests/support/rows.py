"""Fills tables to a realistic size, with statements that generate the rows in the database."""

import asyncpg

from tenure.store.reads.submissions import contract_text
from tests.support.databases import Database
from tests.support.usage import CONTRACT

COLUMNS = (
    "session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at, check_at, "
    "last_heartbeat_at, last_activity_at, modified_at, closed_at, kind, state, lapse_reason, close_reason"
)


async def fill_postgres(url: str, count: int) -> None:
    """Inserts sessions, half of them live, 30 % of one tenant, 20 % on one capacity.

    Drops the indexes first and creates them again at the end, because this is faster.
    """
    connection = await asyncpg.connect(url)
    definitions = await _drop_indexes(connection, "sessions")
    await connection.execute(
        f"""
        INSERT INTO sessions ({COLUMNS})
        SELECT gen_random_uuid(), md5('t' || CASE WHEN g % 10 < 3 THEN 0 ELSE g % 1000 END)::uuid, md5('u' || g)::uuid,
               md5('c' || CASE WHEN g % 10 < 2 THEN 0 ELSE g % 5000 END)::uuid, s,
               s + interval '30 days', s + interval '30 days', CASE WHEN g % 2 = 0 THEN s + interval '30 days' END,
               s, s, s, CASE WHEN g % 2 = 1 THEN s + interval '1 hour' END, 1 + g % 3,
               (CASE WHEN g % 2 = 0 THEN 'created' ELSE 'closed' END)::session_state, 'EXPIRED',
               CASE WHEN g % 2 = 0 THEN NULL WHEN g % 100000 = 1 THEN 'EVICTED' ELSE 'TERMINATED' END
          FROM (SELECT g, now() - interval '20 days' + g * (interval '6 days' / {count}) AS s
                  FROM generate_series(1, {count}) AS g) AS made
        """
    )
    for definition in definitions:
        await connection.execute(definition)
    await connection.execute("VACUUM ANALYZE sessions")
    await connection.close()


async def _drop_indexes(connection: asyncpg.Connection, table: str) -> list[str]:
    """Drops all indexes but the primary key, and returns their definitions."""
    indexes = await connection.fetch(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = $1 AND indexname <> $1 || '_pkey'", table
    )
    for index in indexes:
        await connection.execute(f"DROP INDEX {index['indexname']}")
    return [index["indexdef"] for index in indexes]


async def _drop_sqlite_indexes(database: Database, table: str) -> list[str]:
    """Drops all indexes but the primary key, and returns their definitions."""
    found = f"SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = '{table}' AND sql IS NOT NULL"
    indexes = await database.rows(found)
    for index in indexes:
        await database.execute(f"DROP INDEX {index['name']}")
    return [index["sql"] for index in indexes]


async def fill_sqlite(database: Database, count: int) -> None:
    """Inserts sessions as `fill_postgres` does, but all of them started in 1970, so none is live."""
    definitions = await _drop_sqlite_indexes(database, "sessions")
    await database.execute(
        f"""
        INSERT INTO sessions ({COLUMNS})
        WITH RECURSIVE made (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM made WHERE g < {count})
        SELECT printf('%08x-0000-7000-8000-000000000000', g),
               printf('%08x-0000-4000-8000-00000000000a', CASE WHEN g % 10 < 3 THEN 0 ELSE g % 1000 END),
               printf('%08x-0000-4000-8000-00000000000b', g),
               printf('%08x-0000-4000-8000-00000000000c', CASE WHEN g % 10 < 2 THEN 0 ELSE g % 5000 END),
               g * 1000, g * 1000 + 2592000000000, g * 1000 + 2592000000000,
               CASE WHEN g % 2 = 0 THEN g * 1000 + 2592000000000 END, g * 1000, g * 1000, g * 1000,
               CASE WHEN g % 2 = 1 THEN g * 1000 + 1 END, 1 + g % 3,
               CASE WHEN g % 2 = 0 THEN 'created' ELSE 'closed' END, 'EXPIRED',
               CASE WHEN g % 2 = 0 THEN NULL WHEN g % 100000 = 1 THEN 'EVICTED' ELSE 'TERMINATED' END
          FROM made
        """
    )
    for definition in definitions:
        await database.execute(definition)
    await database.execute("ANALYZE")


SUBMISSION_COLUMNS = (
    "submission_id, created_at, last_modified_at, next_attempt_at, ended_at, attempts, failures, state, gateway, "
    "caller, idempotency_key, delivery_key, digest, contract, payload"
)
ATTEMPT_COLUMNS = "submission_id, number, epoch, holder, started_at, ended_at, outcome"
STATE = "CASE WHEN g % 100 < 70 THEN 'pending' WHEN g % 100 < 98 THEN 'delivered' ELSE 'failed' END"
"""Most submissions are pending, as in a large backlog, because the executor must be fast then. None is cancelled."""
GATEWAY = "CASE WHEN g <= {count} * 3 / 10 THEN 'gateway old' ELSE 'gateway ' || g % 7 END"
"""One gateway has many submissions, but no recent ones."""


async def fill_submissions_postgres(url: str, count: int, state: str = STATE) -> None:
    """Inserts submissions, each with one ended attempt."""
    connection = await asyncpg.connect(url)
    definitions = await _drop_indexes(connection, "submissions")
    await connection.execute(
        f"""
        INSERT INTO submissions ({SUBMISSION_COLUMNS})
        SELECT (lpad(to_hex(g), 12, '0') || '70008000000000000000')::uuid, s, s,
               CASE state WHEN 'pending' THEN s END, CASE WHEN state <> 'pending' THEN s END, 1, 1, state,
               {GATEWAY.format(count=count)}, 'caller ' || g % 1000, 'key ' || g, g, decode(md5(g::text), 'hex'),
               '{{}}', ''
          FROM (SELECT g, {state} AS state, now() - interval '2 days' + g * interval '1 second' / 10 AS s
                  FROM generate_series(1, {count}) AS g) AS made
        """
    )
    await connection.execute(
        f"INSERT INTO submission_attempts ({ATTEMPT_COLUMNS}) "
        "SELECT submission_id, 1, 1, 'one', created_at, created_at, 'failed' FROM submissions"
    )
    for definition in definitions:
        await connection.execute(definition)
    await connection.execute("VACUUM ANALYZE submissions")
    await connection.execute("VACUUM ANALYZE submission_attempts")
    await connection.close()


async def fill_submissions_sqlite(database: Database, count: int) -> None:
    """Inserts submissions, each with one ended attempt."""
    definitions = await _drop_sqlite_indexes(database, "submissions")
    await database.execute(
        f"""
        INSERT INTO submissions ({SUBMISSION_COLUMNS})
        WITH RECURSIVE made (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM made WHERE g < {count})
        SELECT printf('%08x-0000-7000-8000-000000000000', g), g * 1000, g * 1000,
               CASE WHEN g % 100 < 70 THEN g * 1000 END, CASE WHEN g % 100 >= 70 THEN g * 1000 END, 1, 1, {STATE},
               {GATEWAY.format(count=count)}, 'caller ' || g % 1000, 'key ' || g, g, x'00', '{{}}', x''
          FROM made
        """
    )
    await database.execute(
        f"INSERT INTO submission_attempts ({ATTEMPT_COLUMNS}) "
        "SELECT submission_id, 1, 1, 'one', created_at, created_at, 'failed' FROM submissions"
    )
    for definition in definitions:
        await database.execute(definition)
    await database.execute("ANALYZE")


CHUNKS_A_WINDOW = 100
DELIVERED_AT = "CASE WHEN g % 10 < 7 THEN {at} END"
WINDOW_COLUMNS = (
    "window_id, installation_id, started_at, ended_at, cut_at, chunked_at, delivered_at, usage_millionths, sessions, "
    "era, contract"
)
CHUNK_COLUMNS = (
    "window_id, chunk, sessions, first_session_id, last_session_id, submission_id, delivered_at, usage_millionths"
)


async def fill_usage_postgres(url: str, chunks: int) -> None:
    """Inserts windows of one minute and their chunks, most of them delivered. The first window begins 50 days ago,
    before the installation was created.
    """
    connection = await asyncpg.connect(url)
    await connection.execute("INSERT INTO usage_eras VALUES (1, now() - interval '99 days', 1000000, 2000000, 3000000)")
    await connection.execute(
        f"""
        INSERT INTO usage_windows ({WINDOW_COLUMNS})
        SELECT g, gen_random_uuid(), s, s + interval '1 minute', s, s, {DELIVERED_AT.format(at="s")}, g, g, 1,
               '{contract_text(CONTRACT)}'
          FROM (SELECT g, now() - interval '50 days' + g * interval '1 minute' AS s
                  FROM generate_series(1, {chunks // CHUNKS_A_WINDOW}) AS g) AS made
        """
    )
    await connection.execute(
        f"""
        INSERT INTO usage_chunks ({CHUNK_COLUMNS})
        SELECT window_id, g, g, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), delivered_at, g
          FROM usage_windows CROSS JOIN generate_series(1, {CHUNKS_A_WINDOW}) AS g
        """
    )
    await connection.execute("UPDATE installation SET last_window_id = (SELECT max(window_id) FROM usage_windows)")
    for table in ("usage_windows", "usage_chunks"):
        await connection.execute(f"VACUUM ANALYZE {table}")
    await connection.close()


async def fill_capacities_postgres(url: str, count: int) -> None:
    """Inserts capacities without sessions, half of them of one tenant."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        f"""
        INSERT INTO capacities (capacity_id, tenant_object_id, created_at, modified_at, slack, when_full)
        SELECT gen_random_uuid(), md5('t' || CASE WHEN g % 2 = 0 THEN 0 ELSE g % 1000 END)::uuid, now(), now(), 0,
               'reject'
          FROM generate_series(1, {count}) AS g
        """
    )
    await connection.execute("VACUUM ANALYZE capacities")
    await connection.close()
