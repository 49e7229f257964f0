"""`tenure audit`: runs the audit, prints its report, and exits with 1 if there are faults."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tenure.cli.exits import ExitCode
from tenure.cli.flags import ConfigFlag, DatabaseFlag, JsonFlag, instant_of, load_settings, run_with_store
from tenure.cli.output import fixed_text, print_json
from tenure.clock import instant_text
from tenure.domain.meter import decimal_text
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure.receiver.ledger import Entry as ReceiverEntry
    from tenure.usage.audit import LedgerTotals, Report
    from tenure.usage.checks import Entry

PAGE = 1000


def audit(
    database: DatabaseFlag = None,
    ledger: Annotated[
        Path | None, typer.Option(help="The ledger of a `tenure receiver` to compare with.  [none]", metavar="FILE")
    ] = None,
    from_at: Annotated[
        str | None,
        typer.Option("--from", help="Only windows that end after this instant or day.  [all]", metavar="TIME"),
    ] = None,
    as_json: JsonFlag = False,
    config: ConfigFlag = None,
) -> None:
    """Check that every instant of every session was billed exactly once.

    The command works in the database, without a running service, and changes nothing. If it finds a fault, it exits
    with code 1. See docs/usage.md#auditing.

    tenure audit --ledger ledger.db
    """
    from tenure.usage.audit import Audit  # noqa: PLC0415 - other commands need no audit

    settings = load_settings(config, database=database)
    from_instant = None if from_at is None else instant_of("from", from_at)
    receiver_ledger = None if ledger is None else _ReceiverLedger(ledger)
    report = run_with_store(settings, lambda store: Audit(store, receiver_ledger, from_instant).run())
    if as_json:
        print_json(_json_values(report))
    else:
        typer.echo(_text(report))
    if report.findings:
        raise typer.Exit(ExitCode.FAILED)


class _ReceiverLedger:
    """Adapts the ledger file of `tenure receiver` to the protocol of the audit."""

    def __init__(self, path: Path) -> None:
        from tenure.receiver.ledger import Ledger  # noqa: PLC0415

        if not path.is_file():
            raise ConfigurationError(f"ledger: file {path} does not exist")
        self._ledger: Ledger = Ledger(path, read_only=True)

    def find(self, key: str) -> "Entry | None":
        found = self._ledger.find(key)
        return None if found is None else _entry(found)

    def entries(self) -> "Iterator[Entry]":
        after = 0
        while page := self._ledger.page(after, PAGE):
            yield from map(_entry, page)
            after = page[-1].position

    def total(self) -> tuple[int, Decimal]:
        totals = self._ledger.totals()
        return totals.keys, Decimal(totals.usage)


def _entry(found: "ReceiverEntry") -> "Entry":
    from tenure.usage.checks import Entry  # noqa: PLC0415

    return Entry(found.key, found.digest, found.records, found.usage, found.conflicts)


def _amounts(report: "Report") -> dict[str, int]:
    return {
        "lived": report.lived_millionths,
        "delivered": report.delivered_millionths,
        "waiting": report.waiting_millionths,
        "unsent": report.unsent_millionths,
    }


def _json_values(report: "Report") -> dict[str, object]:
    amounts = {name: msgspec.Raw(decimal_text(amount).encode()) for name, amount in _amounts(report).items()}
    return {
        "installationId": report.installation_id,
        "from": instant_text(report.from_at),
        "to": instant_text(report.to_at),
        "windows": report.windows,
        "chunks": report.chunks,
        **amounts,
        "chunksWithReceipt": report.chunks_with_receipt,
        "chunksWithoutReceipt": report.chunks_without_receipt,
        "ledger": report.ledger and _ledger_json_values(report.ledger),
        "findings": report.findings,
    }


def _ledger_json_values(ledger: "LedgerTotals") -> dict[str, object]:
    amounts = {"usage": ledger.usage, "unmatchedUsage": ledger.unmatched_usage}
    return {"keys": ledger.keys, "unmatched": ledger.unmatched} | {
        name: msgspec.Raw(f"{amount:f}".encode()) for name, amount in amounts.items()
    }


def _text(report: "Report") -> str:
    span = f"from {instant_text(report.from_at)} to {instant_text(report.to_at)}"
    lines = [
        f"installation {report.installation_id}",
        f"windows: {report.windows}, chunks: {report.chunks}, {span}" if report.windows else "no windows",
        *(f"{name:9}  {fixed_text(amount):>20}" for name, amount in _amounts(report).items()),
        _receipts_text(report),
        *([] if report.ledger is None else [_ledger_text(report.ledger)]),
        *(f"{finding.check}: {finding.detail}" for finding in report.findings),
        {0: "no faults", 1: "1 fault"}.get(len(report.findings), f"{len(report.findings)} faults"),
    ]
    return "\n".join(lines)


def _receipts_text(report: "Report") -> str:
    with_receipt, without = report.chunks_with_receipt, report.chunks_without_receipt
    return f"receipts   delivered chunks with a receipt: {with_receipt}, without: {without}"


def _ledger_text(ledger: "LedgerTotals") -> str:
    line = f"ledger     {ledger.usage:20.6f}  keys: {ledger.keys}"
    if not ledger.unmatched:
        return line
    return f"{line}; delivery keys outside these windows: {ledger.unmatched}, with usage {ledger.unmatched_usage:f}"
