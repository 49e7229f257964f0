"""`tenure demo`: runs an installation with simulated users, and shows on the terminal what happens."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.exits import ExitCode, fail
from tenure.cli.output import colours, duration_text, styled, table
from tenure.clock import monotonic

if TYPE_CHECKING:
    from tenure.demo.installation import Installation
    from tenure.demo.story import Line, Story
    from tenure_client import AsyncClient

READY_SECONDS = 20.0
READY_POLL_SECONDS = 0.05
DRAW_SECONDS = 0.25
SUMMARY_SECONDS = 2.0
LEAVE_SECONDS = 2.0
"""How long the tasks of the demo, such as the simulated users, may take to end after they are cancelled."""
STYLES = {
    "opened": "good",
    "upgraded": "accent",
    "ended": "dim",
    "lapsed": "warn",
    "evicted": "bad",
    "refused": "bad",
    "billed": "bold",
    "failed": "bad",
}
COUNTED = ("opened", "upgraded", "ended", "lapsed", "evicted", "refused", "billed")
WORD = 9
"""The width of the first word of a line, such as `upgraded`, in characters."""


def demo(
    seconds: Annotated[
        float | None, typer.Option(help="End after so many seconds.  [until ctrl-C]", metavar="NUMBER", min=1)
    ] = None,
) -> None:
    """Run a whole installation with a hundred simulated users, and show what happens. The demo needs no settings.

    The command starts a service and a receiver on free ports of this machine, with an SQLite database in a temporary
    folder. Some users work, some upgrade, some go idle or crash, and some compete for seats. Usage is billed every
    three seconds. The first lines are the addresses to open in a browser. Ctrl-C ends the demo, and leaves no process,
    file or port behind. Without a terminal, the command prints a line for everything that happens.

    tenure demo --seconds 20
    """
    try:
        asyncio.run(_Demo(seconds).run())
    except KeyboardInterrupt:  # before the signal handler was installed
        raise typer.Exit(ExitCode.INTERRUPTED) from None


class _Demo:
    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        from tenure.demo.installation import Installation  # noqa: PLC0415 - other commands need no server
        from tenure.telemetry.logs import configure_logs  # noqa: PLC0415

        # Log only errors. Otherwise lines about the start and the stop of the receiver would appear between the lines
        # of the demo.
        configure_logs("error")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopped.set)
        installation = Installation()
        try:
            await installation.start()
            await self._show(installation)
        finally:
            await installation.stop()
        typer.echo("stopped; no process, file or port is left")

    async def _show(self, installation: "Installation") -> None:
        from tenure.demo.story import Story  # noqa: PLC0415
        from tenure.demo.users import Crowd  # noqa: PLC0415
        from tenure_client import AsyncClient  # noqa: PLC0415

        client = AsyncClient(installation.url, key=None)
        story = Story(client, installation.ledger)
        crowd = Crowd(client, story)
        story.introduce(
            {str(user.user_id): user.name for user in crowd.users},
            {str(place.capacity_id): place.name for place in crowd.places},
        )
        if not await self._wait_until_ready(installation, client):
            return
        addresses = await _addresses(installation, client)
        has_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        view = _Screen(story, addresses) if has_screen else _Lines(story, addresses)
        tasks = [asyncio.create_task(each) for each in (crowd.run(), story.follow(), story.watch(), view.run())]
        ending = asyncio.create_task(self._stopped.wait())
        done, _ = await asyncio.wait([*tasks, ending], timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, ending):
            task.cancel()
        await asyncio.wait(tasks, timeout=LEAVE_SECONDS)
        await client.aclose()
        view.close()
        typer.echo(_summary(story))
        for task in done - {ending}:
            task.result()

    async def _wait_until_ready(self, installation: "Installation", client: "AsyncClient") -> bool:
        from tenure_client import errors  # noqa: PLC0415

        deadline = monotonic() + READY_SECONDS
        while not self._stopped.is_set():
            try:
                await client.ready()
            except errors.TenureError as error:
                if not installation.is_running or monotonic() > deadline:
                    lines = installation.log().strip().splitlines()
                    fail(f"the service did not start: {lines[-1] if lines else error}")
                await asyncio.sleep(READY_POLL_SECONDS)
            else:
                return True
        return False


async def _addresses(installation: "Installation", client: "AsyncClient") -> dict[str, str]:
    """Return the addresses that a browser can open, without those that this version does not serve."""
    from tenure_client import errors  # noqa: PLC0415

    found = {}
    for name, path in {"console": "/console", "API": "/docs", "metrics": "/metrics"}.items():
        try:
            await client.with_options(max_retries=0).request("GET", path)
        except errors.NotFound:
            continue
        except errors.TenureError:
            pass  # a redirect, or a page that is not JSON: the address exists
        found[name] = f"{installation.url}{path}"
    return {**found, "receiver": f"{installation.receiver_url}/_totals"}


def _address_lines(addresses: dict[str, str]) -> list[str]:
    url = addresses["API"].removesuffix("/docs")
    return [
        *(f"{name:{WORD}} {address}" for name, address in addresses.items()),
        f"{'command':{WORD}} tenure top --url {url}",
    ]


def _line_text(line: "Line", *, coloured: bool) -> str:
    return f"{line.at:%H:%M:%S}  {styled(f'{line.what:{WORD}}', STYLES[line.what], on=coloured)} {line.text}"


def _counts_text(story: "Story") -> str:
    live = sum(story.live_by_kind.values())
    return ", ".join([f"{live} live", *(f"{story.counts[what]} {what}" for what in COUNTED)])


def _billed_text(story: "Story") -> str:
    totals = story.totals
    return f"{totals.usage} units in {totals.keys} deliveries, each counted once by the receiver"


def _summary(story: "Story") -> str:
    return f"{_counts_text(story)}\nbilled {_billed_text(story)}"


class _Lines:
    """Prints a line for everything that happens, for pipes and files."""

    def __init__(self, story: "Story", addresses: dict[str, str]) -> None:
        self._story = story
        for line in _address_lines(addresses):
            typer.echo(line)

    async def run(self) -> None:
        summary_at = monotonic() + SUMMARY_SECONDS
        while True:
            try:
                async with asyncio.timeout(max(0.0, summary_at - monotonic())):
                    line = await self._story.unread.get()
            except TimeoutError:
                summary_at = monotonic() + SUMMARY_SECONDS
                typer.echo(f"          {_counts_text(self._story)}")
            else:
                typer.echo(_line_text(line, coloured=False))
            sys.stdout.flush()

    def close(self) -> None:
        pass


class _Screen:
    """Redraws the alternate screen of the terminal a few times a second. `close` brings the earlier content back."""

    def __init__(self, story: "Story", addresses: dict[str, str]) -> None:
        self._story = story
        self._addresses = addresses
        self._began = monotonic()
        self._is_open = False

    async def run(self) -> None:
        self._is_open = True
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        while True:
            self._draw()
            await asyncio.sleep(DRAW_SECONDS)

    def close(self) -> None:
        if self._is_open:
            sys.stdout.write("\x1b[?25h\x1b[?1049l")
            sys.stdout.flush()

    def _draw(self) -> None:
        wide, high = shutil.get_terminal_size()
        above = list(self._above(wide))
        room = max(0, high - len(above) - 1)
        newest = list(self._story.lines)[-room:] if room else []
        lines = [*above, *(_line_text(line, coloured=colours()) for line in newest)]
        # Clear the rest of each line, and then everything below the last line.
        sys.stdout.write("\x1b[H" + "".join(f"{_cut(line, wide)}\x1b[K\r\n" for line in lines[: high - 1]) + "\x1b[J")
        sys.stdout.flush()

    def _above(self, wide: int) -> Iterator[str]:
        story, coloured = self._story, colours()
        age = duration_text(round(monotonic() - self._began))
        yield f"{styled('Tenure demo', 'bold')}  100 users, {age}; ctrl-C ends it and leaves nothing behind"
        yield ""
        yield from _address_lines(self._addresses)
        yield ""
        yield ", ".join(f"{count} of kind {kind}" for kind, count in sorted(story.live_by_kind.items()))
        yield _counts_text(story)
        yield f"{styled('billed', 'bold')} {_billed_text(story)}"
        yield ""
        rows = [
            (name, each.live, "no limit" if each.max_sessions is None else each.max_sessions, each.when_full)
            for name, each in sorted(story.seats.items())
        ]
        if rows:
            yield from table(["capacity", "live", "seats", "when full"], rows, wide, coloured=coloured)
            yield ""


def _cut(line: str, wide: int) -> str:
    """Shorten a line to the width of the terminal. The escape sequences of colours do not count."""
    shown, text, position = 0, [], 0
    while position < len(line) and shown < wide:
        if line[position] == "\x1b":
            end = line.index("m", position) + 1
            text.append(line[position:end])
            position = end
        else:
            text.append(line[position])
            shown, position = shown + 1, position + 1
    return "".join(text) + ("\x1b[0m" if "\x1b" in line else "")
