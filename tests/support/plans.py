"""The hot statements, as they stand in the functions, and the plans that PostgreSQL makes of them.

A statement is marked in the SQL file by `-- plan: name` and `-- plan end`. The names of the function's parameters and
variables are replaced by `$n`, which is what plpgsql does with them, and the generic plan is asked for, which is what
the hot connections use.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from tenure.store import migrations
from tenure.store.engines.postgres import HOT_SETTINGS

FUNCTIONS = Path(next(iter(migrations.__path__))) / "postgres" / "0001_functions.sql"
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
    "v_now": "timestamptz",
    "v_named": "int[]",
    "v_wish.capacity_id": "uuid",
    "v_wish.user_object_id": "uuid",
}


class HotStatement(NamedTuple):
    name: str
    text: str
    parameters: list[str]


def hot_statements() -> dict[str, HotStatement]:
    """By function and name, as `tenure_open_create_1: look`."""
    found = {}
    for function in re.split(r"(?=CREATE FUNCTION )", FUNCTIONS.read_text(encoding="utf-8"))[1:]:
        title = function.split("(", 1)[0].removeprefix("CREATE FUNCTION ")
        for name, body in re.findall(r"-- plan: ([\w ]+)\n(.*?)-- plan end", function, re.DOTALL):
            statement = _statement(f"{title}: {name}", body)
            found[statement.name] = statement
    return found


def _statement(name: str, body: str) -> HotStatement:
    text = body.strip().rstrip(";").replace("INTO v_old ", "")
    parameters = [word for word in TYPES if re.search(rf"\b{re.escape(word)}\b", text)]
    for number, word in enumerate(parameters, start=1):
        text = re.sub(rf"\b{re.escape(word)}\b", f"${number}", text)
    return HotStatement(name, text, parameters)


async def prepare(connection: asyncpg.Connection, statement: HotStatement) -> None:
    """As `hot`, on a connection with the settings of the hot ones."""
    for setting, value in HOT_SETTINGS.items():
        await connection.execute(f"SET {setting} = '{value}'")
    types = ", ".join(TYPES[word] for word in statement.parameters)
    await connection.execute(f"PREPARE hot ({types}) AS {statement.text}")


async def explain(
    connection: asyncpg.Connection, values: dict[str, str], statement: HotStatement, options: str = ""
) -> str:
    """The plan for `values`, literals by the names of the function's parameters; NULL where there is none."""
    arguments = ", ".join(values.get(word, "NULL") for word in statement.parameters)
    lines: list[Any] = await connection.fetch(f"EXPLAIN ({options or 'COSTS OFF'}) EXECUTE hot ({arguments})")
    return "\n".join(line[0] for line in lines)
