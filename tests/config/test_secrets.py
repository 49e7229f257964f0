"""A configuration that is printed, logged or part of a traceback contains no secret."""

import io
import pickle

from rich.console import Console
from rich.pretty import Pretty

from tenure.config import Config, GatewayConfig
from tests.config.test_databases import INVALID_URLS

CONFIG_WITH_SECRETS = Config(
    database="postgresql://user:hunter2@host:5432/db?host=/socket&password=hunter2&sslpassword=hunter2",
    gateways={
        "usages": GatewayConfig(
            url="https://billing.example:8443/hunter2?token=hunter2",
            secret="hunter2",
            previous_secret="hunter2",
            headers={"Authorization": "Bearer hunter2"},
        )
    },
)


def test_config_output_contains_no_secret() -> None:
    for render in (repr, str, "{}".format, "{!r}".format, lambda config: repr({"config": config})):
        assert "hunter2" not in render(CONFIG_WITH_SECRETS)


def test_rich_output_contains_no_secret() -> None:
    console = Console(file=io.StringIO(), width=500)
    console.print(Pretty(CONFIG_WITH_SECRETS))
    assert "hunter2" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_repr_shows_values_that_are_not_secret() -> None:
    text = repr(CONFIG_WITH_SECRETS)
    assert "postgresql://user:***@host:5432/db?host=/socket&password=***&sslpassword=***" in text
    assert "https://billing.example:8443/***" in text
    assert "{'Authorization': '***'}" in text
    assert "port=8080" in text


def test_repr_shows_missing_secret_as_none() -> None:
    text = repr(GatewayConfig(url="http://127.0.0.1:81"))
    assert "url='http://127.0.0.1:81', secret=None, previous_secret=None" in text


def test_repr_shows_sqlite_file() -> None:
    assert "database='sqlite:////srv/tenure.db'" in repr(Config(database="sqlite:////srv/tenure.db"))


def test_repr_masks_invalid_database_url() -> None:
    urls = [url for url in INVALID_URLS if "er2" in url]
    assert [url for url in urls if "database='***'" not in repr(Config(database=url))] == []


def test_config_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(CONFIG_WITH_SECRETS)) == CONFIG_WITH_SECRETS


def test_password_of_url_with_several_hosts_is_masked() -> None:
    url = "postgresql://user:hunter2@one:5433,two:5434/db?target_session_attrs=read-write&sslpassword=hunter2"
    text = repr(Config(database=url))
    assert "postgresql://user:***@one:5433,two:5434/db?target_session_attrs=read-write&sslpassword=***" in text
    assert "hunter2" not in text


def test_repr_keeps_percent_encoding_of_database_url() -> None:
    text = repr(Config(database="postgresql://user@host/db?host=/a%26b&password="))
    assert "db?host=/a%26b&password=***'" in text
