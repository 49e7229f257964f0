"""`tenure import`: takes over the live sessions and the capacities of another service, directly in the database."""

import tomllib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tenure.cli.exits import ExitCode, fail, print_error
from tenure.cli.flags import ConfigFlag, DatabaseFlag, JsonFlag, load_settings, local_actor, new_group, run_with_store
from tenure.cli.output import counted, note, print_json, progress
from tenure.errors import ConfigurationError, DatabaseMissing

if TYPE_CHECKING:
    from tenure.config import Config
    from tenure.sessions.imports import ImportRefused, Mapped
    from tenure.store.contract import Store

import_commands = new_group("Take over the live sessions and the capacities of another service.")

FileArgument = Annotated[Path, typer.Argument(help="A CSV file with a header, or NDJSON.", metavar="FILE")]
MappingFlag = Annotated[
    Path | None,
    typer.Option(
        help="A TOML file with the column of each field in the imported file.  [Tenure's field names]", metavar="FILE"
    ),
]
CheckFlag = Annotated[bool, typer.Option("--dry-run", help="Check everything, and write nothing.")]


@import_commands.command("sessions")
def sessions(
    file: FileArgument,
    mapping: MappingFlag = None,
    dry_run: CheckFlag = False,
    database: DatabaseFlag = None,
    as_json: JsonFlag = False,
    config: ConfigFlag = None,
) -> None:
    """Import live sessions. They keep their start, kind and end; their billing begins with the import.

    The whole file is checked first: if one line is wrong, nothing is written. The command can be repeated. See
    docs/import.md.

    tenure import sessions sessions.csv --mapping mapping.toml --dry-run
    """
    from tenure.sessions import imports  # noqa: PLC0415 - other commands do not need it

    settings, mapped = load_settings(config, database=database), _mapped(mapping, imports.SESSION_FIELDS)

    async def run(store: "Store") -> imports.Counts:
        now = (await store.read_keys_version()).now
        term = timedelta(days=settings.sessions.term_days)
        lines = imports.read_lines(file, imports.SESSION_FIELDS, mapped)
        found = imports.read_sessions(lines, mapped, now, term)
        with progress() as shown:
            return await imports.import_sessions(store, found, local_actor(), file.name, shown.show, writes=not dry_run)

    counts = _in_database(settings, file, run, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "imported": counts.imported,
                "existing": counts.existing,
                "endedInTenure": counts.ended_in_tenure,
                "ended": counts.ended_before,
                "dryRun": dry_run,
            }
        )
        return
    verb = "would be imported" if dry_run else "imported"
    typer.echo(
        f"{counted(counts.imported, 'session')} {verb}, {counts.existing:,} existed already, "
        f"{counts.ended_in_tenure:,} ended in Tenure, {counts.ended_before:,} had ended before"
    )


@import_commands.command("capacities")
def capacities(
    file: FileArgument,
    mapping: MappingFlag = None,
    dry_run: CheckFlag = False,
    database: DatabaseFlag = None,
    as_json: JsonFlag = False,
    config: ConfigFlag = None,
) -> None:
    """Import capacities: their seats, what happens when they are full, and their tenants.

    The whole file is checked first: if one line is wrong, nothing is written. The command can be repeated.

    tenure import capacities capacities.csv
    """
    from tenure.sessions import imports  # noqa: PLC0415 - other commands do not need it

    settings, mapped = load_settings(config, database=database), _mapped(mapping, imports.CAPACITY_FIELDS)

    async def run(store: "Store") -> int:
        found = imports.read_capacities(imports.read_lines(file, imports.CAPACITY_FIELDS, mapped))
        if dry_run:
            return len(found)
        with progress() as shown:
            return await imports.import_capacities(store, found, local_actor(), shown.show)

    count = _in_database(settings, file, run, dry_run=dry_run)
    if as_json:
        print_json({"imported": count, "dryRun": dry_run})
        return
    noun = "capacity" if count == 1 else "capacities"
    typer.echo(f"{count:,} {noun} {'would be imported' if dry_run else 'imported'}")


def _in_database(
    settings: "Config", file: Path, run: "Callable[[Store], Awaitable[Any]]", *, dry_run: bool = False
) -> Any:
    from tenure.config.urls import without_password  # noqa: PLC0415
    from tenure.sessions.imports import ImportRefused  # noqa: PLC0415

    note(f"database: {without_password(settings.database)}")

    async def migrated(store: "Store") -> Any:
        await store.migrate()
        return await run(store)

    try:
        if not dry_run:
            return run_with_store(settings, migrated, must_exist=False)
        if _has_schema(settings):
            return run_with_store(settings, run)
        note("the database has no tables of Tenure yet: the dry run checks the file against an empty database")
        with TemporaryDirectory() as folder:
            empty = msgspec.structs.replace(settings, database=f"sqlite:///{folder}/empty.db")
            return run_with_store(empty, migrated, must_exist=False)
    except ImportRefused as refused:
        _print_refusal(file, refused)
        raise typer.Exit(ExitCode.FAILED) from None
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} cannot be read: {error}", ExitCode.USAGE)


def _has_schema(settings: "Config") -> bool:
    """Whether the database has the tables of Tenure. Raises `ConfigurationError` if the schema is too old."""
    from tenure.store.migrate import is_sufficient, required_revision  # noqa: PLC0415

    try:
        revision = run_with_store(settings, lambda store: store.schema_revision())
    except DatabaseMissing:
        return False
    if revision is not None and not is_sufficient(revision):
        raise ConfigurationError(
            f"database: the schema has revision {revision}, and this version of Tenure needs {required_revision()}; a "
            "dry run writes nothing, so first run `tenure migrate`"
        )
    return revision is not None


def _print_refusal(file: Path, refused: "ImportRefused") -> None:
    for fault in refused.faults:
        print_error(f"{file.name}: {fault}")
    if refused.more:
        print_error(f"{file.name}: more faults: {refused.more}")


def _mapped(file: Path | None, fields: "tuple[str, ...]") -> "Mapped | None":
    """Read the mapping file: `[fields]` names the column of each field, `[kinds]` maps values of the file to kinds."""
    if file is None:
        return None
    from tenure.sessions.imports import Mapped  # noqa: PLC0415

    try:
        content = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"mapping: {file} cannot be used: {error}") from None
    columns, kinds = content.pop("fields", {}), content.pop("kinds", {})
    if content:
        raise ConfigurationError(f"mapping: {next(iter(content))} is unknown; the tables are [fields] and [kinds]")
    if not isinstance(columns, dict) or not isinstance(kinds, dict):
        raise ConfigurationError(f"mapping: {file}: fields and kinds must be tables: [fields] and [kinds]")
    unknown = [name for name in columns if name not in fields]
    if unknown:
        raise ConfigurationError(f"mapping: {unknown[0]} is not a field; the fields are {', '.join(fields)}")
    if not all(isinstance(column, str) for column in columns.values()):
        raise ConfigurationError("mapping: each field must name a column")
    wrong = [name for name, kind in kinds.items() if type(kind) is not int or kind not in (1, 2, 3)]
    if wrong:
        raise ConfigurationError(f"mapping: {file}: the kind of {wrong[0]} must be 1, 2 or 3")
    return Mapped(columns, {str(name): kind for name, kind in kinds.items()})
