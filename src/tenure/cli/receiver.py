"""`tenure receiver`: its flags, checked, and its totals, told."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure.receiver.ledger import Totals

PORT_MAX = 65_535


def receiver(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[str, typer.Option(help="The port to listen on; 0 picks a free one.")] = "9090",
    ledger: Annotated[Path, typer.Option(help="The file that keeps what was received.")] = Path("ledger.db"),
    secret: Annotated[str | None, typer.Option(help="Check signatures with it, as whsec_…", show_default=False)] = None,
    previous_secret: Annotated[str | None, typer.Option(help="Accept the secret before this one, too.")] = None,
    fail: Annotated[str, typer.Option(help="A share from 0 to 1 that fails in every way, or faults as JSON.")] = "0",
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen on any address.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Tell the totals as JSON.")] = False,
) -> None:
    """Receive submissions, count each key once, and fail as told. Ends with its totals."""
    from tenure.receiver.faults import read_faults  # noqa: PLC0415 - other commands need no server
    from tenure.receiver.running import Settings, run  # noqa: PLC0415

    _refuse_far_host(host, insecure=insecure)
    settings = Settings(
        host=host,
        port=_checked_port(port),
        ledger=ledger,
        secrets=_checked_secrets(secret, previous_secret),
        faults=read_faults(fail),
    )
    totals = run(settings)
    typer.echo(msgspec.json.encode(totals).decode() if as_json else _table(totals))


def _refuse_far_host(host: str, *, insecure: bool) -> None:
    from tenure.config.settings import is_loopback  # noqa: PLC0415

    if not insecure and not is_loopback(host):
        raise ConfigurationError("host: must be a loopback address, as 127.0.0.1, unless --insecure allows any")


def _checked_port(words: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", words) or int(words) > PORT_MAX:
        raise ConfigurationError(f"port: must be a whole number from 0 to {PORT_MAX}")
    return int(words)


def _checked_secrets(secret: str | None, previous_secret: str | None) -> list[str]:
    from tenure.signing import SECRET_WORDS, is_secret  # noqa: PLC0415

    if previous_secret is not None and secret is None:
        raise ConfigurationError("previous-secret: must come with secret")
    given = {"secret": secret, "previous-secret": previous_secret}
    for name, value in given.items():
        if value is not None and not is_secret(value):
            raise ConfigurationError(f"{name}: must be {SECRET_WORDS}")
    return [value for value in given.values() if value is not None]


def _table(totals: "Totals") -> str:
    rows = {name: str(value) for name, value in msgspec.structs.asdict(totals).items()}
    width = max(len(value) for value in rows.values())
    return "\n".join(f"{name:<10}  {value:>{width}}" for name, value in rows.items())
