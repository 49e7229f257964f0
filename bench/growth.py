"""Growth from ten thousand to two million sessions: the latency of opens, and the buffers of each hot statement.

The baseline is the same measurement with ten thousand sessions.
"""

import argparse
import asyncio
import re
import sys
import uuid
from pathlib import Path

import asyncpg

from bench import EXISTING, Postgres, check_bar, median, postgres, service, wrk

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.support.plans import TYPES, explain, hot_statements, prepare
from tests.support.rows import fill_postgres

SMALL, LARGE = 10_000, 2_000_000
ROUNDS = 5


def p50s(server: Postgres, database: str, rows: int) -> dict[str, float]:
    """Returns the p50 in ms of each wrk script, as the median of ROUNDS runs."""
    url = server.create_database(database)
    with service(url) as running:
        asyncio.run(fill_postgres(url, rows))
        server.sql(database, EXISTING)
        for script in ("created", "existing"):
            wrk(running.address, script, 2)
        return {
            script: median([wrk(running.address, script, 3).p50_ms for _ in range(ROUNDS)])
            for script in ("created", "existing")
        }


def _values() -> dict[str, str]:
    """Returns SQL literals by parameter name, for a batch of one open request."""

    def ids() -> str:
        return f"'{{{uuid.uuid4()}}}'"

    single_ids = {name: f"'{uuid.uuid4()}'" for name, sql_type in TYPES.items() if sql_type == "uuid"}
    return single_ids | {
        "p_capacity": ids(), "p_user": ids(), "p_tenant": ids(), "p_session": ids(), "p_kind": "'{1}'",
        "p_term": "2592000000000", "v_now": "now()", "v_probe": "now()", "p_now": "now()", "p_active": ids(),
        "p_limit": "500", "v_locked": ids(), "v_due": ids(), "v_lease": "30000000", "v_heartbeat": "5000000",
        "v_term_ends_at": "now()", "p_one_kind": "1",
    }  # fmt: skip


async def buffers(url: str) -> dict[str, int]:
    """Returns the buffers that each hot statement accesses for one open request, with warm caches."""
    accessed = {}
    for name, statement in hot_statements().items():
        connection = await asyncpg.connect(url)
        await prepare(connection, statement)
        transaction = connection.transaction()
        await transaction.start()
        counts = []
        for _ in range(3):
            plan = await explain(connection, _values(), statement, "ANALYZE, BUFFERS, COSTS OFF, TIMING OFF")
            counts.append(_accessed(plan))
        accessed[name] = min(counts)
        await transaction.rollback()
        await connection.close()
    return accessed


def _accessed(plan: str) -> int:
    """Returns the buffers of the top node, which include those of all nodes below it. Hits and reads count the same."""
    execution = plan.partition("Planning")[0]
    line = re.search(r"Buffers: shared (.*)", execution)
    return sum(int(count) for count in re.findall(r"(?:hit|read)=(\d+)", line[1])) if line else 0


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--large", type=int, default=LARGE)
    large = arguments.parse_args().large
    # A new session gets an entry in seven indexes. In a larger table, each index may need one more buffer.
    indexes = {"insert": 7}
    with postgres() as server:
        small_p50, large_p50 = p50s(server, "small", SMALL), p50s(server, "large", large)
        small_buffers = asyncio.run(buffers(server.url("small")))
        large_buffers = asyncio.run(buffers(server.url("large")))
    for script, before in small_p50.items():
        check_bar(
            f"growth, {script}: p50 at {large} against {SMALL} sessions", large_p50[script] / before, 1.5, at_most=True
        )
    for name, before in small_buffers.items():
        allowed = indexes.get(name.partition(": ")[2], 2 if name.endswith("lock") else 1)
        print(f"  {name}: {before} buffers at {SMALL} sessions, {large_buffers[name]} at {large}")
        check_bar(
            f"growth, additional buffers of {name}", large_buffers[name] - before, allowed, "buffers", at_most=True
        )


if __name__ == "__main__":
    main()
