"""The output of commands: tables and fields for people, JSON for programs, questions, notes and progress.

Data goes to standard output, everything else to standard error. On a terminal, a table omits the columns in which no
row has a value. If the table is still wider than the terminal, cells are shortened, and then columns are cut or
omitted, those of the highest rank first. Columns of rank 0 are never omitted. Without a terminal, nothing is shortened,
omitted or coloured.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self, TextIO

import msgspec
import typer

from tenure.clock import from_microseconds, instant_text, monotonic, wall_microseconds
from tenure.errors import ConfigurationError

GAP = "  "
NONE = "-"
SHORT_ID = 8
WIDTH_OF_PIPES = 10_000
CUT_MIN = 16
"""At least this many characters remain of a column that is cut. A column that needs to be narrower is omitted, unless
its rank is 0."""
PROGRESS_SECONDS = 0.2
MILLIONTHS = 1_000_000

STYLES = {"good": "32", "warn": "33", "bad": "31", "dim": "2", "bold": "1", "accent": "36"}


# Colours.


def colours(stream: TextIO | None = None) -> bool:
    """Whether this stream, by default standard output, gets colours: it is a terminal that has colours, and `NO_COLOR`
    is not set.
    """
    out = stream or sys.stdout
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and out.isatty()


def styled(text: str, style: str | None, *, on: bool | None = None) -> str:
    """Return the text in a style of `STYLES` if `on` is true; by default, if standard output gets colours."""
    if style is None or not (colours() if on is None else on):
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def clean(value: object) -> str:
    """Return text without control characters: data from a service must not control the terminal."""
    return _CONTROL.sub(" ", str(value)).strip()


# Times.


def host_now() -> datetime:
    """Return the time by the clock of this host. For relative times, commands that call a service use `Service.now`,
    which follows the database's clock.
    """
    return from_microseconds(wall_microseconds())


def duration_text(seconds: float) -> str:
    """Return a duration, rounded to one unit that fits its size, such as `42 s`, `12 min` or `3 days`."""
    if seconds < 0.9995:  # noqa: PLR2004 - a duration that rounds to 1000 ms is printed in seconds
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    for limit, size, unit in ((119.5, 1, "s"), (119.5 * 60, 60, "min"), (47.5 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds / 86_400)} days"


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: `1 session`, `1,200 sessions`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def relative_text(instant: datetime, at: datetime) -> str:
    """Return `in 42 s`, `12 min ago` or `now`."""
    seconds = (instant - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {duration_text(seconds)}" if seconds > 0 else f"{duration_text(-seconds)} ago"


def exact_text(instant: datetime) -> str:
    """Return the instant in UTC to the second."""
    return f"{instant_text(instant.astimezone(UTC))[:19]}Z"


def fixed_text(millionths: int) -> str:
    """Format an amount in millionths with all six decimals, so that the decimal points of a column are aligned."""
    whole, rest = divmod(millionths, MILLIONTHS)
    return f"{whole}.{rest:06}"


# Tables.


class Cell(NamedTuple):
    """A value in a table, shown as `text`, or as `short` if the terminal is too narrow for `text`."""

    text: str
    short: str | None = None
    style: str | None = None


class Column(NamedTuple):
    name: str
    rank: int = 0
    """On a narrow terminal, the columns with the highest rank are left out first. Columns with rank 0 always stay."""
    can_be_cut: bool = False
    """Whether a narrow terminal may show only the beginning of each text, for example of an error message."""


Value = Cell | datetime | str | int | float | None


def id_cell(value: str | None) -> Cell:
    """An id. The short form is the end of the id, because ids that were made at about the same time begin alike."""
    if value is None:
        return Cell(NONE)
    return Cell(clean(value), f"…{clean(value)[-SHORT_ID:]}")


def time_cell(instant: datetime | None, at: datetime, style: str | None = None) -> Cell:
    """An exact and a relative time; on a narrow terminal, only the relative time. `at` is the current time."""
    if instant is None:
        return Cell(NONE)
    relative = relative_text(instant, at)
    return Cell(f"{exact_text(instant)} ({relative})", relative, style)


def text_cell(value: str | None, style: str | None = None) -> Cell:
    """A text of any length, such as an error message."""
    if value is None:
        return Cell(NONE)
    return Cell(clean(value), style=style)


def print_table(columns: Sequence[Column | str], rows: Iterable[Sequence[Value]], empty: str = "no data") -> None:
    """Print rows with aligned columns, numbers to the right. Without rows, print `empty` to standard error."""
    listed = list(rows)
    if not listed:
        note(empty)
        return
    for line in table(columns, listed, width(), coloured=colours()):
        typer.echo(line)


def table(
    columns: Sequence[Column | str], rows: Iterable[Sequence[Value]], columns_wide: int, *, coloured: bool
) -> list[str]:
    """Return the lines of a table of at most `columns_wide` characters, unless columns of rank 0 need more."""
    shown = [column if isinstance(column, Column) else Column(column) for column in columns]
    return _lines(shown, [[_cell(value) for value in row] for row in rows], columns_wide, coloured=coloured)


def print_fields(fields: Mapping[str, Value]) -> None:
    """Print one field per line, with aligned values."""
    for line in field_lines(fields, WIDTH_OF_PIPES, coloured=colours()):
        typer.echo(line)


def field_lines(fields: Mapping[str, Value], columns_wide: int, *, coloured: bool) -> list[str]:
    """Return one line per field, each at most `columns_wide` characters wide."""
    widest = max(map(len, fields))
    room = max(columns_wide - widest - len(GAP), 1)
    cells = {name: _cell(value) for name, value in fields.items()}
    return [
        f"{styled(name.ljust(widest), 'dim', on=coloured)}{GAP}"
        f"{styled(_cut(cell.text, room), cell.style, on=coloured)}".rstrip()
        for name, cell in cells.items()
    ]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def width() -> int:
    """The width of the terminal. A pipe has no width, so nothing is shortened there."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_PIPES


def _cell(value: Value) -> Cell:
    match value:
        case Cell():
            return value
        case None:
            return Cell(NONE)
        case datetime():
            return Cell(exact_text(value))
        case _:
            return Cell(clean(value))


def _lines(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], most: int, *, coloured: bool) -> list[str]:
    layout = _Layout(columns, rows, most)
    layout.fit()
    aligned = [layout.aligned(index, coloured=coloured) for index in layout.shown]
    return [GAP.join(line).rstrip() for line in zip(*aligned, strict=True)]


class _Layout:
    """Decides which columns of a table are shown, and which of them are shortened or cut."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], most: int) -> None:
        self._columns = columns
        self._rows = rows
        self._most = most
        everything = range(len(columns))
        self.shown = [index for index in everything if most == WIDTH_OF_PIPES or self._says_something(index)]
        self._short: set[int] = set()
        self._cut: dict[int, int] = {}

    def fit(self) -> None:
        """Shorten columns, the highest rank first. If that is not enough, cut or omit them in the same order."""
        by_rank = sorted(self.shown, key=lambda index: (-self._columns[index].rank, -index))
        for index in by_rank:
            if self._spare() < 0:
                self._short.add(index)
        for index in by_rank:
            if self._spare() < 0 and not self._cut_text(index) and self._columns[index].rank:
                self.shown.remove(index)

    def _cut_text(self, index: int) -> bool:
        width = self._width(index) + self._spare()
        if not self._columns[index].can_be_cut or width < CUT_MIN:
            return False
        self._cut[index] = width
        return True

    def aligned(self, index: int, *, coloured: bool) -> list[str]:
        texts, width = self._texts(index), self._width(index)
        justify: Callable[[str, int], str] = str.rjust if all(map(_NUMBER, texts)) else str.ljust
        head = styled(justify(self._columns[index].name, width), "bold", on=coloured)
        styles = [row[index].style for row in self._rows]
        cells = zip(texts, styles, strict=True)
        return [head, *(styled(justify(text, width), style, on=coloured) for text, style in cells)]

    def _says_something(self, index: int) -> bool:
        return self._columns[index].rank == 0 or any(row[index].text != NONE for row in self._rows)

    def _spare(self) -> int:
        return self._most - sum(map(self._width, self.shown)) - len(GAP) * (len(self.shown) - 1)

    def _width(self, index: int) -> int:
        return max(len(self._columns[index].name), *map(len, self._texts(index)))

    def _texts(self, index: int) -> list[str]:
        return [self._text(row[index], index) for row in self._rows]

    def _text(self, cell: Cell, index: int) -> str:
        text = cell.short if index in self._short and cell.short is not None else cell.text
        most = self._cut.get(index)
        return text if most is None else _cut(text, most)


_NUMBER = re.compile(r"-|-?[\d,]+(\.\d+)?").fullmatch


# JSON.


def print_json(content: bytes | Any) -> None:
    """Print JSON as the service sent it, or a value as JSON: indented on a terminal, in one line elsewhere."""
    encoded = content if isinstance(content, bytes) else msgspec.json.encode(content)
    typer.echo(msgspec.json.format(encoded, indent=2).decode() if sys.stdout.isatty() else encoded.decode())


def print_json_line(content: bytes | Any) -> None:
    """Print one line of NDJSON."""
    typer.echo((content if isinstance(content, bytes) else msgspec.json.encode(content)).decode())


class JsonList:
    """Prints a list that comes in pages as one JSON object with the items of all pages. The fields before the items
    come from the first page, the fields after them from the last page; `count` is the number of all items.

    Without a terminal, the items of a page are printed as soon as the page arrives, exactly as the service sent them.
    On a terminal, the whole object is printed at the end, indented.
    """

    def __init__(self, items: str) -> None:
        self._items = items
        self._count = 0
        self._last: dict[str, msgspec.Raw] = {}
        self._parts: list[str] | None = [] if sys.stdout.isatty() else None

    def __enter__(self) -> Self:
        return self

    def add(self, page: bytes) -> None:
        fields = _decode_fields(page)
        items = _decode_items(fields[self._items])
        if not self._last:
            before = list(fields)[: list(fields).index(self._items)]
            self._write("{" + "".join(f'"{name}":{_json_text(fields[name])},' for name in before))
            self._write(f'"{self._items}":[')
        for item in items:
            self._write(f"{',' if self._count else ''}{_json_text(item)}")
            self._count += 1
        self._last = fields

    def __exit__(self, kind: object, *_error: object) -> None:
        if kind is not None or not self._last:
            return
        after = list(self._last)[list(self._last).index(self._items) + 1 :]
        values = {name: _json_text(self._last[name]) for name in after} | {"count": str(self._count)}
        self._write("]" + "".join(f',"{name}":{value}' for name, value in values.items()) + "}")
        if self._parts is not None:
            print_json("".join(self._parts).encode())
        else:
            typer.echo()

    def _write(self, text: str) -> None:
        if self._parts is not None:
            self._parts.append(text)
        else:
            sys.stdout.write(text)


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _json_text(value: msgspec.Raw) -> str:
    return bytes(value).decode()


# Questions, notes and progress.


def note(text: str) -> None:
    """Print a line for people to standard error."""
    typer.echo(text, err=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless `yes` is true. Without a terminal the command cannot ask and needs `--yes`."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(f"{question} Not on a terminal: repeat the command with --yes")
    typer.echo(f"{question} [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("nothing was done")
        raise typer.Exit(1)


class Progress:
    """A line on standard error that is updated in place, on a terminal only."""

    def __init__(self) -> None:
        self._is_on = sys.stderr.isatty()
        self._next = 0.0
        self._drawn = False

    def show(self, text: str) -> None:
        if self._is_on and monotonic() >= self._next:
            self._next = monotonic() + PROGRESS_SECONDS
            self._drawn = True
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


@contextmanager
def progress() -> Iterator[Progress]:
    shown = Progress()
    try:
        yield shown
    finally:
        shown.clear()
