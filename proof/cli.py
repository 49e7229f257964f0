"""Starts a real ensemble, injects faults for the given time, and reports whether every promise held.

The exit code is 0 if every promise held, and 1 if a check has a finding. With `planted`, the exit code is 0 if every
planted bug was noticed, and 2 otherwise. The exit code is also 2 if the arguments name an unknown fault or bug.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from proof.faults import KINDS
from proof.plan import Plan
from proof.planted import BUGS, Caught, encode, run_planted
from proof.report import report_of, text_of, write_report
from proof.run import run


def main(arguments: list[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    # The client warns about each session that it could not end. The faults cause many such sessions.
    logging.getLogger("tenure_client").setLevel(logging.ERROR)
    if given.command == "planted":
        sys.exit(_planted(given))
    if given.command == "faults":
        for name, kind in KINDS.items():
            print(f"{name:26} {'/'.join(kind.engines):20} {kind.what}")
        return
    sys.exit(_run(given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="decides keys, clients, faults and their times (1)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs N seeds, from --seed on (1)")
    parser.add_argument("--seconds", type=float, default=60, help="how long load and faults last (60)")
    parser.add_argument("--engine", choices=("postgresql", "sqlite"), default="postgresql", help="(postgresql)")
    parser.add_argument("--instances", type=int, default=3, help="how many instances (3)")
    parser.add_argument("--standby", action="store_true", help="give PostgreSQL a standby, and fail over to it once")
    parser.add_argument("--faults", metavar="KINDS", help="kinds, separated by commas, or the word none (all)")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="write report.md, report.json and run.svg")
    commands = parser.add_subparsers(dest="command")
    planted = commands.add_parser("planted", help="plant bugs, and show that the checks notice them")
    planted.add_argument("bugs", nargs="*", metavar="BUG", help=f"{', '.join(BUGS)} (all)")
    commands.add_parser("faults", help="list the kinds of faults")
    return parser


def _run(given: argparse.Namespace) -> int:
    failed = 0
    for seed in range(given.seed, given.seed + given.seeds):
        plan = Plan(
            seed=seed,
            seconds=given.seconds,
            engine=given.engine,
            instances=given.instances,
            standby=given.standby and given.engine == "postgresql",
            faults=_kinds(given.faults),
        )
        done = asyncio.run(run(plan, _say()))
        report = report_of(done)
        print(
            text_of(report)
            if given.seeds == 1
            else _line(report.seed, report.requests, len(done.history.faults), report.findings)
        )
        sys.stdout.flush()
        if given.report is not None:
            write_report(done, given.report if given.seeds == 1 else given.report / f"seed-{seed}")
        failed += bool(report.findings)
    return 1 if failed else 0


def _line(seed: int, requests: int, faults: int, findings: list[str]) -> str:
    verdict = "held" if not findings else "; ".join(findings[:3])
    return f"seed {seed}: {requests} requests, {faults} faults: {verdict}"


def _refuse(reason: str) -> NoReturn:
    print(reason, file=sys.stderr)
    raise SystemExit(2)


def _kinds(text: str | None) -> tuple[str, ...] | None:
    if text is None or text == "none":
        return None if text is None else ()
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        _refuse(f"unknown faults: {', '.join(unknown)}; `python -m proof faults` lists them")
    return names


def _planted(given: argparse.Namespace) -> int:
    all_caught: list[Caught] = []
    for name in given.bugs or BUGS:
        if name not in BUGS:
            _refuse(f"unknown bug: {name}; there are {', '.join(BUGS)}")
        caught = asyncio.run(run_planted(name, given.seed, _say()))
        all_caught.append(caught)
        verdict = "noticed" if caught.as_expected else "NOT NOTICED"
        print(
            f"{name}: {verdict} by {', '.join(caught.by) or 'no check'}; {'; '.join(caught.by.values())[:300]}",
            flush=True,
        )
    if given.report is not None:
        given.report.mkdir(parents=True, exist_ok=True)
        (given.report / "planted.json").write_bytes(encode(all_caught))
    return 0 if all(each.as_expected for each in all_caught) else 2


def _say() -> Callable[[str], None]:
    began = time.monotonic()
    return lambda line: print(f"{time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)
