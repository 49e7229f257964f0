"""`tenure doctor`: runs the checks, prints their findings, and exits with 0, 1 or 3."""

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import msgspec
import typer

from tenure.cli.exits import ExitCode
from tenure.cli.flags import ConfigFlag, DatabaseFlag, JsonFlag, load_settings
from tenure.cli.output import clean, counted, print_json, styled

if TYPE_CHECKING:
    from tenure.config import Config
    from tenure.doctor.examine import Report
    from tenure.doctor.findings import Finding

POOL_SIZE = 4
"""The smallest allowed size: the doctor must not take connections that the instances need."""
CLOSE_SECONDS = 1.0
STATUSES = {ExitCode.DONE: "fine", ExitCode.FAILED: "broken", ExitCode.WARNINGS: "warnings"}


def doctor(
    database: DatabaseFlag = None,
    as_json: JsonFlag = False,
    config: ConfigFlag = None,
) -> None:
    """Check an installation for problems, and print how to solve each. The command changes nothing, and works with or
    without a running service. Every check has a time limit.

    If all is well, the command prints one line. It exits with code 0 if all is well, 1 if something is broken, and 3 if
    there are only warnings. docs/doctor.md explains the code of every finding.

    tenure doctor --config tenure.toml
    """
    settings = load_settings(config, database=database)
    report = asyncio.run(_examine(settings, _flags(settings, database, config)))
    if as_json:
        print_json(_json_values(report))
    else:
        typer.echo(_text(report))
    code = _exit_code(report)
    if report.is_hanging:
        # A normal exit of Python would wait for the thread of the check that hangs.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)


def _flags(settings: "Config", database: str | None, config: object) -> list[str]:
    """Return the flags that a command in a finding needs to work on the same installation."""
    from tenure.doctor.patient import named_database  # noqa: PLC0415

    flags = [] if database is None else ["--database", named_database(settings.database)]
    return flags if config is None else [*flags, "--config", str(config)]


async def _examine(settings: "Config", flags: list[str]) -> "Report":
    from tenure.doctor.examine import examine  # noqa: PLC0415 - other commands need no store
    from tenure.doctor.patient import Patient  # noqa: PLC0415
    from tenure.store.engines import open_store  # noqa: PLC0415

    store = open_store(settings.database, POOL_SIZE, read_only=True)
    report = await examine(Patient(settings, store, flags))
    if not report.is_hanging:
        await asyncio.wait({asyncio.ensure_future(store.close())}, timeout=CLOSE_SECONDS)
    return report


def _exit_code(report: "Report") -> ExitCode:
    from tenure.doctor.findings import Severity  # noqa: PLC0415

    if report.count(Severity.BROKEN):
        return ExitCode.FAILED
    return ExitCode.WARNINGS if report.findings else ExitCode.DONE


def _text(report: "Report") -> str:
    return "\n".join([*map(_paragraph, report.findings), _summary(report)])


def _paragraph(finding: "Finding") -> str:
    from tenure.doctor.findings import Severity  # noqa: PLC0415

    severity = styled(finding.severity.value, "bad" if finding.severity is Severity.BROKEN else "warn")
    return f"{severity}  {finding.code.value}: {clean(finding.seen)}\n    mend: {clean(finding.mend)}"


def _summary(report: "Report") -> str:
    from tenure.doctor.examine import Outcome  # noqa: PLC0415
    from tenure.doctor.findings import DOCS, Severity  # noqa: PLC0415

    skipped = sum(result.outcome is Outcome.SKIPPED for result in report.results)
    checks = f"{len(report.results) - skipped} checks" + (f", {skipped} skipped" if skipped else "")
    if not report.findings:
        return f"fine: {checks}, nothing found"
    warnings = report.count(Severity.WARNING)
    counts = f"{report.count(Severity.BROKEN)} broken, {counted(warnings, 'warning')}"
    return f"{counts} ({checks}); {DOCS} explains each code"


def _json_values(report: "Report") -> dict[str, object]:
    findings = [msgspec.to_builtins(finding) | {"docs": finding.docs} for finding in report.findings]
    checks = [
        {"check": result.check, "outcome": result.outcome, "seconds": round(result.seconds, 3)}
        for result in report.results
    ]
    return {
        "status": STATUSES[_exit_code(report)],
        "findings": findings,
        "count": len(findings),
        "checks": checks,
    }
