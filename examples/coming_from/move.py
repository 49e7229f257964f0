"""Moves the capacities and the live sessions of another service into Tenure, or the sessions of Tenure back.

    python examples/coming_from/move.py capacity_sessions old.db --dry-run
    python examples/coming_from/move.py capacity_sessions old.db
    python examples/coming_from/move.py capacity_sessions old.db --back --url http://127.0.0.1:8080

The first argument is a folder next to this file. To try your own tables, copy a folder and change its files:
`export-….sql` reads a table of the other service, `mapping-….toml` names its columns, `back.sql` writes one live
session of Tenure into the tables, and `back-ended.sql` marks one session that has ended in Tenure. In the two `back`
files, names such as `:sessionId` stand for the fields of the session. In this script, the database of the other service
is a SQLite file. For SQL Server, open the connection with pyodbc, and use the statements of docs/import.md for both
directions.

The script finds Tenure's database in the same way as `tenure import`: `--database`, `TENURE_DATABASE`, the file of
`TENURE_CONFIG`, or `tenure.toml` in the current folder.

`--capacity ID`, which can be repeated, limits a move to these capacities and their sessions, in both directions.

If the SQLite file of the other service (`old.db` above) does not exist, it is created from `old.sql`, so that there is
something to move.
"""

import argparse
import csv
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from uuid import UUID

HERE = Path(__file__).parent
TENURE = [sys.executable, "-m", "tenure"]
NOTHING = {"capacities": "no capacities in the old table", "sessions": "no live sessions in the old table"}


def main() -> int:
    arguments = _arguments()
    folder = HERE / arguments.system
    with _old_database(folder, arguments.old) as old:
        if arguments.back:
            return _move_back(folder, old, arguments.url, arguments.capacity)
        flags = ["--dry-run"] if arguments.dry_run else []
        flags += ["--database", arguments.database] if arguments.database else []
        return _move(folder, old, [arguments.only] if arguments.only else list(NOTHING), arguments.capacity, flags)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Moves capacities and live sessions into Tenure, or back.")
    parser.add_argument("system", choices=sorted(path.parent.name for path in HERE.glob("*/export-sessions.sql")))
    parser.add_argument("old", type=Path, help="the database of the other service, a SQLite file")
    parser.add_argument(
        "--database", help="the database of Tenure  [TENURE_DATABASE, tenure.toml, sqlite:///tenure.db]"
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, and write nothing")
    parser.add_argument("--only", choices=list(NOTHING), help="move only the capacities, or only the sessions")
    parser.add_argument("--capacity", type=UUID, action="append", default=[], help="only this capacity; repeatable")
    parser.add_argument("--back", action="store_true", help="write the sessions of Tenure into the other service")
    url = os.environ.get("TENURE_URL", "http://127.0.0.1:8080")
    parser.add_argument("--url", default=url, help="the URL of Tenure, for --back  [TENURE_URL]")
    return parser.parse_args()


def _old_database(folder: Path, path: Path) -> sqlite3.Connection:
    is_new = not path.exists()
    old = sqlite3.connect(path)
    old.row_factory = sqlite3.Row
    if is_new:
        old.executescript((folder / "old.sql").read_text(encoding="utf-8"))
    return old


def _move(folder: Path, old: sqlite3.Connection, parts: list[str], capacities: list[UUID], flags: list[str]) -> int:
    with tempfile.TemporaryDirectory() as exported:
        for what in parts:
            mapping = folder / f"mapping-{what}.toml"
            rows = old.execute((folder / f"export-{what}.sql").read_text(encoding="utf-8")).fetchall()
            if capacities:
                rows = [row for row in rows if UUID(row[_capacity_column(row.keys(), mapping)]) in capacities]
            if not rows:
                print(NOTHING[what])
                continue
            file = Path(exported) / f"{what}.csv"
            with file.open("w", encoding="utf-8", newline="") as lines:
                writer = csv.writer(lines)
                writer.writerow(rows[0].keys())
                writer.writerows(tuple(row) for row in rows)
            named = ["--mapping", str(mapping)] if mapping.exists() else []
            done = subprocess.run([*TENURE, "import", what, str(file), *named, *flags], check=False)  # noqa: S603
            if done.returncode:
                return done.returncode
    return 0


def _capacity_column(columns: list[str], mapping: Path) -> str:
    if mapping.exists():
        return str(tomllib.loads(mapping.read_text(encoding="utf-8"))["fields"]["capacityId"])
    return next(column for column in columns if column.lower() == "capacityid")


def _move_back(folder: Path, old: sqlite3.Connection, url: str, capacities: list[UUID]) -> int:
    """Writes the live sessions of Tenure into the tables of the other service, and marks the sessions that have ended
    in Tenure. If the other service already has the row of a live session, the row is kept, and its deadline is updated.
    """
    # Live sessions are listed first. So a session that ends meanwhile is in both lists, and is marked as ended.
    live = _listed(url, capacities)
    ended = None if live is None else _listed(url, capacities, "--ended")
    if live is None or ended is None:
        return 1
    with old:
        for statement in _statements(folder / "back.sql"):
            old.executemany(statement, live)
        (mark,) = _statements(folder / "back-ended.sql")
        marked = old.executemany(mark, ended).rowcount
    print(f"{url}: live sessions written back: {len(live)}, marked as ended: {marked}")
    return 0


def _listed(url: str, capacities: list[UUID], *flags: str) -> list[dict[str, Any]] | None:
    sessions: list[dict[str, Any]] = []
    for capacity in capacities or [None]:
        chosen = ["--capacity", str(capacity)] if capacity else []
        listed = subprocess.run(  # noqa: S603
            [*TENURE, "sessions", "list", "--all", "--json", "--url", url, *chosen, *flags],
            capture_output=True,
            text=True,
            check=False,
        )
        if listed.returncode:
            sys.stderr.write(listed.stderr)
            return None
        sessions += json.loads(listed.stdout)["sessions"]
    return sessions


def _statements(file: Path) -> list[str]:
    return [each for each in file.read_text(encoding="utf-8").split(";") if each.strip()]


if __name__ == "__main__":
    sys.exit(main())
