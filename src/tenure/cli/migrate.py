"""`tenure migrate`: applies or prints the migrations that `serve` applies at startup."""

from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.flags import ConfigFlag, DatabaseFlag, load_settings, run_with_store

if TYPE_CHECKING:
    from tenure.store.contract import Store


def migrate(
    database: DatabaseFlag = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the SQL without running it.")] = False,
    config: ConfigFlag = None,
) -> None:
    """Migrate the database schema to the current version.

    `tenure serve` does the same when it starts.

    tenure migrate --database postgresql://tenure@db.example/tenure
    tenure migrate --dry-run
    """
    settings = load_settings(config, database=database)
    typer.echo(run_with_store(settings, lambda store: _migrate(store, dry_run=dry_run), must_exist=False))


async def _migrate(store: "Store", *, dry_run: bool) -> str:
    from tenure.store import migrate as migrations  # noqa: PLC0415 - `--help` and completion need no store

    if dry_run:
        script = migrations.script(await store.schema_revision(), store.dialect_name)
        return script or f"-- up to date ({migrations.required_revision()})"
    applied = await store.migrate()
    return f"migrated to {applied[-1]}" if applied else f"up to date ({migrations.required_revision()})"
