"""`docs/configuration.md` matches the configuration structs, and its examples work."""

import json
import re
import shlex
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec
import pytest

from tenure.config import JOBS, Config, GatewayConfig, JobConfig, LeasesConfig, OidcConfig, TracesConfig, load
from tenure.config.schema import SettingPath, entries_of, is_single, rule_of, settings_in, variable
from tests.config.conftest import Run

DOCS = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
COLUMNS = ["setting", "type", "default", "allowed", "variable", "what it does"]
TYPES = {str: "text", bool: "switch", int: "whole number", float: "number", tuple: "list", Literal: "text"}


class Documented(NamedTuple):
    type: str
    default: str
    allowed: str
    variable: str


def sections(kind: Any = Config, path: SettingPath = ()) -> dict[SettingPath, Any]:
    """Returns the struct of every section by its path. In a path, `<name>` stands for a name that the user chooses, as
    in the docs.
    """
    found = {path: kind}
    for name, member in settings_in(kind).items():
        entries = entries_of(member)
        if settings_in(member):
            found |= sections(member, (*path, name))
        elif entries and settings_in(entries.values):
            found |= sections(entries.values, (*path, name, "<name>"))
    return found


SECTIONS = sections()


def heading(path: SettingPath) -> str:
    return f"`[{'.'.join(path)}]`" if path else "Top level"


def tables(title: str) -> list[list[list[str]]]:
    """The tables below a heading as rows of cells, including the header."""
    body = re.split(r"^## ", DOCS, flags=re.MULTILINE)
    text = next((part for part in body if part.partition("\n")[0] == title), "")
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()] for block in blocks
    ]


def documented(path: SettingPath) -> dict[str, Documented]:
    for header, _, *rows in tables(heading(path)):
        if header == COLUMNS:
            return {row[0].strip("`"): Documented(row[1], row[2].strip("`"), row[3], row[4].strip("`")) for row in rows}
    pytest.fail(f"no table of settings under {heading(path)!r}")


def expected(path: SettingPath, section: Any) -> dict[str, Documented]:
    members = settings_in(section)
    return {
        field.name: Documented(
            type_of(members[field.name]),
            "required" if field.required else default_of(field),
            allowed(members[field.name]),
            variable((*path, field.name)),
        )
        for field in msgspec.structs.fields(section)
        if is_single(members[field.name]) or is_table(members[field.name])
    }


def is_table(kind: Any) -> bool:
    entries = entries_of(kind)
    return entries is not None and is_single(entries.values)


def type_of(kind: Any) -> str:
    if is_table(kind):
        return "table"
    plain = get_args(kind)[0]
    return TYPES[get_origin(plain) or plain]


def allowed(kind: Any) -> str:
    entries = entries_of(kind)
    if entries:
        return f"{rule_of(entries.names).allowed}, each {rule_of(entries.values).allowed}"
    return rule_of(kind).allowed


def default_of(field: msgspec.structs.FieldInfo) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return "" if value is None else in_toml(value)


def in_toml(value: Any) -> str:
    match value:
        case dict():
            return (
                "{ " + ", ".join(f"{name} = {in_toml(inner)}" for name, inner in value.items()) + " }"
                if value
                else "{}"
            )
        case tuple():
            return f"[{', '.join(in_toml(inner) for inner in value)}]"
        case float() | Decimal():
            return f"{value:g}"
        case _:
            return json.dumps(value)


@pytest.mark.parametrize("path", SECTIONS, ids=heading)
def test_settings_tables_match_config(path: SettingPath) -> None:
    assert documented(path) == expected(path, SECTIONS[path])
    without_description = [row[0] for table in tables(heading(path)) for row in table if not row[-1]]
    assert without_description == []


def test_every_documented_section_exists() -> None:
    headings = re.findall(r"^## (`\[.*\]`)$", DOCS, flags=re.MULTILINE)
    assert sorted(headings) == sorted(heading(path) for path in SECTIONS if path)


def test_built_in_jobs_are_documented_with_intervals() -> None:
    (rows,) = [table[2:] for table in tables(heading(("jobs", "<name>"))) if table[0][0] == "job"]
    assert {row[0].strip("`"): float(row[1].strip("`")) for row in rows} == JOBS


EXAMPLE = re.findall(r"```toml\n(.*?)```", DOCS, flags=re.DOTALL)[-1]
"""The complete file: the last TOML example of the page."""


def test_complete_file_contains_every_setting() -> None:
    tree = tomllib.loads(EXAMPLE)
    missing = [
        (*path, name)
        for path, section in SECTIONS.items()
        for name in settings_in(section)
        if not any(name in place for place in places(tree, path))
    ]
    assert not missing


def places(tree: Any, path: SettingPath) -> list[dict[str, Any]]:
    """Returns the tables of a TOML tree that are at this path. In the path, `<name>` matches every name."""
    if not path:
        return [tree]
    inner = tree.values() if path[0] == "<name>" else [tree[path[0]]]
    return [place for one in inner for place in places(one, path[1:])]


def test_complete_file_contains_defaults(empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text(EXAMPLE, encoding="utf-8")
    config = load({}, {})
    usages = config.gateways["usages"]
    assert config.oidc is not None
    assert config == Config(
        tls_certificate=config.tls_certificate,
        tls_key=config.tls_key,
        transcription=config.transcription,
        leases=LeasesConfig(holder=config.leases.holder),
        jobs={name: JobConfig(interval_seconds=interval) for name, interval in JOBS.items()},
        oidc=OidcConfig(
            issuer=config.oidc.issuer,
            audience=config.oidc.audience,
            jwks_url=config.oidc.jwks_url,
            staff_tenant=config.oidc.staff_tenant,
            client_id=config.oidc.client_id,
            client_secret=config.oidc.client_secret,
            authorization_url=config.oidc.authorization_url,
            token_url=config.oidc.token_url,
        ),
        gateways={
            "usages": GatewayConfig(
                url=usages.url, secret=usages.secret, previous_secret=usages.previous_secret, headers=usages.headers
            ),
            "crm": GatewayConfig(url=config.gateways["crm"].url),
            "oncall": GatewayConfig(url=config.gateways["oncall"].url),
        },
        traces=TracesConfig(endpoint=config.traces.endpoint, headers=config.traces.headers),
    )


ERROR_EXAMPLES = re.findall(r"^\$ (.*)\n(.*)$", DOCS, flags=re.MULTILINE)


@pytest.mark.parametrize(("command", "line"), ERROR_EXAMPLES)
def test_error_message_matches_documentation(
    command: str, line: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command)
    start = words.index("tenure")
    code = run(*words[start + 1 :], **dict(word.split("=", 1) for word in words[:start]))
    assert (code, capsys.readouterr().err) == (2, f"{line}\n")


def test_documentation_contains_error_messages_and_database_urls() -> None:
    assert len(ERROR_EXAMPLES) >= 5
    assert len(DATABASES) >= 5


DATABASES = re.findall(r"^\| `(\w+://[^`]*)` \|", DOCS, flags=re.MULTILINE)


def test_documented_database_urls_are_accepted() -> None:
    assert [url for url in DATABASES if load({"database": url}, {}).database != url] == []
