"""`tenure keys` creates, lists, revokes and rotates keys. It prints a new key alone on standard output."""

import asyncio
import json
import re
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.audit_log import AuditFilter
from tenure.domain.keys import ApiKey, Role, parse_key
from tenure.domain.session_tokens import SIGNING_KEYS_MAX
from tenure.store.engines import open_store
from tests.cli.conftest import Tenure
from tests.support.databases import POOL_SIZE, Database

CREATE = ("keys", "create", "--name", "web", "--role", "client")


def created(tenure: Tenure, *arguments: str) -> ApiKey:
    result = tenure(*(arguments or CREATE))
    assert result.code == 0, result.err
    key = parse_key(result.out.removesuffix("\n"))
    assert key is not None, result.out
    assert key.secret not in result.err
    assert key.public_id in result.err
    return key


def listed(tenure: Tenure, *flags: str) -> list[dict[str, Any]]:
    result = tenure("keys", "list", "--json", *flags)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["count"] == len(found["keys"])
    return found["keys"]  # type: ignore[no-any-return]


def test_create_prints_only_the_key_and_creates_the_database(tenure: Tenure, tmp_path: Path) -> None:
    assert created(tenure).role is Role.CLIENT
    assert (tmp_path / "tenure.db").is_file()


def test_create_stores_digest_but_not_secret(tenure: Tenure, tmp_path: Path) -> None:
    key = created(tenure)
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("tenure.db*"))
    assert key.digest in stored
    assert key.secret.encode() not in stored


def test_create_stores_role_and_expiry(tenure: Tenure) -> None:
    created(tenure, "keys", "create", "--name", "a", "--role", "reader", "--expires", "90d")
    (row,) = listed(tenure)
    assert (row["name"], row["role"], row["tenantObjectId"], row["state"]) == ("a", "reader", None, "live")
    life = datetime.fromisoformat(row["expiresAt"]) - datetime.fromisoformat(row["createdAt"])
    assert abs(life - timedelta(days=90)) < timedelta(minutes=1)
    assert re.fullmatch(r"cli:.+@.+", row["createdBy"])


def test_create_and_rotate_bind_keys_to_tenant(tenure: Tenure) -> None:
    tenant = "0190b0a0-0000-7000-8000-00000000000a"
    created(tenure, *CREATE, "--tenant", tenant.upper())
    created(tenure, "keys", "rotate", "web")
    assert [row["tenantObjectId"] for row in listed(tenure)] == [tenant, tenant]


def test_create_accepts_a_date_as_expiry(tenure: Tenure) -> None:
    created(tenure, *CREATE, "--expires", "2090-02-03")
    assert [row["expiresAt"] for row in listed(tenure)] == ["2090-02-03T00:00:00.000000Z"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--role", "admin"], "role: must be client, reader, operator"),
        (["--tenant", "acme"], "tenant: must be a UUID"),
        (["--expires", "2020-01-01"], "expires: must be in the future"),
        (["--expires", "soon"], "expires: must be an instant"),
        (["--name", "é"], "name: must be printable ASCII"),
        (["--name", "x" * 65], "name: must be printable ASCII"),
    ],
)
def test_create_refuses_wrong_values_with_one_line_and_code_2(tenure: Tenure, flags: list[str], message: str) -> None:
    result = tenure(*CREATE, *flags)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"tenure: {message}")
    assert result.err.count("\n") == 1


def test_create_refuses_third_live_key_with_code_1(tenure: Tenure) -> None:
    for _ in range(2):
        created(tenure)
    result = tenure(*CREATE)
    assert (result.code, result.out) == (1, "")
    assert "two live keys have the name web" in result.err


def test_list_prints_table_without_secrets(tenure: Tenure) -> None:
    key = created(tenure)
    result = tenure("keys", "list")
    assert result.code == 0
    assert result.out.splitlines()[0].split()[:3] == ["public", "id", "name"]
    assert key.public_id in result.out
    assert key.secret not in result.out
    assert key.digest.hex() not in result.out


def test_list_filters_by_name(tenure: Tenure) -> None:
    created(tenure)
    created(tenure, "keys", "create", "--name", "other", "--role", "operator")
    assert [row["name"] for row in listed(tenure, "--name", "other")] == ["other"]
    assert listed(tenure, "--name", "nothing") == []


def test_revoke_revokes_key_and_can_be_repeated(tenure: Tenure) -> None:
    key = created(tenure)
    for _ in range(2):
        result = tenure("keys", "revoke", key.public_id)
        assert (result.code, result.out) == (0, "")
        assert f"revoked {key.public_id} (web)" in result.err
    assert [row["state"] for row in listed(tenure)] == ["revoked"]


def test_revoke_of_unknown_key_exits_with_code_1(tenure: Tenure) -> None:
    created(tenure)
    result = tenure("keys", "revoke", "aaaaaaaaaaaa")
    assert (result.code, result.err) == (1, "tenure: key aaaaaaaaaaaa does not exist\n")


def test_revoke_prints_no_secret_if_key_is_given_instead_of_public_id(tenure: Tenure) -> None:
    key = created(tenure)
    result = tenure("keys", "revoke", key.text)
    assert result.code == 2
    assert key.secret not in result.err + result.out


def test_rotate_creates_second_key_and_keeps_first_one(tenure: Tenure) -> None:
    old = created(tenure, "keys", "create", "--name", "web", "--role", "reader")
    new = created(tenure, "keys", "rotate", "web")
    assert new.role is Role.READER
    rows = {row["publicId"]: row for row in listed(tenure)}
    assert {(row["state"], row["expiresAt"], row["tenantObjectId"]) for row in rows.values()} == {("live", None, None)}
    assert rows.keys() == {old.public_id, new.public_id}


def test_rotate_with_overlap_lets_old_key_expire(tenure: Tenure) -> None:
    old = created(tenure)
    new = created(tenure, "keys", "rotate", "web", "--overlap", "24h")
    rows = {row["publicId"]: row for row in listed(tenure)}
    assert rows[new.public_id]["expiresAt"] is None
    life = datetime.fromisoformat(rows[old.public_id]["expiresAt"]) - datetime.fromisoformat(
        rows[new.public_id]["createdAt"]
    )
    assert abs(life - timedelta(hours=24)) < timedelta(minutes=1)


def test_rotate_needs_live_key(tenure: Tenure) -> None:
    tenure("keys", "revoke", created(tenure).public_id)
    result = tenure("keys", "rotate", "web")
    assert (result.code, result.err) == (1, "tenure: there is no live key with the name web\n")


def test_rotate_refuses_wrong_overlap(tenure: Tenure) -> None:
    created(tenure)
    result = tenure("keys", "rotate", "web", "--overlap", "tomorrow")
    assert result.code == 2
    assert result.err.startswith("tenure: overlap: must be a number of days, hours or minutes")


def rotations() -> list[str]:
    """Returns `<id of the new signing key>: <detail>` for each rotation in the audit log, oldest first."""
    with sqlite3.connect("tenure.db") as connection:
        rows = connection.execute(
            "SELECT target, detail, subject FROM audit_log WHERE action = 'signing-key.rotated' ORDER BY at"
        ).fetchall()
    assert all(subject.startswith("cli:") for _, _, subject in rows)
    return [f"{target}: {detail}" for target, detail, _ in rows]


def test_rotate_signing_key_prints_no_secret_and_writes_audit_entries(tenure: Tenure) -> None:
    created(tenure)
    longest = 30 * 86_400 + 3600
    for flags, earlier, detail in (
        ([], "valid for 721 h", f"earlier signing keys expire after {longest:g} seconds"),
        (["--overlap", "48h"], "valid for 2 d", "earlier signing keys expire after 172800 seconds"),
        (["--at-once"], "invalid", "all earlier session tokens are invalid"),
    ):
        result = tenure("keys", "rotate-signing-key", *flags)
        assert (result.code, result.out) == (0, "")
        line = r"new session tokens are signed with key ([0-9a-f]{12}); earlier tokens are (.*)\n"
        found = re.fullmatch(line, result.err)
        assert found, result.err
        assert found[2] == earlier
        assert rotations()[-1] == f"{found[1]}: {detail}"
    with sqlite3.connect("tenure.db") as connection:
        assert connection.execute("SELECT count(*) FROM signing_keys").fetchone() == (1,)


def test_rotate_signing_key_refuses_wrong_flags_and_too_many_keys(tenure: Tenure) -> None:
    created(tenure)
    assert tenure("keys", "rotate-signing-key", "--overlap", "1h", "--at-once").code == 2
    assert tenure("keys", "rotate-signing-key", "--overlap", "soon").code == 2
    assert rotations() == []
    for _ in range(SIGNING_KEYS_MAX - 1):
        assert tenure("keys", "rotate-signing-key").code == 0
    refused = tenure("keys", "rotate-signing-key")
    assert (refused.code, "--at-once" in refused.err) == (1, True)


@pytest.mark.parametrize("command", [["list"], ["revoke", "aaaaaaaaaaaa"], ["rotate", "web"], ["rotate-signing-key"]])
def test_commands_except_create_do_not_create_database(tenure: Tenure, tmp_path: Path, command: list[str]) -> None:
    result = tenure("keys", *command)
    assert (result.code, result.err) == (2, "tenure: database: file tenure.db does not exist\n")
    assert list(tmp_path.glob("*.db")) == []


async def test_commands_work_on_postgresql_and_are_recorded(tenure: Tenure, postgres_database: Database) -> None:
    where = ("--database", postgres_database.url)
    key = await asyncio.to_thread(created, tenure, *CREATE, *where)
    await asyncio.to_thread(created, tenure, "keys", "rotate", "web", *where)
    assert (await asyncio.to_thread(tenure, "keys", "revoke", key.public_id, *where)).code == 0
    store = open_store(postgres_database.url, POOL_SIZE)
    entries = await store.list_audit_log(AuditFilter(), None, 9)
    await store.close()
    assert [entry.action for entry in entries] == ["key.revoked", "key.created", "key.created"]
    assert {entry.subject.partition(":")[0] for entry in entries} == {"cli"}
