"""Writes docs/commands.md from the commands themselves: their docstrings, flags, arguments and exit codes.

    python docs/tools/generate_commands.py

The prose of a command is its docstring. In a docstring, a paragraph that begins with `tenure ` is an example, and
`docs/…md` becomes a link. A test fails if the file differs from the output of this script.
"""

import re
import textwrap
from pathlib import Path
from typing import Any

from tenure.cli.exits import ExitCode
from tenure.cli.main import COMMANDS, all_commands, load_command
from tenure.cli.service import CONNECTION_FLAGS

FILE = Path(__file__).parents[1] / "commands.md"
WIDTH = 120
HEAD = """\
# Commands

<!-- Written by docs/tools/generate_commands.py from the commands themselves. Do not edit. -->

`tenure --help` lists the commands, `tenure COMMAND --help` prints a command's part of this page, and `tenure --version`
prints the version. For a mistyped command or flag, the error suggests a similar one, if there is one.

Most commands call a running service through the [Python client](clients/python.md). `serve`, `demo`, `receiver`,
`migrate`, `import`, `audit`, `doctor`, `keys`, `usage send`, `contexts` and `completion` need no running service: they
work on the database, on a file or on their own.
"""
QUESTIONS = """\
## Which command answers what

| question | command |
|---|---|
| Is everything all right? | `tenure status`, `tenure alerts`, `tenure doctor` |
| What is happening now? | `tenure top`, `tenure events --follow` |
| Whose sessions are live, and which end next? | `tenure sessions list`, `tenure sessions list --order lapse` |
| Why did this session end, and how was it billed? | `tenure explain` |
| Why was an open request refused, and who holds the seats? | `tenure explain --capacity`, `tenure capacities show` |
| Is usage delivered, and how much was used? | `tenure usage --windows`, `tenure usage --group-by tenant` |
| How many submissions wait or have failed, and why? | `tenure submissions counts`, `tenure submissions list` |
| Who leads, and since when? | `tenure leases list`, `tenure leases history`, `tenure instances` |
| Do the jobs run? | `tenure jobs list`, `tenure jobs runs` |
| Who changed what? | `tenure audit-log` |
| Was everything billed once? | `tenure audit` |
"""
CONNECTION = """\
## Which service

Commands that call a service have the flags `--url`, `--key` and `--context`. They call the first service of this list
that is given; `--url` and `--context` cannot be combined:

1. the URL in `--url`;
2. the context in `--context`: a [named service](#tenure-contexts-set) with its URL and key;
3. the URL in the variable `TENURE_URL`;
4. the context in the variable `TENURE_CONTEXT`;
5. the context in use, which [`tenure contexts use`](#tenure-contexts-use) chooses;
6. `http://127.0.0.1:8080`.

The key is the one in `--key`, else the key of the context that names the service, else the one in the variable
`TENURE_KEY`. A key of a context is sent to the URL of this context only. Other users of the host can read the flags of
a process: if the host has other users, set `TENURE_KEY` or use a context instead of `--key`. A key is an
[API key](securing.md), a [session token](securing.md#browsers-and-devices) or a token of an
[OIDC issuer](securing.md#oidc).

If the certificate of an `https://` service is signed by your own certificate authority, set the variable
`SSL_CERT_FILE` to the path of a file with the certificate of this authority.

Contexts are in the file `contexts.toml` in `~/.config/tenure` (or `$XDG_CONFIG_HOME/tenure`), or in the file that
`TENURE_CONTEXTS` names. Tenure writes this file so that only its owner can read it, and warns if others can.
"""
OUTPUT = """\
## Output

Data goes to standard output, everything else to standard error. Tables fit the width of the terminal. On a narrow
terminal, times become relative, ids are shortened to their end, long texts are cut, and the least important columns are
left out. In a pipe or a file nothing is shortened or left out. Relative times are measured from the time of the
database's clock. Colours appear on a terminal only, and not if `NO_COLOR` is set or `TERM` is `dumb`.

With `--json` a command that calls the service prints the unchanged response, including fields that this version does
not know. A list is one object with the items of all pages, up to `--limit`. `tenure status` and
`tenure explain --capacity` put several responses into one object. `tenure events` prints one JSON object per line, and
a command that gets several ids prints one object for each.

Commands with the flag `--yes` ask before they make changes that are hard to undo. Without a terminal, as in a script,
they need `--yes` for such a change. `tenure keys` does not ask.
"""


def main() -> None:
    FILE.write_text(document(), encoding="utf-8")


def document() -> str:
    parts = [HEAD, QUESTIONS, CONNECTION, OUTPUT, _exit_codes(), _overview()]
    parts += [_section(name, command) for name, command in all_commands().items()]
    return "\n".join(parts)


def _exit_codes() -> str:
    rows = [f"| {code.value} | {_text(code.meaning)} |" for code in ExitCode]
    return "\n".join(["## Exit codes", "", "| code | meaning |", "|---|---|", *rows, ""])


def _overview() -> str:
    lines = ["## Overview", ""]
    for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
        lines += [f"{section}:", ""]
        for name, entry in COMMANDS.items():
            if entry.section == section:
                lines += [f"- {_names(name)}: {entry.summary[0].lower()}{entry.summary[1:].removesuffix('.')}"]
        lines.append("")
    return "\n".join(lines)


def _names(name: str) -> str:
    """Returns links to the section of a command, or to the sections of all commands of a group."""
    command = load_command(name)
    inner = getattr(command, "commands", {})
    links = [f"[`{name}`](#{_anchor(name)})"] if not inner or command.invoke_without_command else [f"`{name}`"]
    links += [f"[`{word}`](#{_anchor(f'{name} {word}')})" for word in inner]
    return " ".join(links[:1]) + (" " + ", ".join(links[1:]) if links[1:] else "")


def _anchor(name: str) -> str:
    return f"tenure-{name.replace(' ', '-')}"


def _section(name: str, command: Any) -> str:
    parts = [f"## `tenure {name}`", ""]
    for paragraph in (command.help or "").replace("\b\n", "").split("\n\n"):
        if paragraph.startswith("tenure "):
            parts += ["```sh", paragraph, "```", ""]
        else:
            parts += [_prose(paragraph), ""]
    arguments = [each for each in command.params if each.param_type_name == "argument" and not each.hidden]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    # `contexts set` has flags of its own with the names --url and --key, and no --context.
    connects = {each.opts[0] for each in options}.issuperset(CONNECTION_FLAGS)
    common = (*CONNECTION_FLAGS, "--help") if connects else ("--help",)
    own = [each for each in options if each.opts[0] not in common]
    if arguments:
        rows = [
            f"| `{each.metavar or each.name}{'' if each.nargs == 1 else '...'}` | {_text(each.help)} |"
            for each in arguments
        ]
        parts += ["| argument | meaning |", "|---|---|", *rows, ""]
    if own:
        parts += ["| flag | meaning | default |", "|---|---|---|", *map(_flag_row, own), ""]
    if connects:
        parts += ["And `--url`, `--key` and `--context`: see [which service](#which-service).", ""]
    return "\n".join(parts)


def _prose(paragraph: str) -> str:
    linked = re.sub(r"docs/([\w-]+\.md)(#[\w-]+)?", r"[\1](\1\2)", " ".join(paragraph.split()))
    return "\n".join(textwrap.wrap(linked, WIDTH, break_long_words=False, break_on_hyphens=False))


_DEFAULT = re.compile(r"(.*?)\s+\[([^\]]+)\]", re.DOTALL).fullmatch


def _flag_row(option: Any) -> str:
    found = _DEFAULT(option.help or "")
    text, default = (found[1], found[2]) if found else (option.help or "", _default(option))
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    return f"| `{option.opts[0]}{value}` | {_text(text)} | {default} |"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if option.is_flag:
        return "off"
    return "" if option.default is None else f"`{option.default}`"


def _text(text: str | None) -> str:
    """The text of a table cell, without the final full stop. The first letter becomes lower-case if a lower-case letter
    or a blank follows it, so abbreviations keep their capitals.
    """
    phrase = " ".join((text or "").split()).removesuffix(".")
    return (phrase[:1].lower() + phrase[1:] if phrase[1:2].islower() or phrase[1:2] == " " else phrase).replace(
        "|", "\\|"
    )


if __name__ == "__main__":
    main()
