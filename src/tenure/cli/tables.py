"""Tables for people."""

import re
from collections.abc import Callable, Mapping, Sequence

from tenure.meter import DECIMALS, MILLIONTHS

GAP = "  "
_NUMBER = re.compile(r"-|-?\d+(\.\d+)?").fullmatch


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """A line for each row, its columns aligned, numbers to the right, the names on top."""
    if not rows:
        return "nothing"
    columns = [[name, *(_text(row[name]) for row in rows)] for name in rows[0]]
    aligned = [_aligned(column) for column in columns]
    return "\n".join(GAP.join(line).rstrip() for line in zip(*aligned, strict=True))


def fixed_text(millionths: int) -> str:
    """With all its decimals, so that they stand below each other."""
    whole, rest = divmod(millionths, MILLIONTHS)
    return f"{whole}.{rest:0{DECIMALS}}"


def _aligned(column: Sequence[str]) -> Sequence[str]:
    width = max(map(len, column))
    justify: Callable[[str, int], str] = str.rjust if all(map(_NUMBER, column[1:])) else str.ljust
    return [justify(text, width) for text in column]


def _text(value: object) -> str:
    return "-" if value is None else str(value)
