"""Every route, command, flag, environment variable, configuration section and event that a document names exists.

The documents are the Markdown pages in the root folder and in `docs/`, the OpenAPI document and the help texts of the
commands. `CHANGELOG.md` is left out, because it also names things that no longer exist. Other tests check the opposite
direction: that existing names are documented.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tenure.alerts.delivery import AlertPayloads
from tenure.app import Instance
from tenure.cli.main import COMMANDS, app, load_command
from tenure.config import Config
from tenure.config.schema import dotted, entries_of, is_single, settings_in, variable
from tenure.domain.audit_log import Action
from tenure.domain.events import EventType
from tenure.events.delivery import EventPayloads
from tenure.telemetry.events import SessionClosed, Telemetry, all_events
from tenure.usage.rendering import UsagePayloads

ROOT = Path(__file__).parents[2]
PAGES = [path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.name != "CHANGELOG.md"]
RECEIVER_ROUTES = ("/_faults",)
EXAMPLE_PREFIXES = ("/api/v3", "/v1")
NOT_SETTINGS = re.compile(r"TENURE_(CONFIG|URL|KEY|CONTEXTS?|TEST_.*|SERVICE_.*|PORT_8080_.*)?")
MAPPING_SECTIONS = ("[fields]", "[kinds]")
"""Tables of the mapping file of `tenure import`."""
NOT_EVENTS = ("lease.fence", "installation.py", "session.lost", "session.remaining", "session.ended", "http.route")
"""Attributes of Python objects and of spans, and a file, that look like the names of events."""
SCRIPTS = {
    "transcription.md": "examples/*.py",
    "reliability.md": "proof/*.py",
    "coming-from": "examples/coming_from/**/*.py",
}
"""Pages, and folders of pages, that also name the flags of these scripts."""


@cache
def routes() -> list[tuple[str, list[str]]]:
    table = Instance(Config(), Telemetry()).pipeline.table
    return [(route.method, route.path.split("/")) for route in table]


@cache
def commands() -> dict[str, set[str]]:
    """Maps every command, such as `sessions list`, to its flags."""
    found: dict[str, set[str]] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        found[" ".join(words)] = {flag for parameter in shown for flag in parameter.opts} | {"--help"}
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, (*words, name))

    walk(typer.main.get_command(app), ())
    for name in COMMANDS:
        walk(load_command(name), (name,))
    return found


@cache
def settings() -> dict[str, Any]:
    """Maps the dotted name of every setting and section to its type. `<name>` stands for a name that the user chooses,
    such as that of a gateway.
    """

    def walk(kind: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        yield dotted(path), kind
        if not is_single(kind):
            entries = entries_of(kind)
            for name, member in ({"<name>": entries.values} if entries else settings_in(kind)).items():
                yield from walk(member, (*path, name))

    return dict(walk(Config, ()))


@cache
def events() -> set[str]:
    withheld = {f"{source.name}.withheld" for source in (UsagePayloads, AlertPayloads, EventPayloads)}
    own_names = {*SessionClosed.log_names.values(), *withheld, *EventType}
    return own_names | {kind.name for kind in all_events()}


# Each check takes one text in code style, such as `PUT /sessions`, and yields the names in it that do not exist.


def unknown_route(text: str) -> Iterator[str]:
    found = re.fullmatch(r"(?:(GET|HEAD|PUT|POST|PATCH|DELETE|WS) )?(/[\w/{}.-]*)(?:\?.*)?", text)
    if found is None or found[2] in (*EXAMPLE_PREFIXES, *RECEIVER_ROUTES):
        return
    method, path = found.groups()
    for prefix in EXAMPLE_PREFIXES:
        path = path.removeprefix(prefix)
    if not any(method in (None, "HEAD", known) and _is_same(path.split("/"), parts) for known, parts in routes()):
        yield text


def _is_same(path: list[str], route: list[str]) -> bool:
    return len(path) == len(route) and all(
        one.startswith("{") if other.startswith("{") else one == other for one, other in zip(path, route, strict=True)
    )


def unknown_command(text: str) -> Iterator[str]:
    if not text.startswith("tenure ") or " COMMAND " in text:
        return
    words = text.removeprefix("tenure ").split()
    name = next((name for count in (2, 1) if (name := " ".join(words[:count])) in commands()), "")
    flags = {word.strip("[]") for word in words if word.strip("[]").startswith("--")}
    rest = words[len(name.split()) :]
    # `name` is the longest known command. If it is a group of commands and the next word is not a flag, this word is a
    # command that the group does not have. Any other word that is not a flag can be the value of a flag.
    is_group = any(other.startswith(f"{name} ".lstrip()) and other != name for other in commands())
    if (is_group and rest and not rest[0].strip("[]").startswith("--")) or flags - commands()[name]:
        yield text


def unknown_flag(text: str) -> Iterator[str]:
    found = re.fullmatch(r"(--[a-z][a-z-]*)( \w+)?", text)
    if found and not any(found[1] in flags for flags in commands().values()):
        yield text


def unknown_variable(text: str) -> Iterator[str]:
    known = {variable(tuple(name.split("."))) for name in settings() if name}
    for name in re.findall(r"TENURE_[A-Z0-9_<>]*", text):
        generic = re.sub(r"(GATEWAYS|JOBS|FACTORS|HEADERS|OPTIONS)__[A-Z0-9_]+?(?=__|$)", r"\1__<NAME>", name)
        if not NOT_SETTINGS.fullmatch(name) and generic not in known:
            yield name


def unknown_section(text: str) -> Iterator[str]:
    found = re.fullmatch(r"\[([a-z]+)(?:\.([\w<>-]+))?\](?: (\w+))?", text)
    if found:
        section, name, setting = found.groups()
        path = ".".join(part for part in (section, name and "<name>", setting) if part)
        if path not in settings() and text not in MAPPING_SECTIONS:
            yield text


def unknown_event(text: str) -> Iterator[str]:
    found = re.fullmatch(r"([a-z]+)\.[a-z_]+", text)
    namespaces = {name.partition(".")[0] for name in events() if "." in name}
    if found and found[1] in namespaces and text not in {*events(), *settings(), *Action, *NOT_EVENTS}:
        yield text


CHECKS = (unknown_route, unknown_command, unknown_flag, unknown_variable, unknown_section, unknown_event)


def unknown_names(text: str) -> list[str]:
    """Returns the names in code style that do not exist. Ignores code blocks."""
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [name for token in inline for check in CHECKS for name in check(token)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_in_page_exists(page: Path) -> None:
    names = unknown_names(page.read_text(encoding="utf-8"))
    flags = {flag for of, scripts in SCRIPTS.items() if of in page.parts for flag in _flags_in(scripts)}
    # The pages in `coming-from` also name routes of the systems from which users migrate.
    others = re.compile("((GET|POST|PUT|DELETE|PATCH) )?/") if "coming-from" in page.parts else None
    assert [
        name for name in names if name.split()[0] not in flags and not (others is not None and others.match(name))
    ] == []


def _flags_in(scripts: str) -> set[str]:
    root = Path(__file__).parents[2]
    return {flag for path in root.glob(scripts) for flag in re.findall(r'"(--[a-z-]+)"', path.read_text("utf-8"))}


def test_every_name_in_openapi_document_exists() -> None:
    texts = [text for route in Instance(Config(), Telemetry()).pipeline.table for text in _texts(route)]
    assert len(texts) > 40
    assert [name for text in texts for name in unknown_names(text)] == []


def _texts(route: Any) -> Iterator[str]:
    yield from (text for text in (getattr(route, "summary", ""), getattr(route, "description", "")) if text)


def test_every_name_in_help_texts_exists() -> None:
    def texts(command: Any) -> Iterator[str]:
        yield command.help or ""
        yield from (parameter.help or "" for parameter in command.params)
        for inner in getattr(command, "commands", {}).values():
            yield from texts(inner)

    assert [name for each in COMMANDS for text in texts(load_command(each)) for name in unknown_names(text)] == []


def test_every_event_in_log_table_exists() -> None:
    operating = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    table = operating.partition("## Logs")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    names = {name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)}
    assert len(names) > 30
    assert names - events() == set()


@pytest.mark.parametrize(
    "missing",
    [
        "POST /metrics",
        "/metric",
        "POST /sessions",
        "DELETE /v1/leases",
        "tenure nurse",
        "tenure usage sent",
        "tenure serve --tls-secret",
        "tenure serve --key",
        "TENURE_OIDC__ISSUERS",
        "TENURE_SESSIONS__LEASE",
        "[oidcs]",
        "[leases] holders",
        "[usage.factors] unit",
        "usage.vanished",
    ],
)
def test_name_that_does_not_exist_is_found(missing: str) -> None:
    assert unknown_names(f"See `PUT /sessions`, `tenure serve --workers n` and `{missing}`.") != []
