"""Tables for people."""

from collections.abc import Mapping, Sequence

GAP = "  "


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """A line for each row, its columns aligned, the names on top."""
    if not rows:
        return "nothing"
    lines = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(GAP.join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _text(value: object) -> str:
    return "-" if value is None else str(value)
