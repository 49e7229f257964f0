"""The documents agree with each other and with the source tree, and name only hosts that they may name."""

import re
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tenure.alerts.delivery import AlertPayloads
from tenure.domain.audit_log import Action
from tenure.events.delivery import EventPayloads
from tenure.telemetry.events import RequestAnswered, SessionClosed, SessionOpened, all_events
from tenure.usage.rendering import UsagePayloads
from tests.docs.blocks import pages

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("deploy/**/*.md")]
TEST_COMMAND = "pip install -e '.[dev]' && pytest"
LISTED_HOSTS = {
    "www.standardwebhooks.com": "the standard that signatures of deliveries follow",
    "cloudevents.io": "the standard of the usage format `cloudevents`",
    "login.microsoftonline.com": "the issuer and the endpoints of Entra ID",
    "sts.windows.net": "the issuer of Entra ID in tokens of version 1",
}
"""Hosts that documents may name, and why. Tests have no network, so only a person can see that a host is misspelled or
belongs to another owner: open a host in a browser before you add it. These four hosts were copied from the documents,
and no person has opened them for this list yet."""
LOCAL_NAMES = {"localhost", "collector"}
RESERVED = re.compile(r"(^|\.)(example\.(com|net|org)|example|invalid|test)$")
"""Reserved names, which cannot be registered (RFC 2606)."""
_HOST = re.compile(r"\b(?:https?|wss?)://(?:[^\s/@]*@)?([a-z0-9.-]*[a-z0-9])", re.IGNORECASE)
"""Finds the host of a URL. Does not match a URL with a placeholder instead of a host, such as `https://<host>/`."""
_LINK = re.compile(
    r"\]\(\s*<?([^)>\s]+)|^ *\[[^]\n]+\]:\s*<?([^>\s]+)|<([a-z][a-z0-9+.-]*:[^>\s]+)>|(?:href|src)=\"([^\"]+)\"",
    re.MULTILINE,
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def test_ci_runs_exact_test_command_from_readme() -> None:
    assert f"\n{TEST_COMMAND}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n{TEST_COMMAND}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_document_links_resolve() -> None:
    broken = [
        (str(path.relative_to(ROOT)), target)
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert broken == []


def external_links(text: str) -> list[str]:
    """The targets of links that leave the repository."""
    targets = [next(filter(None, groups)) for groups in _LINK.findall(text)]
    return [target for target in targets if _SCHEME.match(target)]


def fault_of_link(target: str) -> str | None:
    """Returns why documents must not contain this link, or None if they may."""
    try:
        parts = urlsplit(target)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        return str(error)
    if is_local(host) or RESERVED.search(host):
        return None if parts.scheme in ("http", "https") else "neither http nor https"
    if parts.scheme != "https":
        return "not https"
    if parts.username is not None or port is not None:
        return "names a user or a port"
    if not re.fullmatch(r"[!-~]+", target) or "<" in target:
        return "has characters that a URL must encode"
    return None if host in LISTED_HOSTS else f"{host or 'a link without a host'} is not in LISTED_HOSTS"


def is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in LOCAL_NAMES


def test_external_links_are_local_reserved_or_https_to_listed_hosts() -> None:
    faults = [
        (page, target, fault)
        for page in pages()
        for target in external_links((ROOT / page).read_text(encoding="utf-8"))
        if (fault := fault_of_link(target))
    ]
    assert faults == []


def test_hosts_in_text_and_code_are_local_reserved_or_listed() -> None:
    """Readers copy commands. The requests of a copied command must not go to a third party by mistake."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages()}
    named = {host.lower(): page for page, text in texts.items() for host in _HOST.findall(text)}
    unknown = {host: page for host, page in named.items() if not is_local(host) and not RESERVED.search(host)}
    assert {host: page for host, page in unknown.items() if host not in LISTED_HOSTS} == {}
    assert sorted(LISTED_HOSTS.keys() - unknown.keys()) == [], "no document names these hosts any more"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](https://www.standardwebhooks.com)", None),
        ("[a](http://127.0.0.1:8080/docs) and <http://localhost:8080>", None),
        ("[a](http://www.standardwebhooks.com)", "not https"),
        ("[a](https://www.standardwebhook.com)", "www.standardwebhook.com is not in LISTED_HOSTS"),
        ("[a](https://cloudevents.io.evil.net/)", "cloudevents.io.evil.net is not in LISTED_HOSTS"),
        ("[a](https://cloudevents.io@evil.net/)", "names a user or a port"),
        ("[a](//cloudevents.io)", "not https"),
        ("[a](https:/cloudevents.io)", "a link without a host is not in LISTED_HOSTS"),
        ("[a](https://[cloudevents.io)", "Invalid IPv6 URL"),
        ("[a](https://cloudevents.io/ü)", "has characters that a URL must encode"),
        ("[a](javascript:alert)", "not https"),
        ("[a]: ftp://cloudevents.io", "not https"),
        ("see <https://notexample.com>", "notexample.com is not in LISTED_HOSTS"),
        ('<img src="https://images.net/a.png">', "images.net is not in LISTED_HOSTS"),
    ],
)
def test_faults_of_external_links_are_found(text: str, expected: str | None) -> None:
    assert {fault_of_link(target) for target in external_links(text)} == {expected}


def test_readme_links_to_all_documents() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f"docs/{path.name}" not in readme] == []


def test_all_log_events_are_documented() -> None:
    sources = {f"{source.name}.withheld" for source in (UsagePayloads, AlertPayloads, EventPayloads)}
    with_settings = {SessionOpened.name, "session.upgraded", RequestAnswered.name}
    events = {*SessionClosed.log_names.values()} | sources | with_settings
    events |= {kind.name for kind in all_events() if kind.level is not None}
    document = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert sorted(event for event in events if f"`{event}`" not in document) == []


def test_all_actions_of_the_audit_log_are_documented_and_can_be_chosen_in_the_console() -> None:
    document = (ROOT / "docs" / "securing.md").read_text(encoding="utf-8")
    page = (ROOT / "src" / "tenure" / "console" / "static" / "pages" / "audit.js").read_text(encoding="utf-8")
    chosen = re.findall(r'"([\w.-]+)"', page.partition("const ACTIONS = [")[2].partition("]")[0])
    assert sorted(chosen) == sorted(Action)
    assert [action for action in Action if f"`{action}`" not in document.partition("## Who did what")[2]] == []
