"""Which database URLs are usable."""

import pytest

from tenure.config import load
from tests.config.conftest import Refusal


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///relative.db",
        "sqlite:////absolute.db",
        "sqlite:////srv/my data/a@b#c.db",
        "sqlite:///a%20b%3F.db",
        "postgresql://user@/db?host=/socket/dir",
        "postgresql:///db",
        "postgresql://host/db",
        "postgresql://user:pass%40word@host:5432/db?sslmode=require",
        "postgresql://user@[::1]:5432/db",
        "mssql://sa:password@host/db",
        "mssql://sa:password@host:1433/db?driver=ODBC+Driver+18+for+SQL+Server",
    ],
)
def test_takes_a_usable_url(url: str) -> None:
    assert load({"database": url}, {}).database == url


UNUSABLE = [
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


@pytest.mark.parametrize("url", UNUSABLE)
def test_refuses_an_unusable_url(url: str, refusal: Refusal) -> None:
    message = refusal(TENURE_DATABASE=url)
    assert message.startswith(
        "database (from TENURE_DATABASE): must be sqlite:///file, postgresql://user@host/database"
    )


@pytest.mark.parametrize("url", [url for url in UNUSABLE if "er2" in url])
def test_repeats_no_password_when_it_refuses_a_url(url: str, refusal: Refusal) -> None:
    assert "er2" not in refusal(flags={"database": url})
