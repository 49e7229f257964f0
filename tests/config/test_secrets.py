"""A configuration that is printed, logged or part of a traceback shows no secret."""

import io
import pickle

import pytest
from rich.console import Console
from rich.pretty import Pretty

from tenure.config import Config, GatewayConfig
from tests.config.test_databases import UNUSABLE

SECRETIVE = Config(
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


@pytest.mark.parametrize("shown", [repr, str, "{}".format, "{!r}".format, lambda config: repr({"config": config})])
def test_shows_no_secret(shown: object) -> None:
    assert "hunter2" not in shown(SECRETIVE)  # type: ignore[operator]


def test_shows_no_secret_to_rich() -> None:
    console = Console(file=io.StringIO(), width=500)
    console.print(Pretty(SECRETIVE))
    assert "hunter2" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_shows_what_is_no_secret() -> None:
    shown = repr(SECRETIVE)
    assert "postgresql://user:***@host:5432/db?host=/socket&password=***&sslpassword=***" in shown
    assert "https://billing.example:8443/***" in shown
    assert "{'Authorization': '***'}" in shown
    assert "port=8080" in shown


def test_shows_that_there_is_no_secret() -> None:
    shown = repr(GatewayConfig(url="http://127.0.0.1:81"))
    assert "url='http://127.0.0.1:81', secret=None, previous_secret=None" in shown


def test_shows_the_file_of_a_database() -> None:
    assert "database='sqlite:////srv/tenure.db'" in repr(Config(database="sqlite:////srv/tenure.db"))


@pytest.mark.parametrize("url", [url for url in UNUSABLE if "er2" in url])
def test_shows_nothing_of_a_url_that_is_not_usable(url: str) -> None:
    assert "database='***'" in repr(Config(database=url))


def test_reaches_a_worker_whole() -> None:
    assert pickle.loads(pickle.dumps(SECRETIVE)) == SECRETIVE
