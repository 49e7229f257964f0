"""`tenure audit`: what it found, in words and as an exit code."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tenure.cli.flags import ConfigFlag, DatabaseFlag, JsonFlag, load_settings
from tenure.errors import ConfigurationError
from tenure.meter import decimal_text

if TYPE_CHECKING:
    from tenure.receiver.ledger import Entry as ReceiverEntry
    from tenure.usage.audit import Report
    from tenure.usage.checks import Entry

FAULTS = 1
PAGE = 1000


def audit(
    database: DatabaseFlag = None,
    ledger: Annotated[Path | None, typer.Option(help="A ledger of `tenure receiver` to compare with.")] = None,
    from_at: Annotated[str | None, typer.Option("--from", help="Only windows that end after this instant.")] = None,
    as_json: JsonFlag = False,
    config: ConfigFlag = None,
) -> None:
    """Check that every instant was billed once, and exit with 1 if not."""
    # It listens nowhere, so the host that `serve --insecure` is told must not stop it.
    settings = load_settings(config, database=database, insecure=True)
    from tenure.auditing import audit as run  # noqa: PLC0415 - other commands need no store

    report = run(settings, None if ledger is None else _ReceiverLedger(ledger), _instant(from_at))
    typer.echo(msgspec.json.encode(_values(report)).decode() if as_json else _words(report))
    if report.findings:
        raise typer.Exit(FAULTS)


def _instant(text: str | None) -> datetime | None:
    try:
        instant = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        instant = datetime.min  # noqa: DTZ901 - refused below, since it has no offset
    if instant is not None and instant.tzinfo is None:
        raise ConfigurationError("from: must be an instant with its offset, as 2026-01-02T03:04:05Z")
    return instant


class _ReceiverLedger:
    """The file of `tenure receiver`, as the audit wants to see it."""

    def __init__(self, path: Path) -> None:
        from tenure.receiver.ledger import Ledger  # noqa: PLC0415

        if not path.is_file():
            raise ConfigurationError(f"ledger: there is no file {path}")
        self._ledger: Ledger = Ledger(path)

    def find(self, key: str) -> "Entry | None":
        found = self._ledger.find(key)
        return None if found is None else _entry(found)

    def entries(self) -> "Iterator[Entry]":
        after = 0
        while page := self._ledger.page(after, PAGE):
            yield from map(_entry, page)
            after = page[-1].position

    def total(self) -> Decimal:
        return Decimal(self._ledger.totals().usage)


def _entry(found: "ReceiverEntry") -> "Entry":
    from tenure.usage.checks import Entry  # noqa: PLC0415

    return Entry(found.key, found.digest, found.records, found.usage, found.conflicts)


def _amounts(report: "Report") -> dict[str, str]:
    return {
        "lived": decimal_text(report.lived_millionths),
        "delivered": decimal_text(report.delivered_millionths),
        "waiting": decimal_text(report.waiting_millionths),
        "unsent": decimal_text(report.unsent_millionths),
    }


def _values(report: "Report") -> dict[str, object]:
    amounts = {name: msgspec.Raw(text.encode()) for name, text in _amounts(report).items()}
    return {"windows": report.windows, "chunks": report.chunks, **amounts, "findings": report.findings}


def _words(report: "Report") -> str:
    amounts = _amounts(report)
    lines = [
        f"{report.windows} windows, {report.chunks} chunks",
        f"lived      {amounts['lived']}",
        f"delivered  {amounts['delivered']}",
        f"waiting    {amounts['waiting']}",
        f"unsent     {amounts['unsent']}",
        *(f"{finding.check}: {finding.detail}" for finding in report.findings),
        f"{len(report.findings)} faults" if report.findings else "no faults",
    ]
    return "\n".join(lines)
