"""The command line `tenure`: its commands, and the modules that contain them.

A command's module is imported when the command is called, so that short commands start fast: `tenure --help` imports
no command at all, and no command imports a module that only other commands need.
"""

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from tenure.cli.exits import handled_failures


class Entry(NamedTuple):
    """A command or a group of commands, as `tenure --help` lists it."""

    place: str
    """`module:name`: the module in `tenure.cli`, and the name of the command or group in this module."""
    summary: str
    """The first sentence of the command's docstring, or of the group's help. A test fails if they differ."""
    section: str


LOOK = "Inspect the service"
CHANGE = "Manage sessions, seats, submissions, jobs and leases"
CONNECT = "Set up"
RUN = "Run"
CHECK = "Check the database"

COMMANDS = {
    "serve": Entry("serve:serve", "Start the service.", RUN),
    "receiver": Entry(
        "receiver:receiver", "Receive submissions, count each delivery key once, and print the totals at the end.", RUN
    ),
    "demo": Entry("demo:demo", "Run a whole installation with a hundred simulated users, and show what happens.", RUN),
    "bench": Entry(
        "bench:bench",
        "Measure a running service: requests per second and latencies, under a bounded load.",
        RUN,
    ),
    "status": Entry(
        "status:status",
        "Show the installation at a glance: sessions, seats, usage, leaders, jobs, gateways and alerts.",
        LOOK,
    ),
    "top": Entry(
        "top:top",
        "Show the installation live: sessions, rates, seats, usage, leaders, jobs, alerts and the next lapses.",
        LOOK,
    ),
    "explain": Entry(
        "explain:explain",
        "Explain a session: why it ended, who ended it and how it was billed; or why an open request was refused.",
        LOOK,
    ),
    "alerts": Entry("alerts:alerts", "List active alerts, newest first.", LOOK),
    "events": Entry("events:events", "Print what happened to sessions: opened, upgraded and closed.", LOOK),
    "usage": Entry("usage:usage_commands", "Print the usage in a time span, or windows as they were billed.", LOOK),
    "audit-log": Entry("alerts:audit_log", "List who changed what, newest first.", LOOK),
    "instances": Entry(
        "instances:instances", "List the instances, including those that stopped or died in the last day.", LOOK
    ),
    "sessions": Entry("sessions:sessions_commands", "List, show, open and end sessions.", CHANGE),
    "capacities": Entry("capacities:capacities_commands", "List, show and set the seats of capacities.", CHANGE),
    "submissions": Entry(
        "submissions:submissions_commands", "List, count, show, retry and cancel submissions to gateways.", CHANGE
    ),
    "jobs": Entry("jobs:jobs_commands", "List jobs and their runs; run, pause and resume a job.", CHANGE),
    "leases": Entry("leases:leases_commands", "List leases, their holders and their history, and end a lease.", CHANGE),
    "contexts": Entry(
        "contexts:contexts_commands", "Name services and their keys, and choose the one that commands call.", CONNECT
    ),
    "keys": Entry(
        "keys:keys",
        "Create, list, revoke and rotate API keys, and rotate the key that signs session tokens.",
        CONNECT,
    ),
    "completion": Entry(
        "completion:completion", "Print the script that makes a shell complete commands, flags and names.", CONNECT
    ),
    "import": Entry(
        "imports:import_commands", "Take over the live sessions and the capacities of another service.", CONNECT
    ),
    "migrate": Entry("migrate:migrate", "Migrate the database schema to the current version.", CONNECT),
    "doctor": Entry("doctor:doctor", "Check an installation for problems, and print how to solve each.", CHECK),
    "audit": Entry("audit:audit", "Check that every instant of every session was billed exactly once.", CHECK),
}
"""Every command by its name, in the order of `tenure --help`. A new command is added here."""


class Root(TyperGroup):
    """The group of all commands. It imports a command only when the command is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of the base class
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flag = args[0].partition("=")[0] if args else ""
        if flag in ("--url", "--key", "--context", "--database", "--json"):
            ctx.fail(f"Write {flag} after the command, as in: tenure COMMAND {flag} …")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:
            close = get_close_matches(args[0], COMMANDS)
            hint = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                listed = [(name, entry.summary) for name, entry in COMMANDS.items() if entry.section == section]
                formatter.write_dl(listed, col_max=LONGEST_NAME)

    def invoke(self, ctx: Any) -> Any:
        with handled_failures():
            return super().invoke(ctx)


LONGEST_NAME = 12


def load_command(name: str) -> Any:
    """Import a command, or a group of commands."""
    module, _, attribute = COMMANDS[name].place.partition(":")
    found = getattr(import_module(f"tenure.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(found)
        found = single
    command = typer.main.get_command(found)
    command.name = name
    _polish(command)
    return command


def all_commands() -> dict[str, Any]:
    """Every command by its words, such as `sessions list`. A group is included if it can be called without a
    subcommand, as `tenure usage` can.
    """
    found: dict[str, Any] = {}
    for name in COMMANDS:
        command = load_command(name)
        inner = getattr(command, "commands", None)
        if inner is None or command.invoke_without_command:
            found[name] = command
        found |= {f"{name} {word}": each for word, each in (inner or {}).items()}
    return found


def _polish(command: Any) -> None:
    """Make `--help` print the examples of docstrings without rewrapping them, and arguments without their types."""
    if command.help:
        paragraphs = command.help.split("\n\n")
        command.help = "\n\n".join(f"\b\n{text}" if text.startswith("tenure ") else text for text in paragraphs)
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda **_: None
    for inner in getattr(command, "commands", {}).values():
        _polish(inner)


app = typer.Typer(
    cls=Root,
    help="A session service for products that sell access by the seat, the tier and the minute.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="Commands that need a running service use http://127.0.0.1:8080, unless --url, TENURE_URL or a context "
    "names another service. `tenure COMMAND --help` has examples; docs/commands.md has exit codes.",
)


def main() -> None:
    # Print `?` for a character that the encoding of the terminal or pipe lacks, instead of failing with a traceback.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if shell := os.environ.get("_TENURE_COMPLETION"):
        from tenure.cli.completion import print_candidates  # noqa: PLC0415

        print_candidates(shell, *sys.argv[1:2])
    else:
        typer.main.get_command(app).main(prog_name="tenure")


def _print_version(requested: bool) -> None:
    if requested:
        from tenure import __version__  # noqa: PLC0415

        typer.echo(f"tenure {__version__}")
        raise typer.Exit


@app.callback()
def tenure(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A session service for products that sell access by the seat, the tier and the minute."""
