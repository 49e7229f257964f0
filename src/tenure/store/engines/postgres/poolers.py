"""Detects a connection pooler that gives each transaction another backend.

Tenure needs a server session per connection: it prepares statements, sets timeouts once per connection, and listens for
notifications. Behind a pooler in transaction mode, all of this belongs to one backend, and the next transaction may get
another one. The errors that this causes would be rare and misleading, so Tenure refuses to start.

To detect such a pooler, two connections ask which backend serves them. While the second one is in a transaction, its
backend cannot serve the first one. In session mode and without a pooler, the first connection keeps its backend, and
the second has another. Behind a pooler in transaction mode, either the second connection gets the backend of the first,
or the first gets a new one, or the first waits because the pool has no second backend.

The check can miss a pooler that other clients use: if they take and return backends between the queries of the check,
the two connections may by chance get the same backends as in session mode. So the check is repeated (ROUNDS).
"""

import asyncio

import asyncpg

ROUNDS = 8
ANSWER_SECONDS = 1.0
BACKEND = "SELECT pg_backend_pid()"
ERRORS_OF_POOLERS = (
    # On this backend, another connection has already prepared a statement of the same name, or the statement of this
    # connection is missing.
    asyncpg.DuplicatePreparedStatementError,
    asyncpg.InvalidSQLStatementNameError,
)
STATEMENT_MODE = "statement pooling"
"""Part of PgBouncer's message when it closes a connection that begins a transaction in statement mode."""


REFUSAL = (
    "database: a connection pooler gives each transaction another connection (transaction mode). Tenure needs "
    "sessions: set the pooler to session mode (PgBouncer: pool_mode = session), or connect to PostgreSQL directly; see "
    "docs/operating.md#connection-poolers"
)


async def share_backends(first: asyncpg.Connection, second: asyncpg.Connection) -> bool:
    """Returns whether a pooler gives the two connections the same backends."""
    for _ in range(ROUNDS):
        if await _is_shared(first, second):
            return True
    return False


async def _is_shared(first: asyncpg.Connection, second: asyncpg.Connection) -> bool:
    try:
        before = await _backend(first)
        async with second.transaction():
            if await second.fetchval(BACKEND) == before:
                return True
            async with asyncio.timeout(ANSWER_SECONDS):
                return await _backend(first) != before
    except (TimeoutError, *ERRORS_OF_POOLERS):
        return True
    except asyncpg.ConnectionDoesNotExistError as error:
        if STATEMENT_MODE in str(error):
            return True
        raise


async def _backend(connection: asyncpg.Connection) -> int:
    # In a transaction, the two messages that prepare and execute the statement reach the same backend.
    async with connection.transaction():
        pid: int = await connection.fetchval(BACKEND)
        return pid
