"""Every code block of every document is run or checked, or a marker in front of it gives the reason why it is not run.
Only blocks of the languages in NO_CODE need neither.

CONTRIBUTING.md lists the check for each language.
"""

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from sqlfluff.core import Linter

from tenure.cli.imports import _mapped
from tenure.config import load
from tenure.sessions.imports import CAPACITY_FIELDS, SESSION_FIELDS
from tests.docs.blocks import BLOCKS, ROOT, Block
from tests.docs.shell import Reader, check_server, servers

ELSEWHERE = {
    ("docs/quickstart.md", "sh"): "tests/cli/test_quickstart.py",
    ("docs/commands.md", "sh"): "tests/cli/test_documentation.py",
    ("docs/api.md", "console"): "tests/http/test_documentation.py",
    ("docs/errors.md", "console"): "tests/http/test_documentation.py",
    ("docs/library.md", "python"): "tests/library/test_documentation.py",
    ("docs/hold.md", "python"): "clients/python/tests/test_documents.py",
    ("docs/clients/python.md", "python"): "clients/python/tests/test_documents.py",
    ("clients/python/README.md", "python"): "clients/python/tests/test_documents.py",
    ("docs/clients/javascript.md", "js"): "tests/browser/test_javascript_document.py",
}
"""For a page and a language, the test that runs all blocks of this language on the page."""
NO_CODE = {"", "text"}
"""Blocks of these languages are outputs, trees and formulas: there is nothing to run."""
REASON_WORDS = 4
"""The fewest words that a marker may give as a reason."""
OWN_SERVERS = [
    "docs/securing.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "coming-from").glob("*-*.md")),
]
"""Pages whose commands use servers that are started for the page alone, instead of the servers of the fixture `reader`.
"""
FIRST = {"docs/securing.md": "tenure keys create --name web --role client --expires 1d > web.key"}
"""The commands that a page assumes its reader has run."""
GATEWAYS = """
[gateways.billing]
url = "http://127.0.0.1:9090/billing"

[gateways.usages]
url = "http://127.0.0.1:9090/usages"

[jobs.emit-usage]
interval_seconds = 1
"""


MISSING = [program for program in ("bash", "curl", "jq", "timeout") if shutil.which(program) is None]
needs_programs = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def to_run(language: str, *others: str) -> list[Block]:
    return [
        block
        for block in BLOCKS
        if block.language in (language, *others)
        and block.reason is None
        and (block.page, block.language) not in ELSEWHERE
    ]


def test_every_block_has_a_check_or_a_reason() -> None:
    for block in BLOCKS:
        known = block.language in CHECKED or block.language in NO_CODE or (block.page, block.language) in ELSEWHERE
        assert known or block.reason, f"{block.place}: nothing checks a block in {block.language}"
        assert block.marker is None or block.reason or block.seconds, f"{block.place}: unknown marker {block.marker}"
        assert block.reason is None or len(block.reason.split()) >= REASON_WORDS, f"{block.place}: give the reason"


def test_reasons_name_existing_tests() -> None:
    for block in BLOCKS:
        for path in re.findall(r"(?:tests|clients)/[\w/]+\.py", block.reason or ""):
            assert (ROOT / path).exists(), f"{block.place}: {path}"


def test_blocks_run_by_other_tests_exist_and_those_tests_read_the_page() -> None:
    for (page, language), test in ELSEWHERE.items():
        assert any((block.page, block.language) == (page, language) for block in BLOCKS), page
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not read {page}"


def check_json(block: Block) -> None:
    json.loads(block.text)


def check_yaml(block: Block) -> None:
    list(yaml.safe_load_all(block.text))


def check_toml(block: Block, folder: Path) -> None:
    """Validates a mapping for an import, or settings as when an instance starts. If the block has a `[project]` table,
    checks only the syntax.
    """
    content = tomllib.loads(block.text)
    file = folder / "block.toml"
    file.write_text(block.text, encoding="utf-8")
    if "fields" in content:
        fields = SESSION_FIELDS if "sessionKind" in content["fields"] else CAPACITY_FIELDS
        assert _mapped(file, fields) is not None
    elif "project" not in content:
        load({}, NEEDED.get(block.page, {}), file)


NEEDED = {
    "docs/securing.md": {
        "TENURE_OIDC__ISSUER": "https://login.example.com",
        "TENURE_OIDC__AUDIENCE": "api://tenure",
        "TENURE_OIDC__JWKS_URL": "https://login.example.com/keys",
    }
}
"""Settings that a page has set in an earlier block."""


def test_configurations_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = to_run("toml")
    assert found
    for block in found:
        noted(lambda block=block: check_toml(block, tmp_path), block)


def test_json_and_yaml_are_valid() -> None:
    for language, check in (("json", check_json), ("yaml", check_yaml)):
        for block in to_run(language):
            noted(lambda block=block, check=check: check(block), block)


def test_settings_of_the_database_are_valid() -> None:
    for block in to_run("ini"):
        for line in block.text.splitlines():
            assert re.fullmatch(r"[a-z_]+ = ('[^']*'|\w+)( +#.*)?", line), f"{block.place}: {line}"


def test_http_messages_are_valid() -> None:
    found = to_run("http")
    assert found
    for block in found:
        head, _, _ = block.text.partition("\n\n")
        first, *headers = head.splitlines()
        if re.fullmatch(r"[A-Z]+ /\S* HTTP/1\.1|HTTP/1\.1 \d{3} .+", first) is None:
            headers = [first, *headers]
        assert all(re.fullmatch(r"[\w-]+: .+", header) for header in headers), block.place


def test_sql_is_valid() -> None:
    linters = [Linter(dialect=dialect) for dialect in ("tsql", "postgres")]
    found = to_run("sql")
    assert found
    for block in found:
        trees = [linter.parse_string(block.text).tree for linter in linters]
        assert any(tree is not None and not [*tree.recursive_crawl("unparsable")] for tree in trees), block.place


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_javascript_is_valid(tmp_path: Path) -> None:
    files = []
    for number, block in enumerate(to_run("js")):
        files.append(tmp_path / f"block-{number}.mjs")
        files[-1].write_text(block.text, encoding="utf-8")
    for file in files:
        subprocess.run(["node", "--check", str(file)], check=True, timeout=60)


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="HAProxy is not installed")
def test_haproxy_rules_are_valid(tmp_path: Path) -> None:
    rules = "".join(f"  {line}\n" for block in to_run("haproxy") for line in block.text.splitlines())
    assert rules
    file = tmp_path / "haproxy.cfg"
    frame = "defaults\n  mode http\n  timeout client 1s\n  timeout connect 1s\n  timeout server 1s\n"
    file.write_text(f"{frame}frontend f\n  bind 127.0.0.1:1\n{rules}  default_backend b\nbackend b\nbackend old\n")
    subprocess.run(["haproxy", "-c", "-f", str(file)], check=True, timeout=60)


def noted(check: Callable[[], None], block: Block) -> None:
    try:
        check()
    except Exception as error:
        error.add_note(block.place)
        raise


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A reader who has already started an instance and a receiver."""
    folder = tmp_path_factory.mktemp("reader")
    reader = Reader(folder)
    (folder / "tenure.toml").write_text(GATEWAYS.replace("http://127.0.0.1:9090", reader.at("9090")))
    try:
        reader.start("tenure receiver --port 9090 --ledger ledger.db")
        reader.start("tenure serve")
        yield reader
    finally:
        reader.stop()


@needs_programs
@pytest.mark.slow
def test_commands_run_as_they_are_written(reader: Reader) -> None:
    found = [block for block in to_run("sh") if block.page not in OWN_SERVERS]
    assert found
    for block in found:
        for line in servers(block):
            noted(lambda line=line: check_server(line, ROOT), block)
        reader.run(block)


@pytest.mark.slow
def test_outputs_are_those_that_the_commands_print(reader: Reader) -> None:
    found = to_run("console")
    assert found
    for block in found:
        for command, expected in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
            assert reader.output(command) == expected, f"{block.place}: {command}"


@pytest.mark.slow
def test_python_runs_as_it_is_written(reader: Reader) -> None:
    found = to_run("python")
    assert found
    for block in found:
        reader.python(block.text, block.place)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader who follows all pages of "Coming from" one after another, with one database."""
    return tmp_path_factory.mktemp("coming-from")


@needs_programs
@pytest.mark.slow
@pytest.mark.parametrize("page", OWN_SERVERS)
def test_commands_run_with_servers_of_their_page(page: str, tmp_path: Path, shared_folder: Path) -> None:
    found = [block for block in to_run("sh") if block.page == page]
    reader = Reader(tmp_path if page in FIRST else shared_folder)
    # The port of the receiver is in the settings of the example, and not in the page.
    if page.endswith("submission-manager.md"):
        reader.for_servers["TENURE_GATEWAYS__ORDERS__URL"] = f"{reader.at('9090')}/orders"
    try:
        if page in FIRST:
            reader.start("tenure serve")
            reader.shell(FIRST[page], page)
        for block in found:
            if page in FIRST:
                for line in servers(block):
                    noted(lambda line=line: check_server(line, ROOT), block)
            else:
                reader.serve(block)
            reader.run(block)
    finally:
        reader.stop()


CHECKED = {"sh", "console", "python", "json", "yaml", "toml", "http", "sql", "js", "haproxy", "ini", "mermaid"}
"""Languages whose blocks a test runs or checks. The tests are in this file, except the one for `mermaid`:
`tests/browser/test_site.py` draws the diagrams."""
