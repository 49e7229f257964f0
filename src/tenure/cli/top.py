"""`tenure top`: the installation live, in a terminal.

One thread reads from the service, and the main thread draws and reads keys. So `q` works while the network hangs. The
screen is drawn at most once a second. When the command ends, unless it is killed, the terminal gets back its screen,
its cursor and its settings.
"""

import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tenure.cli.jobs import job_state
from tenure.cli.output import (
    Column,
    Value,
    clean,
    colours,
    duration_text,
    exact_text,
    field_lines,
    id_cell,
    relative_text,
    styled,
    table,
    text_cell,
    time_cell,
    width,
)
from tenure.cli.overview import Overview, overview_fields, read_overview
from tenure.cli.service import (
    ContextFlag,
    KeyFlag,
    Service,
    UrlFlag,
    connected,
    reason_text,
    service_failures,
    target_of,
)
from tenure.cli.sessions import KINDS
from tenure.clock import monotonic
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure_client.models import Session

DRAW_SECONDS = 1.0
INTERVAL_MIN, INTERVAL_MAX = 1.0, 3600.0
READ_TIMEOUT = 10.0
NEXT_TO_LAPSE = 20
"""How many sessions are read: the ones with the earliest deadlines."""
LAPSES = 10
"""How many of these sessions are shown at most. Sessions that lapse only at the end of their term are not shown."""

ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 60
"""How many minutes the lines of bars show."""


def top(
    interval: Annotated[float, typer.Option(help="Seconds between two reads.", metavar="SECONDS")] = 2.0,
    url: UrlFlag = None,
    key: KeyFlag = None,
    context: ContextFlag = None,
) -> None:
    """Show the installation live: sessions, rates, seats, usage, leaders, jobs, alerts and the next lapses.

    `q` or ctrl-C ends the command. Without a terminal, the command prints one screen and ends.

    tenure top
    tenure top --context prod --interval 5
    """
    if not INTERVAL_MIN <= interval <= INTERVAL_MAX:
        raise ConfigurationError(f"interval: must be from {INTERVAL_MIN:g} to {INTERVAL_MAX:g} seconds")
    if not sys.stdout.isatty():
        with connected(url, key, context) as service:
            for line in frame(read(service), width(), None, coloured=False):
                typer.echo(line)
        return
    with Service(target_of(url, key, context), timeout=READ_TIMEOUT, retries=0) as service:
        with service_failures(service):
            first = read(service)
        _Screen(_Reader(service, interval, first)).run()


# The screen.


class Seen(NamedTuple):
    """The result of one read."""

    at: float
    """When the values were read, by `monotonic`."""
    overview: Overview
    next_to_lapse: "Sequence[Session]"
    failure: str | None = None
    """Why the newest read failed. The other fields are then from an earlier read."""


def read(service: Service) -> Seen:
    found = service.client.sessions.list(order="lapse", limit=NEXT_TO_LAPSE).first()
    return Seen(monotonic(), read_overview(service), [each for each in found.sessions if _has_limit(each)])


def _has_limit(session: "Session") -> bool:
    """Whether the session lapses before its term ends."""
    return session.lease_expires_at < session.session_end_utc


def frame(seen: Seen, columns: int, lines: int | None, *, coloured: bool) -> list[str]:
    """Return the lines of a screen of this size. If `lines` is None, all lines are returned, however many there are."""
    shown = field_lines(overview_fields(seen.overview), columns, coloured=coloured)
    if seen.failure is not None:
        age = duration_text(monotonic() - seen.at)
        shown.insert(0, styled(f"{seen.failure} (values below: {age} old)"[:columns], "bad", on=coloured))
    for part in (_activity_lines(seen, columns), *(make(seen, columns, coloured=coloured) for make in TABLES)):
        room = len(part) if lines is None else lines - 2 - len(shown)
        if part and room >= min(len(part), PART_MIN):
            shown += ["", *part[:room]]
    if lines is None:
        return shown
    foot = f"{exact_text(seen.overview.at)}  q quits"[:columns]
    shown = shown[: lines - 1]
    return [*shown, *[""] * (lines - 1 - len(shown)), styled(foot, "dim", on=coloured)]


PART_MIN = 3
"""The least that is shown of a longer table: its head and two rows. With less room, the table is left out."""


def _activity_lines(seen: Seen, columns: int) -> list[str]:
    """One line of bars for each kind of event, minute by minute up to now."""
    if seen.overview.activity is None:
        return []
    points = seen.overview.activity.points[-max(1, min(SPARKS, columns - 40)) :]
    counts = {
        "opened": [point.opened + point.upgraded for point in points],
        "heartbeats": [point.heartbeats for point in points],
        "lapsed": [point.lapsed for point in points],
    }
    return [
        f"{name:<10}  {bars(values)}  at most {max(values):,} a minute"[:columns]
        for name, values in counts.items()
        if any(values)
    ]


def bars(values: Sequence[int]) -> str:
    highest = max(values)
    return "".join(BARS[0] if not value else BARS[max(1, (len(BARS) - 1) * value // highest)] for value in values)


def _lapse_lines(seen: Seen, columns: int, *, coloured: bool) -> list[str]:
    if not seen.next_to_lapse:
        return []
    head = (Column("next to lapse"), Column("ends"), Column("kind", 2), Column("user", 1), Column("capacity", 3))
    at = seen.overview.at
    rows: list[list[Value]] = [
        [
            each.session_id,
            relative_text(each.lease_expires_at, at),
            KINDS.get(each.session_kind, str(each.session_kind)),
            id_cell(each.user_object_id),
            id_cell(each.capacity_id),
        ]
        for each in seen.next_to_lapse[:LAPSES]
    ]
    return table(head, rows, columns, coloured=coloured)


def _job_lines(seen: Seen, columns: int, *, coloured: bool) -> list[str]:
    if not seen.overview.jobs:
        return []
    head = (
        Column("job"),
        Column("state"),
        Column("next run", 1),
        Column("last success", 2),
        Column("last error", 3, can_be_cut=True),
    )
    at = seen.overview.at
    rows: list[list[Value]] = [
        [
            job.name,
            job_state(job),
            None if job.paused else time_cell(job.retry_at or job.next_run_at, at),
            time_cell(job.last_success_at, at),
            text_cell(job.last_error, "bad"),
        ]
        for job in seen.overview.jobs
    ]
    return table(head, rows, columns, coloured=coloured)


TABLES = (_lapse_lines, _job_lines)


# Reading and drawing.


class _Reader:
    """Reads repeatedly in its own thread, and keeps the last result."""

    def __init__(self, service: Service, interval: float, first: Seen) -> None:
        self.service = service
        self._interval = interval
        self.seen = first
        self.has_changed = threading.Event()
        self._is_stopped = threading.Event()
        self.fatal: BaseException | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="tenure-top", daemon=True).start()

    def stop(self) -> None:
        self._is_stopped.set()

    def _run(self) -> None:
        from tenure_client import errors  # noqa: PLC0415

        while not self._is_stopped.wait(self._interval):
            try:
                self.seen = read(self.service)
            except errors.TransportError as error:
                self._keep_failure(f"does not answer: {clean(reason_text(error))}")
            except (errors.Unavailable, errors.TooManyRequests, errors.Internal) as error:
                self._keep_failure(f"answers with an error: {clean(str(error))}")
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                self.fatal = error
            self.has_changed.set()

    def _keep_failure(self, what: str) -> None:
        self.seen = self.seen._replace(failure=f"{self.service.url} {what}")


class _Screen:
    def __init__(self, reader: _Reader) -> None:
        self._reader = reader
        self._has_keys = sys.stdin.isatty()

    def run(self) -> None:
        self._reader.start()
        try:
            with self._taken():
                self._loop()
        finally:
            self._reader.stop()
        if self._reader.fatal is not None:
            with service_failures(self._reader.service):
                raise self._reader.fatal

    def _loop(self) -> None:
        drawn_at = -DRAW_SECONDS
        while self._reader.fatal is None:
            wait = drawn_at + DRAW_SECONDS - monotonic()
            if wait <= 0:
                self._draw()
                drawn_at = monotonic()
                continue
            if self._key_within(wait) in ("q", "Q", "\x04"):
                return

    def _draw(self) -> None:
        size = shutil.get_terminal_size()
        lines = frame(self._reader.seen, size.columns, size.lines, coloured=colours())
        sys.stdout.write(HOME + f"{END_OF_LINE}\n".join(lines) + END_OF_LINE + END_OF_SCREEN)
        sys.stdout.flush()

    def _key_within(self, seconds: float) -> str | None:
        if not self._has_keys:
            self._reader.has_changed.wait(seconds)
            self._reader.has_changed.clear()
            return None
        with suppress(InterruptedError):
            ready, _, _ = select.select([sys.stdin], [], [], seconds)
            if ready:
                return os.read(sys.stdin.fileno(), 1).decode(errors="replace")
        return None

    @contextmanager
    def _taken(self) -> Iterator[None]:
        """Take over the terminal for the block. Give it back at the end, and while ctrl-Z suspends the command."""
        settings = termios.tcgetattr(sys.stdin) if self._has_keys else None

        def enter() -> None:
            if settings is not None:
                tty.setcbreak(sys.stdin)
            sys.stdout.write(ENTER)
            sys.stdout.flush()

        def leave() -> None:
            sys.stdout.write(LEAVE)
            sys.stdout.flush()
            if settings is not None:
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)

        handlers = _handled({signal.SIGTERM: _exit, signal.SIGHUP: _exit, signal.SIGTSTP: _stopper(enter, leave)})
        enter()
        try:
            yield
        finally:
            leave()
            _handled(handlers)


def _handled(handlers: dict[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Set handlers, and return the previous ones."""
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _stopper(enter: Callable[[], None], leave: Callable[[], None]) -> Callable[[int, object], None]:
    def stop(number: int, _frame: object) -> None:
        leave()
        before = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # Returns when the command is continued.
        signal.signal(number, before)
        enter()

    return stop
