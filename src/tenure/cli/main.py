"""`tenure`: one command a verb. What each does lives in the parts; here are flags, words and exit codes."""

import sys
from typing import Annotated

import typer

from tenure import __version__
from tenure.cli.audit import audit
from tenure.cli.flags import ConfigFlag, DatabaseFlag, load_settings
from tenure.cli.receiver import receiver
from tenure.cli.usage import usage
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.logs import configure_logs

app = typer.Typer(
    help="Sessions by the seat, the tier and the minute.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FAILED = 1


def main() -> None:
    # Before anything is logged: what is printed to standard output is a command's answer.
    configure_logs()
    try:
        app()
    except ConfigurationError as error:
        _say(f"tenure: {error}")
        sys.exit(error.exit_code)
    except DatabaseUnavailable as error:
        _say(f"tenure: {error.detail}")
        sys.exit(FAILED)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tenure {__version__}")
        raise typer.Exit


@app.callback()
def tenure(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Sessions by the seat, the tier and the minute."""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on. [127.0.0.1]")] = None,
    port: Annotated[str | None, typer.Option(help="The port to listen on. [8080]")] = None,
    database: DatabaseFlag = None,
    workers: Annotated[str | None, typer.Option(help="Processes, each an instance of its own. [1]")] = None,
    prefix: Annotated[str | None, typer.Option(help="Serve the API below this path, as /api/v3.")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Listen on any address without keys.")] = None,
    config: ConfigFlag = None,
) -> None:
    """Start the service. It migrates the database by itself."""
    settings = load_settings(
        config, host=host, port=port, database=database, workers=workers, prefix=prefix, insecure=insecure
    )
    from tenure.serving import serve as run  # noqa: PLC0415 - other commands need no server

    run(settings)


@app.command()
def migrate(
    database: DatabaseFlag = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the SQL and change nothing.")] = False,
    config: ConfigFlag = None,
) -> None:
    """Bring the database's schema up to date."""
    # It listens nowhere, so the host that `serve --insecure` is told must not stop it.
    settings = load_settings(config, database=database, insecure=True)
    from tenure.migrating import migrate as run  # noqa: PLC0415

    typer.echo(run(settings, dry_run=dry_run))


app.command()(receiver)
app.command()(usage)
app.command()(audit)


def _say(message: str) -> None:
    typer.echo(message, err=True)
