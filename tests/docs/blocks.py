"""The code blocks of all documents, and the markers in front of them.

A marker is an HTML comment in the line before the block:

    <!-- not run: reason -->        the block is not run, for this reason
    <!-- run for: 2 seconds -->     the block does not end by itself, and is stopped after this time
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "docs", "docs/**", "deploy/**", "examples", "examples/**", "clients/*", "src/**")
_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<marker>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    marker: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def reason(self) -> str | None:
        """The reason in the marker `not run`. None if the block has no such marker."""
        found = re.fullmatch(r"not run: (.+)", self.marker or "")
        return found and found[1]

    @property
    def seconds(self) -> float | None:
        """After how many seconds the block is stopped. None if the block ends by itself."""
        found = re.fullmatch(r"run for: (\d+) seconds?", self.marker or "")
        return float(found[1]) if found else None


def pages() -> list[str]:
    found = {path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md" if folder != "." else "*.md")}
    return sorted(str(path.relative_to(ROOT)) for path in found if "node_modules" not in path.parts)


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            found["marker"],
        )
        for found in _BLOCK.finditer(text)
    ]


BLOCKS = [block for page in pages() for block in blocks(page)]
