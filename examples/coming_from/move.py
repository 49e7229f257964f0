"""Moves the capacities and the live sessions of another service into Tenure, or back.

    python examples/coming_from/move.py capacity_sessions old.db --database sqlite:///tenure.db --dry-run
    python examples/coming_from/move.py capacity_sessions old.db --database sqlite:///tenure.db
    python examples/coming_from/move.py capacity_sessions old.db --back --url http://127.0.0.1:8080

The first argument is a folder beside this file. Its `export-….sql` read the tables of the other service,
`mapping-….toml` names their columns, and `back.sql` writes one live session of Tenure into them. The other service is a
SQLite file here: for SQL Server, open the connection with pyodbc, and take the queries of docs/import.md.

The file is created from `old.sql` if it does not exist, so that there is something to move.
"""

import argparse
import csv
import json
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TENURE = [sys.executable, "-m", "tenure"]


def main() -> int:
    arguments = _arguments()
    folder = HERE / arguments.system
    with _old_database(folder, arguments.old) as old:
        if arguments.back:
            return _move_back(folder, old, arguments.url)
        return _move(folder, old, ["--database", arguments.database, *(["--dry-run"] if arguments.dry_run else [])])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Moves capacities and live sessions into Tenure, or back.")
    parser.add_argument("system", choices=sorted(path.parent.name for path in HERE.glob("*/export-sessions.sql")))
    parser.add_argument("old", type=Path, help="the database of the other service, a SQLite file")
    parser.add_argument("--database", default="sqlite:///tenure.db", help="the database of Tenure")
    parser.add_argument("--dry-run", action="store_true", help="check everything, and write nothing")
    parser.add_argument("--back", action="store_true", help="write the live sessions of Tenure into the other service")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the URL of Tenure, for --back")
    return parser.parse_args()


def _old_database(folder: Path, path: Path) -> sqlite3.Connection:
    is_new = not path.exists()
    old = sqlite3.connect(path)
    old.row_factory = sqlite3.Row
    if is_new:
        old.executescript((folder / "old.sql").read_text(encoding="utf-8"))
    return old


def _move(folder: Path, old: sqlite3.Connection, flags: list[str]) -> int:
    with tempfile.TemporaryDirectory() as exported:
        for what in ("capacities", "sessions"):
            rows = old.execute((folder / f"export-{what}.sql").read_text(encoding="utf-8")).fetchall()
            file = Path(exported) / f"{what}.csv"
            with file.open("w", encoding="utf-8", newline="") as lines:
                writer = csv.writer(lines)
                writer.writerow(rows[0].keys() if rows else [])
                writer.writerows(tuple(row) for row in rows)
            mapping = folder / f"mapping-{what}.toml"
            named = ["--mapping", str(mapping)] if mapping.exists() else []
            done = subprocess.run([*TENURE, "import", what, str(file), *named, *flags], check=False)  # noqa: S603
            if done.returncode:
                return done.returncode
    return 0


def _move_back(folder: Path, old: sqlite3.Connection, url: str) -> int:
    """Session by session: a session that the other service has keeps its row, with the end that Tenure knows."""
    listed = subprocess.run(  # noqa: S603
        [*TENURE, "sessions", "list", "--all", "--json", "--url", url], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        sys.stderr.write(listed.stderr)
        return listed.returncode
    sessions = json.loads(listed.stdout)["sessions"]
    statement = (folder / "back.sql").read_text(encoding="utf-8")
    with old:
        old.executemany(statement, sessions)
    print(f"{len(sessions)} sessions written back")
    return 0


if __name__ == "__main__":
    sys.exit(main())
