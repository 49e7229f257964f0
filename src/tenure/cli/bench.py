"""`tenure bench`: loads a running service within limits, and prints its rate and latencies."""

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit
from uuid import uuid4

import typer

from tenure.cli.exits import ExitCode, fail
from tenure.cli.flags import JsonFlag
from tenure.cli.output import clean, note, print_json, print_table, progress
from tenure.cli.service import ContextFlag, KeyFlag, Service, Target, UrlFlag, service_failures, target_of
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure.cli.output import Progress
    from tenure.load.latencies import Latencies
    from tenure.load.run import Measured, Plan

LOADS = ("opens", "heartbeats", "mixed")
SECONDS = 10
SECONDS_MAX = 600
CONNECTIONS = 16
CONNECTIONS_MAX = 256
SESSIONS = 1000
PREPARED_MAX = 100_000
GENERATOR_SHARE = 0.9
"""If the load generator uses more than this share of a core, it may be slower than the service."""


def bench(
    load: Annotated[str, typer.Option(help="What to send: opens, heartbeats or mixed.", metavar="LOAD")] = "mixed",
    seconds: Annotated[
        int, typer.Option(help="How long to measure.", metavar="NUMBER", min=1, max=SECONDS_MAX)
    ] = SECONDS,
    connections: Annotated[
        int,
        typer.Option(help="How many requests to send at a time.", metavar="NUMBER", min=1, max=CONNECTIONS_MAX),
    ] = CONNECTIONS,
    sessions: Annotated[
        int,
        typer.Option(
            help="How many sessions to open first, for heartbeats and mixed.", metavar="NUMBER", min=1, max=PREPARED_MAX
        ),
    ] = SESSIONS,
    remote: Annotated[
        bool, typer.Option("--remote", help="Allow a service on another machine, which gets the full load.")
    ] = False,
    as_json: JsonFlag = False,
    url: UrlFlag = None,
    key: KeyFlag = None,
    context: ContextFlag = None,
) -> None:
    """Measure a running service: requests per second and latencies, under a bounded load.

    Each connection sends its next request when its previous request is answered. `opens` opens sessions of new users,
    `heartbeats` renews sessions that the command opens before it measures, and `mixed` sends a random mix (of 20
    requests, on average 16 heartbeats, 2 opens, 1 read and 1 end). Afterwards, and after ctrl-C, the command ends the
    sessions that it opened. If the command is killed, or stopped by a second ctrl-C, the remaining sessions end when
    their lease (`--seconds` plus two minutes) expires.

    The load generator is one process. If this process may have been slower than the service, the command prints a note.
    In that case, run the command several times at the same time, and add up the rates. The command exits with code 1 if
    a request was refused or failed, if no request succeeded, or if a session could not be ended.

    tenure bench --load heartbeats --seconds 10 --connections 32
    """
    if load not in LOADS:
        raise ConfigurationError(f"load: must be {', '.join(LOADS[:-1])} or {LOADS[-1]}")
    target = target_of(url, key, context)
    _check_host(target.url, remote=remote)
    tenant = _tenant(target)

    from tenure.load.run import Load, Plan  # noqa: PLC0415 - imported only if all flags are valid

    plan = Plan(load=Load(load), seconds=seconds, connections=connections, sessions=sessions, tenant=tenant)
    with progress() as shown:
        measured = _run(target, plan, shown)
    if as_json:
        print_json(_json_values(target.url, measured))
    else:
        _print(target.url, measured)
    if measured.was_stopped:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if measured.failures or measured.refused or measured.left or not measured.requests:
        raise typer.Exit(ExitCode.FAILED)


def _check_host(url: str, *, remote: bool) -> None:
    from tenure.config.urls import is_loopback  # noqa: PLC0415

    host = urlsplit(url).hostname or ""
    if not remote and not is_loopback(host):
        raise ConfigurationError(f"url: {host} is not this machine; pass --remote to load another machine")


def _tenant(target: Target) -> str:
    """Return the tenant of the sessions, and check that the caller may open sessions of many users."""
    with Service(target, retries=0) as service, service_failures(service):
        caller = service.client.me()
        if caller.role == "reader":
            fail("the key has the role reader, and may not open sessions", ExitCode.DENIED)
        if caller.user_object_id is not None:
            fail("the credential is bound to one user, and may not open sessions of others", ExitCode.DENIED)
        return caller.tenant_object_id or str(uuid4())


def _run(target: Target, plan: "Plan", shown: "Progress") -> "Measured":
    from tenure.load.connections import Destination  # noqa: PLC0415
    from tenure.load.run import Bench  # noqa: PLC0415

    async def run() -> "Measured":
        bench = Bench(Destination(target.url, target.key), plan, shown.show)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, bench.stop)
        return await bench.run()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(run())


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not available on every platform
    except ImportError:
        return None
    return uvloop.Loop


def _print(url: str, measured: "Measured") -> None:
    plan = measured.plan
    note(f"{plan.load} for {measured.seconds:.1f} s over {plan.connections} connections to {url}")
    rows = [(str(name), *_figures(each, measured.seconds)) for name, each in sorted(measured.latencies.items())]
    if len(rows) != 1:
        rows.append(("all", *_figures(measured.all_latencies(), measured.seconds)))
    print_table(["request", "succeeded", "per second", "p50 ms", "p90 ms", "p99 ms", "longest ms"], rows)
    for status, count in sorted(measured.answers.items()):
        if not 200 <= status < 300:  # noqa: PLR2004
            note(f"requests refused with status {status}: {count}")
    for reason, count in measured.failures.items():
        note(f"requests without a response ({clean(reason)}): {count}")
    note(f"sessions opened and ended: {measured.ended}")
    if measured.left:
        note(f"sessions that could not be ended: {measured.left}; they end when their leases expire")
    if measured.generator_share > GENERATOR_SHARE:
        note("the load generator used a whole core, so the service may be faster; run several commands at once")


def _figures(latencies: "Latencies", seconds: float) -> tuple[int, str, str, str, str, str]:
    from tenure.load.run import percentiles  # noqa: PLC0415

    p50, p90, p99 = (_milliseconds(each) for each in percentiles(latencies))
    rate = latencies.count / seconds if seconds else 0
    return latencies.count, f"{rate:.1f}", p50, p90, p99, _milliseconds(latencies.longest * 1000)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _json_values(url: str, measured: "Measured") -> dict[str, object]:
    plan = measured.plan
    return {
        "url": url,
        "load": plan.load,
        "connections": plan.connections,
        "seconds": round(measured.seconds, 3),
        **_json_figures(measured.all_latencies(), measured.seconds),
        "operations": {
            str(name): _json_figures(each, measured.seconds) for name, each in sorted(measured.latencies.items())
        },
        "answers": {str(status): count for status, count in sorted(measured.answers.items())},
        "failures": dict(measured.failures),
        "sessionsOpened": measured.opened,
        "sessionsEnded": measured.ended,
        "sessionsLeft": measured.left,
        "generatorShare": round(measured.generator_share, 3),
    }


def _json_figures(latencies: "Latencies", seconds: float) -> dict[str, object]:
    from tenure.load.run import percentiles  # noqa: PLC0415

    p50, p90, p99 = percentiles(latencies)
    return {
        "requests": latencies.count,
        "perSecond": round(latencies.count / seconds, 1) if seconds else 0,
        "p50Ms": p50,
        "p90Ms": p90,
        "p99Ms": p99,
        "longestMs": round(latencies.longest * 1000, 3) if latencies.count else None,
    }
