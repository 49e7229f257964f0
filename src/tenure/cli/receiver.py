"""`tenure receiver`: validates the flags, runs the receiver, and prints its totals."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure.receiver.ledger import Totals


def receiver(
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. An address other than loopback requires --insecure.", metavar="ADDRESS"
        ),
    ] = "127.0.0.1",
    port: Annotated[
        str,
        typer.Option(help="The port to listen on; 0 picks a free one, which is written to the log.", metavar="PORT"),
    ] = "9090",
    ledger: Annotated[
        Path,
        typer.Option(help="The SQLite file that stores received deliveries; created if missing.", metavar="FILE"),
    ] = Path("ledger.db"),
    secret: Annotated[
        str | None,
        typer.Option(
            help="Check signatures with this secret, whsec_….  [none: signatures are not checked]", metavar="SECRET"
        ),
    ] = None,
    previous_secret: Annotated[
        str | None,
        typer.Option(
            help="Also accept signatures made with this secret while it is being replaced; requires --secret.",
            metavar="SECRET",
        ),
    ] = None,
    fail: Annotated[
        str,
        typer.Option(
            help="The share of deliveries that fail, from 0 to 1, each with a random fault; or faults as JSON.",
            metavar="SHARE",
        ),
    ] = "0",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow any address, not only loopback. Every client that can reach the receiver can read the ledger "
            "and set faults.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the totals as JSON.")] = False,
) -> None:
    """Receive submissions, count each delivery key once, and print the totals at the end.

    The receiver is meant for tests and for evaluation. With a secret, it checks signatures. It records each delivery in
    a SQLite file, and simulates the configured faults. See docs/receiver.md.

    tenure receiver --port 9090
    tenure receiver --fail 0.2
    """
    from tenure.receiver.faults import read_faults  # noqa: PLC0415 - `--help` and completion need no server
    from tenure.receiver.server import ReceiverSettings, run  # noqa: PLC0415
    from tenure.telemetry.logs import configure_logs  # noqa: PLC0415

    configure_logs()
    _check_host(host, insecure=insecure)
    settings = ReceiverSettings(
        host=host,
        port=_checked_port(port),
        ledger=ledger,
        secrets=_checked_secrets(secret, previous_secret),
        faults=read_faults(fail),
    )
    totals = run(settings)
    typer.echo(msgspec.json.encode(totals).decode() if as_json else _table(totals))


def _check_host(host: str, *, insecure: bool) -> None:
    from tenure.config.urls import is_loopback  # noqa: PLC0415

    if not insecure and not is_loopback(host):
        raise ConfigurationError("host: must be a loopback address, such as 127.0.0.1, unless --insecure is set")


def _checked_port(text: str) -> int:
    from tenure.config.urls import PORT_MAX  # noqa: PLC0415

    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > PORT_MAX:
        raise ConfigurationError(f"port: must be a whole number from 0 to {PORT_MAX}")
    return int(text)


def _checked_secrets(secret: str | None, previous_secret: str | None) -> list[str]:
    from tenure.signing import SECRET_RULE, is_secret  # noqa: PLC0415

    if previous_secret is not None and secret is None:
        raise ConfigurationError("previous-secret: requires secret")
    given = {"secret": secret, "previous-secret": previous_secret}
    for name, value in given.items():
        if value is not None and not is_secret(value):
            raise ConfigurationError(f"{name}: must be {SECRET_RULE}")
    return [value for value in given.values() if value is not None]


def _table(totals: "Totals") -> str:
    rows = {name: str(value) for name, value in msgspec.structs.asdict(totals).items()}
    width = max(len(value) for value in rows.values())
    return "\n".join(f"{name:<10}  {value:>{width}}" for name, value in rows.items())
