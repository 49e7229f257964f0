"""`tenure contexts`, and which service and key a command uses."""

import stat
from pathlib import Path

import pytest

from tenure.cli.service import Target, target_of
from tenure.domain.keys import Role, new_api_key
from tenure.errors import ConfigurationError
from tests.cli.conftest import Result, Tenure
from tests.cli.terminals import Terminal

KEY = new_api_key(Role.OPERATOR).text
OTHER = new_api_key(Role.READER).text
PROD, TEST = "https://tenure.example/api", "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TENURE_URL", "TENURE_KEY", "TENURE_CONTEXT", "TENURE_CONTEXTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "tenure" / "contexts.toml"


def test_contexts_are_set_listed_used_and_removed(tenure: Tenure, file: Path) -> None:
    assert tenure("contexts", "list").err.startswith(f"no contexts in {file}; ")
    assert tenure("contexts", "set", "prod", "--url", f"{PROD}/", "--key", KEY).code == 0
    assert tenure("contexts", "set", "test", "--url", TEST).code == 0
    listed = tenure("contexts", "list")
    assert [line.split()[:3] for line in listed.out.splitlines()[1:]] == [["*", "prod", PROD], ["test", TEST, "-"]]
    assert tenure("contexts", "use", "test").err == f"commands now call {TEST}\n"
    assert target_of(None, None, None) == Target(TEST, None)
    assert tenure("contexts", "remove", "test", "--yes").code == 0
    assert tenure("contexts", "remove", "test", "--yes").code == 4
    assert target_of(None, None, None).url == "http://127.0.0.1:8080"
    assert tenure("contexts", "use", "test").code == 2


def test_file_is_private_and_secrets_of_keys_are_not_shown(tenure: Tenure, file: Path) -> None:
    shown = [tenure("contexts", "set", "prod", "--url", PROD, "--key", KEY)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    shown += [tenure("contexts", "list"), tenure("contexts", "list", "--json"), tenure("contexts", "use", "prod")]
    secret = KEY.rpartition("_")[2]
    assert [result for result in shown if secret in result.out + result.err] == []
    assert KEY[:24] in shown[1].out
    assert secret not in repr(target_of(None, None, None))
    file.chmod(0o644)
    assert "other users can read" in tenure("contexts", "list").err


def test_key_is_read_from_standard_input(tenure: Tenure, file: Path) -> None:
    with Terminal(
        "contexts", "set", "prod", "--url", PROD, "--key", "-", XDG_CONFIG_HOME=str(file.parents[1])
    ) as terminal:
        terminal.read_until("API key: ")
        terminal.type(f"{KEY}\n")
        assert terminal.end() == 0
        assert KEY not in terminal.shown
    assert target_of(None, None, "prod") == Target(PROD, KEY)
    refused = tenure("contexts", "set", "other", "--url", PROD, "--key", "secret-but-no-key")
    assert (refused.code, "secret-but" in refused.err) == (2, False)


def test_flags_variables_and_contexts_take_precedence_as_documented(
    tenure: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenure("contexts", "set", "prod", "--url", PROD, "--key", KEY)
    tenure("contexts", "set", "test", "--url", TEST)
    assert target_of(None, None, None) == Target(PROD, KEY)
    monkeypatch.setenv("TENURE_CONTEXT", "test")
    assert target_of(None, None, None) == Target(TEST, None)
    monkeypatch.setenv("TENURE_KEY", OTHER)
    assert target_of(None, None, None) == Target(TEST, OTHER)
    monkeypatch.setenv("TENURE_URL", "http://variable")
    assert target_of(None, None, None) == Target("http://variable", OTHER)
    assert target_of(None, None, "prod") == Target(PROD, KEY)
    assert target_of(None, OTHER, "prod") == Target(PROD, OTHER)
    assert target_of("http://flag", None, None) == Target("http://flag", OTHER)
    monkeypatch.delenv("TENURE_KEY")
    assert target_of("http://flag", None, None) == Target("http://flag", None), "the key of the context was used"
    with pytest.raises(ConfigurationError, match="context: cannot be combined with --url"):
        target_of("http://flag", None, "prod")


def test_new_url_of_a_context_needs_its_key_again(tenure: Tenure) -> None:
    tenure("contexts", "set", "prod", "--url", PROD, "--key", KEY)
    assert tenure("contexts", "set", "prod", "--url", TEST).code == 2
    assert tenure("contexts", "set", "prod", "--key", OTHER).code == 0
    assert target_of(None, None, "prod") == Target(PROD, OTHER)


def test_wrong_files_and_names_are_refused_with_one_line(
    tenure: Tenure, file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert tenure("contexts", "set", "a b", "--url", PROD).code == 2
    assert tenure("contexts", "set", "new") == Result(2, "", "tenure: url: is required for a new context\n")
    file.parent.mkdir(parents=True)
    for content in ("[", "contexts = 1", "[contexts.a]", "[contexts.a]\nurl = 1", "[contexts.a]\nurl = 'x'\nkye = ''"):
        file.write_text(content)
        file.chmod(0o600)
        result = tenure("contexts", "list")
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), content
        assert result.err.startswith(f"tenure: {file}: "), content
    monkeypatch.setenv("TENURE_CONTEXTS", str(tmp_path))
    assert tenure("contexts", "list").code == 2


def test_symlink_to_a_device_in_place_of_the_file_is_not_replaced(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "device"
    pipe.symlink_to("/dev/null")
    monkeypatch.setenv("TENURE_CONTEXTS", str(pipe))
    assert tenure("contexts", "set", "prod", "--url", PROD) == Result(2, "", f"tenure: {pipe}: must be a file\n")
    assert pipe.is_symlink()
