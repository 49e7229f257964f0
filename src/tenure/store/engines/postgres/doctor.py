"""The reads of `tenure doctor` from PostgreSQL: limits and statistics."""

from collections.abc import Sequence

from sqlalchemy import Connection, text

from tenure.domain.doctor import ReadOnly, ServerFacts, TableChurn
from tenure.store.reads.sessions import read_now
from tenure.store.tables import metadata

# A limit of -1 means no limit. `reset_val` is the default of the server, the database or the role, regardless of what
# this connection has set for itself.
_SERVER = text("""
SELECT
    current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true), '0')::int AS usable,
    (SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS database_limit,
    (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS role_limit,
    (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL) AS used,
    pg_is_in_recovery() AS is_standby,
    (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only') = 'on' AS is_read_only
""")
_CHURN = text("""
SELECT relname, n_live_tup, n_dead_tup, n_tup_ins, n_tup_upd, n_tup_hot_upd
FROM pg_stat_user_tables
WHERE schemaname = current_schema() AND relname = ANY (:tables)
ORDER BY relname
""")
POOLER_SECONDS = 3.0
"""How long `tenure doctor` tries to detect a pooler. An instance that starts tries for longer. The doctor must finish
even if the database does not answer, and this check has a time limit of five seconds."""


def read_server(connection: Connection) -> ServerFacts:
    now = read_now(connection)
    row = connection.execute(_SERVER).one()
    limits = (row.usable, row.database_limit, row.role_limit)
    reasons = {ReadOnly.STANDBY: row.is_standby, ReadOnly.SETTING: row.is_read_only}
    return ServerFacts(
        now=now,
        connections_max=min(limit for limit in limits if limit is not None and limit >= 0),
        connections_used=row.used,
        read_only=next((reason for reason, applies in reasons.items() if applies), None),
    )


def read_churn(connection: Connection) -> Sequence[TableChurn]:
    rows = connection.execute(_CHURN, {"tables": list(metadata.tables)})
    return [
        TableChurn(table=table, live_rows=live, dead_rows=dead, inserts=inserts, updates=updates, hot_updates=hot)
        for table, live, dead, inserts, updates, hot in rows
    ]
