"""Valid and invalid database URLs."""

import pytest

from tenure.config import load
from tenure.config.urls import split_postgres_url
from tests.config.conftest import ErrorMessage

VALID_URLS = [
    "sqlite:///relative.db",
    "sqlite:////absolute.db",
    "sqlite:////srv/my data/a@b#c.db",
    "sqlite:///a%20b%3F.db",
    "postgresql://user@/db?host=/socket/dir",
    "postgresql:///db",
    "postgresql://host/db",
    "postgresql://user:pass%40word@host:5432/db?sslmode=require",
    "postgresql://user@[::1]:5432/db",
    "postgresql://user:pass@one:5433,two:5434/db?target_session_attrs=read-write",
    "postgresql://user@one,two,[::1]:5434/db?target_session_attrs=primary",
    "postgresql://user@/db?host=one,two&port=5433,5434",
    "postgresql://user@/db?host=/socket/one,/socket/two&port=5433",
    "postgresql://user@/db?host=/cloud/project:region:name",
    "postgresql://user@%2Fsocket%2Fone,two/db",
    "mssql://sa:password@host/db",
    "mssql://sa:password@host:1433/db?driver=ODBC+Driver+18+for+SQL+Server",
]


def test_valid_url_is_accepted() -> None:
    assert [url for url in VALID_URLS if load({"database": url}, {}).database != url] == []


INVALID_URLS = [
    "",
    "tenure.db",
    "/srv/tenure.db",
    "mysql://user:hunter2@host/db",
    "oracle://user:hunter2@host/db",
    "://user:hunter2@host/db",
    "sqlite:tenure.db",
    "sqlite:/tenure.db",
    "sqlite://",
    "sqlite://tenure.db",
    "sqlite:///",
    "sqlite:///:memory:",
    "sqlite:////srv/",
    "sqlite:///tenure.db?mode=ro",
    "sqlite:///ten%00ure.db",
    "sqlite:///ten\nure.db",
    "postgresql:",
    "postgresql:user:hunter2@host/db",
    "postgresql://",
    "postgresql://user:hunter2@host",
    "postgresql://user:hunter2@host/",
    "postgresql://user:hunter2@host:port/db",
    "postgresql://user:hunter2@host:70000/db",
    "postgresql://user:hunter2@[::1/db",
    "postgresql://user:hunter2@one:5433,two:port/db",
    "postgresql://user:hunter2@one,,two/db",
    "postgresql://user:hunter2@one,two:70000/db",
    "postgresql://user:hunter2@one,two/db?target_session_attrs=writable",
    "postgresql://user:hunter2@/db?host=one,two,three&port=5433,5434",
    "postgresql://user:hunter2@/db?host=one&port=none",
    "postgresql://user:hunt@er2@host/db",
    "postgresql://user:hunt/er2@host/db",
    "postgresql://user:12/hunter2@host/db",
    "postgresql://user:12?hunter2@host/db",
    "postgresql://user:12#hunter2@host/db",
    "postgresql://user:hunt[er2@host/db",
    "postgresql://user:hunter2@host/db#x",
    "postgresql://user:hunter2@host/d%0Ab",
    "postgresql+psycopg2://user:hunter2@host/db",
    "PostgreSQL://user:hunter2@host/db",
    "postgres://user:hunter2@host/db",
    "mssql://",
    "mssql://sa:hunter2@/db",
    "mssql://sa:hunter2@host",
    "mssql+aioodbc://sa:hunter2@host/db",
]


def test_invalid_url_is_rejected_with_message_that_omits_password(error_message: ErrorMessage) -> None:
    rule = "must be sqlite:///file, postgresql://user@host/database"
    for url in INVALID_URLS:
        message = error_message(TENURE_DATABASE=url)
        assert message.startswith(f"database (from TENURE_DATABASE): {rule}"), url
        assert "er2" not in message, url
        assert "er2" not in error_message(flags={"database": url}), url


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("one/db?port=5433", [("one", 5433)]),
        ("one:1,two/db?port=5433", [("one", 1), ("two", 5433)]),
        ("one,two/db?port=5433,5434", [("one", 5433), ("two", 5434)]),
        ("/db?host=one:1,two&port=5433", [("one", 5433), ("two", 5433)]),
        ("/db?port=5433", [(None, 5433)]),
        ("one:1/db?host=two", [("one", 1)]),
        ("/db", [(None, None)]),
    ],
)
def test_parameter_port_gives_the_hosts_of_a_postgresql_url_their_ports(
    hosts: str, expected: list[tuple[str | None, int | None]]
) -> None:
    assert list(split_postgres_url(f"postgresql://user@{hosts}").hosts) == expected
