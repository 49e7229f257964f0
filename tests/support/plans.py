"""The hot statements of the SQL functions, and their PostgreSQL plans.

A statement is marked in the SQL file by `-- plan: name` and `-- plan end`. As plpgsql does, this module replaces the
names of the function's parameters and variables by `$n`. The plan is the generic plan, which hot connections use.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import asyncpg

from tenure.store.engines.postgres.connections import HOT_SETTINGS
from tenure.store.migrations.functions import functions_of

TYPES = {
    "p_capacity": "uuid[]",
    "p_user": "uuid[]",
    "p_tenant": "uuid[]",
    "p_session": "uuid[]",
    "p_kind": "smallint[]",
    "p_lease": "bigint[]",
    "p_heartbeat": "bigint[]",
    "p_idle": "bigint[]",
    "p_term": "bigint",
    "p_default_lease": "bigint",
    "p_default_heartbeat": "bigint",
    "p_default_idle": "bigint",
    "p_one_capacity": "uuid",
    "p_one_user": "uuid",
    "p_one_tenant": "uuid",
    "p_one_session": "uuid",
    "p_one_kind": "smallint",
    "v_lease": "bigint",
    "v_heartbeat": "bigint",
    "v_idle": "bigint",
    "p_positions": "int[]",
    "p_active": "uuid[]",
    "p_limit": "int",
    "p_now": "timestamptz",
    "v_now": "timestamptz",
    "v_term_ends_at": "timestamptz",
    "v_probe": "timestamptz",
    "v_locked": "uuid[]",
    "v_places": "tid[]",
    "v_entry": "uuid",
    "v_began_at": "timestamptz",
    "v_tenant": "uuid",
    "v_user": "uuid",
    "v_on_capacity": "uuid",
    "v_kind": "int",
    "v_state": "session_state",
    "v_due": "uuid[]",
    "v_held": "uuid[]",
    "v_new": "uuid[]",
    "v_left": "uuid[]",
    "v_ended": "int[]",
    "v_started": "timestamptz[]",
    "p_submission": "uuid[]",
    "p_submissions": "bigint",
    "p_gateway": "text[]",
    "p_caller": "text[]",
    "p_key": "text[]",
    "p_digest": "bytea[]",
    "p_number": "int[]",
    "p_outcome": "text[]",
    "p_status": "int[]",
    "p_error": "text[]",
    "p_counts": "boolean[]",
    "p_pause": "bigint[]",
    "p_binding": "boolean[]",
    "p_receipt": "boolean[]",
    "p_early": "uuid[]",
    "p_epoch": "bigint",
    "p_command": "text",
    "p_owner": "text",
    "p_reason": "text",
    "p_window": "bigint",
    "p_kept": "bigint",
    "p_audit": "bigint",
    "p_alerts": "bigint",
    "p_activity": "bigint",
    "v_windows": "bigint[]",
    "v_delivered": "uuid[]",
    "v_kept_from": "timestamptz",
    "v_request.capacity_id": "uuid",
    "v_request.user_object_id": "uuid",
    "v_capacity.capacity_id": "uuid",
}
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
"""If the text between the marks begins with none of these words, the word before the mark is PERFORM. `SELECT` is then
put before the text."""


class HotStatement(NamedTuple):
    name: str
    text: str
    parameters: list[str]


def hot_statements() -> dict[str, HotStatement]:
    """The statements by function and name, such as `tenure_open_create_1: live`."""
    found = {}
    for title, function in functions_of("postgresql").items():
        for name, body in re.findall(r"-- plan: ([\w ]+)\n(.*?)-- plan end", function, re.DOTALL):
            statement = _statement(f"{title}: {name}", body)
            found[statement.name] = statement
    return found


def _statement(name: str, body: str) -> HotStatement:
    text = re.sub(r"\bINTO v_\w+(, v_\w+)*\s", "", body.strip().rstrip(";")).replace("PERFORM", "SELECT")
    if not text.startswith(VERBS):
        text = f"SELECT {text}"
    parameters = [word for word in TYPES if re.search(rf"\b{re.escape(word)}\b", text)]
    for number, word in enumerate(parameters, start=1):
        text = re.sub(rf"\b{re.escape(word)}\b", f"${number}", text)
    return HotStatement(name, text, parameters)


async def prepare(connection: asyncpg.Connection, statement: HotStatement) -> None:
    """Prepares the statement as `hot`, with the settings of hot connections."""
    for setting, value in HOT_SETTINGS.items():
        await connection.execute(f"SET {setting} = '{value}'")
    types = _in_parentheses([TYPES[word] for word in statement.parameters])
    await connection.execute(f"PREPARE hot {types} AS {statement.text}")


async def explain(
    connection: asyncpg.Connection, values: dict[str, str], statement: HotStatement, options: str = ""
) -> str:
    """Returns the plan for `values`, which maps parameter names to literals. Missing values are NULL."""
    arguments = _in_parentheses([values.get(word, "NULL") for word in statement.parameters])
    lines: list[Any] = await connection.fetch(f"EXPLAIN ({options or 'COSTS OFF'}) EXECUTE hot {arguments}")
    return "\n".join(line[0] for line in lines)


def _in_parentheses(words: Sequence[str]) -> str:
    """Returns an empty string for a statement without parameters."""
    return f"({', '.join(words)})" if words else ""
