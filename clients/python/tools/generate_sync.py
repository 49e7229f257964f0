"""Generates the sync client from the async one.

python clients/python/tools/generate_sync.py           # write
python clients/python/tools/generate_sync.py --check   # fail if the generated files differ
"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "tenure_client"
BY_HAND = {"__init__.py", "_io.py"}
HEADER = "# Generated from ../_async/{name} by tools/generate_sync.py. Do not edit.\n"

DROPPED = {"async", "await"}
RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "AsyncIterator": "Iterator",
    "aclose": "close",
    "_async": "_sync",
}


def sync_source(name: str) -> str:
    """Return the sync form of a module of `_async`."""
    source = (PACKAGE / "_async" / name).read_text(encoding="utf-8")
    text = HEADER.format(name=name) + _converted(source)
    source_file = ["--stdin-filename", str(PACKAGE / "_sync" / name), "-"]
    for step in (["check", "--fix-only", "--select", "I"], ["format"]):
        command = [sys.executable, "-m", "ruff", *step, "--quiet", *source_file]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return text


def _converted(source: str) -> str:
    lines = source.splitlines(keepends=True)
    edits: list[tuple[tuple[int, int], tuple[int, int], str]] = []
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        if token.type == tokenize.NAME and token.string in DROPPED:
            edits.append((token.start, following.start, ""))
        elif token.type in (tokenize.NAME, tokenize.STRING):
            new = _renamed(token.string) if token.type == tokenize.NAME else _renamed_in_text(token.string)
            if new != token.string:
                edits.append((token.start, token.end, new))
    for start, end, new in reversed(edits):
        first, last = lines[start[0] - 1], lines[end[0] - 1]
        lines[start[0] - 1 : end[0]] = [first[: start[1]] + new + last[end[1] :]]
    return "".join(lines)


def _renamed(word: str) -> str:
    if word in RENAMED:
        return RENAMED[word]
    for prefix in ("Async", "_Async"):
        if word.startswith(prefix) and word[len(prefix) : len(prefix) + 1].isupper():
            return prefix.removesuffix("Async") + word.removeprefix(prefix)
    return word


def _renamed_in_text(text: str) -> str:
    """Rename the names in a string literal: a quoted annotation or a docstring."""
    return re.sub(r"\b_?\w+", lambda found: _renamed(found.group()), text)


def main() -> int:
    stale = []
    for path in sorted((PACKAGE / "_async").glob("*.py")):
        if path.name in BY_HAND:
            continue
        target, text = PACKAGE / "_sync" / path.name, sync_source(path.name)
        if "--check" not in sys.argv:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(str(target))
    if stale:
        print("out of date; run tools/generate_sync.py:", *stale, sep="\n  ", file=sys.stderr)  # noqa: T201
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
