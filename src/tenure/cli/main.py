"""The command line `tenure`: one module per command, with its flags, output and exit codes."""

import sys
from typing import Annotated

import typer

from tenure import __version__
from tenure.cli.audit import audit
from tenure.cli.keys import keys
from tenure.cli.migrate import migrate
from tenure.cli.receiver import receiver
from tenure.cli.serve import serve
from tenure.cli.usage import usage_commands
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.telemetry.logs import configure_logs

app = typer.Typer(
    help="A session service for products that sell access by the seat, the tier and the minute.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FAILED = 1


def main() -> None:
    # Configure logs before the first log line, so that standard output contains only the results of commands.
    configure_logs()
    try:
        app()
    except ConfigurationError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except DatabaseUnavailable as error:
        _print_error(error.detail)
        sys.exit(FAILED)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"tenure {__version__}")
        raise typer.Exit


@app.callback()
def tenure(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A session service for products that sell access by the seat, the tier and the minute."""


app.command()(serve)
app.command()(migrate)
app.command()(receiver)
app.add_typer(usage_commands, name="usage")
app.command()(audit)
app.add_typer(keys, name="keys")


def _print_error(message: str) -> None:
    typer.echo(f"tenure: {message}", err=True)
