"""API keys, signing keys and the audit log, on every engine."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.domain.audit_log import Actor, AuditFilter, AuditPosition
from tenure.domain.keys import CreateKeyOutcome, CreateKeyResult, KeysVersion, Role, StoredKey, new_api_key
from tenure.domain.leases import Fence
from tenure.domain.session_tokens import SIGNING_KEYS_MAX, RotateOutcome, new_signing_key
from tenure.errors import IdTaken
from tenure.store.limits import AUDIT_LOG_KEPT, BATCH_MAX
from tests.support.databases import Database
from tests.support.keys import OPERATOR, create_key, new_key
from tests.support.leases import MICROSECOND, all_tables, hold_lease, insert_row, read_table, sibling_store
from tests.support.open_requests import NOON, some_id

pytestmark = pytest.mark.usefixtures("noon")

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
ALL = AuditFilter()


async def version(database: Database) -> int:
    return (await database.store.read_keys_version()).version


async def actions(database: Database) -> list[tuple[str, str]]:
    return [(entry.action, entry.target) for entry in await database.store.list_audit_log(ALL, None, 99)]


async def test_create_key__stores_all_fields(database: Database) -> None:
    tenant = some_id()
    new = new_key(role=Role.READER, name="Dash board", tenant_object_id=tenant, expires_at=NOON + DAY)
    result = await database.store.create_key(new, OPERATOR)
    expected = StoredKey(
        public_id=new.public_id,
        name="Dash board",
        role="reader",
        tenant_object_id=tenant,
        digest=new.digest,
        created_at=NOON,
        created_by=OPERATOR.subject,
        expires_at=NOON + DAY,
        last_used_at=None,
        revoked_at=None,
    )
    assert result == CreateKeyResult(CreateKeyOutcome.CREATED, expected)
    assert await database.store.find_key(new.public_id) == expected


async def test_create_key__increases_version_and_writes_one_audit_entry(database: Database) -> None:
    key = await create_key(database.store)
    assert await version(database) == 1
    (entry,) = await database.store.list_audit_log(ALL, None, 9)
    assert (entry.at, entry.subject, entry.name, entry.request_id) == (NOON, "4fJ0aQz81LmN", "console", "request-7")
    assert (entry.action, entry.target, entry.detail) == ("key.created", key.public_id, "client web")


async def test_create_key__changes_nothing_when_repeated_after_lost_answer(database: Database) -> None:
    new = new_key()
    first = await database.store.create_key(new, OPERATOR)
    await database.clock.set(NOON + SECOND)
    before = await all_tables(database)
    assert await database.store.create_key(new, OPERATOR) == first
    assert await all_tables(database) == before


async def test_create_key__recognises_repeated_call_although_name_has_two_live_keys(database: Database) -> None:
    first, second = new_key(), new_key()
    for new in (first, second, first):
        assert (await database.store.create_key(new, OPERATOR)).outcome is CreateKeyOutcome.CREATED
    assert await version(database) == 2


async def test_create_key__refuses_third_live_key_of_name_and_writes_nothing(database: Database) -> None:
    for _ in range(2):
        await create_key(database.store)
    before = await all_tables(database)
    refused = await database.store.create_key(new_key(), OPERATOR)
    assert refused == CreateKeyResult(CreateKeyOutcome.NAME_TAKEN)
    assert await all_tables(database) == before
    await create_key(database.store, name="Web")


async def test_create_key__counts_only_live_keys_of_name(database: Database) -> None:
    await database.store.revoke_key((await create_key(database.store)).public_id, OPERATOR)
    await create_key(database.store, expires_at=NOON + SECOND)
    await create_key(database.store)
    await database.clock.set(NOON + SECOND)
    await create_key(database.store)
    assert (await database.store.create_key(new_key(), OPERATOR)).outcome is CreateKeyOutcome.NAME_TAKEN


async def test_create_key__creates_two_of_ten_concurrent_keys_with_same_name(database: Database) -> None:
    stores = [sibling_store(database) for _ in range(3)]
    results = await asyncio.gather(
        *(stores[number % 3].create_key(new_key(), OPERATOR) for number in range(10)),
    )
    for store in stores:
        await store.close()
    assert [result.outcome for result in results].count(CreateKeyOutcome.CREATED) == 2
    assert (await version(database), len(await actions(database))) == (2, 2)


async def test_create_key__sets_expiry_of_other_keys_with_same_name(database: Database) -> None:
    old = await create_key(database.store)
    other_name = await create_key(database.store, name="batch")
    new = await create_key(database.store, others_expire_at=NOON + DAY)
    found = {key.public_id: key.expires_at for key in await database.store.list_keys(None, None, 9)}
    assert found == {old.public_id: NOON + DAY, other_name.public_id: None, new.public_id: None}
    latest = (await database.store.list_audit_log(AuditFilter(target=new.public_id), None, 1))[0]
    assert latest.detail == "client web; other keys with this name expire at 2041-03-02T12:00:00.123456Z"


async def test_create_key__does_not_postpone_expiry_of_other_key(database: Database) -> None:
    old = await create_key(database.store, expires_at=NOON + SECOND)
    await create_key(database.store, others_expire_at=NOON + DAY)
    found = await database.store.find_key(old.public_id)
    assert found == old


async def test_create_key__raises_when_another_key_has_public_id(database: Database) -> None:
    new = new_key()
    await database.store.create_key(new, OPERATOR)
    with pytest.raises(IdTaken):
        await database.store.create_key(replace(new, digest=b"9" * 32), OPERATOR)
    assert await version(database) == 1


async def test_revoke_key__does_not_change_revoked_at_when_repeated(database: Database) -> None:
    key = await create_key(database.store)
    await database.clock.set(NOON + SECOND)
    revoked = await database.store.revoke_key(key.public_id, OPERATOR)
    assert revoked == replace(key, revoked_at=NOON + SECOND)
    await database.clock.set(NOON + 2 * SECOND)
    before = await all_tables(database)
    assert await database.store.revoke_key(key.public_id, OPERATOR) == revoked
    assert await all_tables(database) == before


async def test_revoke_key__increases_version_and_writes_one_audit_entry(database: Database) -> None:
    key = await create_key(database.store)
    await database.clock.set(NOON + SECOND)
    await database.store.revoke_key(key.public_id, Actor("cli:root@host", "cli:root@host"))
    assert await version(database) == 2
    assert await actions(database) == [("key.revoked", key.public_id), ("key.created", key.public_id)]
    entry = (await database.store.list_audit_log(ALL, None, 1))[0]
    assert (entry.subject, entry.request_id, entry.detail) == ("cli:root@host", None, None)


async def test_revoke_key__returns_none_for_unknown_key(database: Database) -> None:
    before = await all_tables(database)
    assert await database.store.revoke_key("aaaaaaaaaaaa", OPERATOR) is None
    assert await all_tables(database) == before


async def test_revoke_key__changes_version_once_among_concurrent_calls(database: Database) -> None:
    key = await create_key(database.store)
    other = sibling_store(database)
    found = await asyncio.gather(
        *(store.revoke_key(key.public_id, OPERATOR) for store in (database.store, other) for _ in range(4))
    )
    await other.close()
    assert {each.revoked_at for each in found if each is not None} == {NOON}
    assert await version(database) == 2


async def test_find_key__distinguishes_case_of_public_id(database: Database) -> None:
    key = await create_key(database.store, public_id="aaaaaaaaaaaB")
    assert await database.store.find_key("aaaaaaaaaaab") is None
    assert await database.store.find_key("aaaaaaaaaaaB") == key


async def test_list_keys__returns_all_keys_in_pages(database: Database) -> None:
    made = {(await create_key(database.store, name=f"name {number}")).public_id for number in range(5)}
    first = await database.store.list_keys(None, None, 3)
    rest = await database.store.list_keys(None, first[-1].public_id, 3)
    assert (len(first), len(rest)) == (3, 2)
    assert {key.public_id for key in (*first, *rest)} == made


async def test_list_keys__filters_by_name_and_includes_revoked_keys(database: Database) -> None:
    mine = await create_key(database.store)
    await create_key(database.store, name="WEB")
    await database.store.revoke_key(mine.public_id, OPERATOR)
    assert [key.public_id for key in await database.store.list_keys("web", None, 9)] == [mine.public_id]


async def test_read_keys_version__is_zero_before_first_key(database: Database) -> None:
    found = await database.store.read_keys_version()
    assert found == KeysVersion(0, NOON, found.signing_keys)


async def test_read_keys_version__stays_positive_after_last_key_is_revoked(database: Database) -> None:
    await database.store.revoke_key((await create_key(database.store)).public_id, OPERATOR)
    assert await version(database) == 2


async def test_touch_keys__moves_last_use_only_forward_and_not_beyond_current_time(database: Database) -> None:
    key = (await create_key(database.store)).public_id
    uses = [(NOON - 5 * SECOND, NOON - 5 * SECOND), (NOON - 9 * SECOND, NOON - 5 * SECOND), (NOON + DAY, NOON)]
    for used_at, expected in uses:
        await database.store.touch_keys({key: used_at, "aaaaaaaaaaaa": used_at})
        found = await database.store.find_key(key)
        assert found is not None
        assert found.last_used_at == expected


async def test_touch_keys__changes_neither_version_nor_audit_log(database: Database) -> None:
    keys = [(await create_key(database.store, name=f"name {number}")).public_id for number in range(3)]
    before = await version(database), await actions(database)
    await database.store.touch_keys(dict.fromkeys(keys, NOON))
    assert (await version(database), await actions(database)) == before
    assert [key.last_used_at for key in await database.store.list_keys(None, None, 9)] == [NOON] * 3


async def test_touch_keys__takes_empty_and_full_batch(database: Database) -> None:
    await database.store.touch_keys({})
    await database.store.touch_keys({new_api_key(Role.CLIENT).public_id: NOON for _ in range(BATCH_MAX)})


async def signing_keys(database: Database) -> dict[str, datetime | None]:
    """Returns the instant at which each signing key expires, by key id. It is None for the current signing key."""
    return {key.key_id: key.expires_at for key in (await database.store.read_keys_version()).signing_keys}


async def test_read_keys_version__returns_signing_key_that_migration_created(database: Database) -> None:
    (key,) = (await database.store.read_keys_version()).signing_keys
    assert (len(key.secret), key.expires_at) == (32, None)


async def test_read_keys_version__returns_version_if_there_is_no_signing_key(database: Database) -> None:
    await database.execute("DELETE FROM signing_keys")
    assert await database.store.read_keys_version() == KeysVersion(0, NOON)


async def test_rotate_signing_key__sets_expiry_of_previous_key_only(database: Database) -> None:
    ((first, _),) = (await signing_keys(database)).items()
    second, third = new_signing_key(), new_signing_key()
    assert await database.store.rotate_signing_key(second, DAY, OPERATOR) is RotateOutcome.ROTATED
    assert await signing_keys(database) == {first: NOON + DAY, second.key_id: None}
    await database.store.rotate_signing_key(third, 2 * DAY, OPERATOR)
    assert await signing_keys(database) == {first: NOON + DAY, second.key_id: NOON + 2 * DAY, third.key_id: None}
    stored = {key.key_id: key.secret for key in (await database.store.read_keys_version()).signing_keys}
    assert (stored[second.key_id], stored[third.key_id]) == (second.secret, third.secret)


async def test_rotate_signing_key__deletes_expired_keys_or_all_earlier_keys_if_overlap_is_none(
    database: Database,
) -> None:
    await database.store.rotate_signing_key(second := new_signing_key(), DAY, OPERATOR)
    await database.clock.set(NOON + DAY)
    await database.store.rotate_signing_key(third := new_signing_key(), DAY, OPERATOR)
    assert await signing_keys(database) == {second.key_id: NOON + 2 * DAY, third.key_id: None}
    await database.store.rotate_signing_key(last := new_signing_key(), None, OPERATOR)
    assert await signing_keys(database) == {last.key_id: None}


async def test_rotate_signing_key__writes_audit_entry_and_keeps_version(database: Database) -> None:
    first, second = new_signing_key(), new_signing_key()
    await database.store.rotate_signing_key(first, DAY, OPERATOR)
    await database.clock.set(NOON + SECOND)
    await database.store.rotate_signing_key(second, None, OPERATOR)
    assert await version(database) == 0
    entries = await database.store.list_audit_log(ALL, None, 9)
    assert [(entry.action, entry.target, entry.subject, entry.detail) for entry in entries] == [
        ("signing-key.rotated", second.key_id, OPERATOR.subject, "all earlier session tokens are invalid"),
        ("signing-key.rotated", first.key_id, OPERATOR.subject, "earlier signing keys expire after 86400 seconds"),
    ]


async def test_rotate_signing_key__changes_nothing_when_repeated_after_lost_answer(database: Database) -> None:
    new = new_signing_key()
    await database.store.rotate_signing_key(new, DAY, OPERATOR)
    await database.clock.set(NOON + SECOND)
    before = await all_tables(database)
    for overlap in (DAY, None):
        assert await database.store.rotate_signing_key(new, overlap, OPERATOR) is RotateOutcome.ROTATED
    assert await all_tables(database) == before


async def test_rotate_signing_key__refuses_too_many_keys_unless_overlap_is_none(database: Database) -> None:
    for _ in range(SIGNING_KEYS_MAX - 1):
        assert await database.store.rotate_signing_key(new_signing_key(), DAY, OPERATOR) is RotateOutcome.ROTATED
    before = await all_tables(database)
    assert await database.store.rotate_signing_key(new_signing_key(), DAY, OPERATOR) is RotateOutcome.TOO_MANY
    assert await all_tables(database) == before
    assert await database.store.rotate_signing_key(new_signing_key(), None, OPERATOR) is RotateOutcome.ROTATED
    assert len(await signing_keys(database)) == 1


async def test_rotate_signing_key__leaves_one_current_key_among_concurrent_calls(database: Database) -> None:
    other = sibling_store(database)
    stores = [database.store, other, database.store, other]
    await asyncio.gather(*(store.rotate_signing_key(new_signing_key(), DAY, OPERATOR) for store in stores))
    await other.close()
    assert list((await signing_keys(database)).values()).count(None) == 1
    assert len(await signing_keys(database)) == 5


async def put_entry(database: Database, **values: Any) -> str:
    entry_id = some_id()
    row = {"at": NOON, "subject": "one", "name": "web", "action": "key.created", "target": "a", **values}
    await insert_row(database, "audit_log", entry_id=entry_id, **row)
    return entry_id


async def test_list_audit_log__returns_newest_entries_first_in_pages(database: Database) -> None:
    """The database orders entries with the same timestamp by id. The test does not check this order, because SQL Server
    does not sort ids as text.
    """
    made = [await put_entry(database, at=NOON + number // 2 * SECOND) for number in range(6)]
    found = await database.store.list_audit_log(ALL, None, 2)
    while len(found) < 6:
        last = AuditPosition(found[-1].at, found[-1].entry_id)
        found = [*found, *await database.store.list_audit_log(ALL, last, 2)]
    assert [entry.at for entry in found] == [NOON + number // 2 * SECOND for number in reversed(range(6))]
    assert sorted(entry.entry_id for entry in found) == sorted(made)


async def test_list_audit_log__applies_each_filter(database: Database) -> None:
    wanted = await put_entry(database, subject="two", action="key.revoked", target="b", at=NOON + SECOND)
    await put_entry(database)
    await put_entry(database, subject="Two", target="B", at=NOON + DAY)
    for criteria in (
        AuditFilter(subject="two"),
        AuditFilter(action="key.revoked"),
        AuditFilter(target="b"),
        AuditFilter(from_at=NOON + SECOND, to_at=NOON + DAY),
    ):
        found = await database.store.list_audit_log(criteria, None, 9)
        assert [entry.entry_id for entry in found] == [wanted], criteria


async def test_prune__keeps_audit_entries_for_400_days(database: Database) -> None:
    old = NOON - AUDIT_LOG_KEPT
    for at in (old - DAY, old - MICROSECOND, old, old + MICROSECOND):
        await put_entry(database, at=at)
    fence: Fence = await hold_lease(database.store, "job:prune")
    assert [(await database.store.prune(fence, 1)).audit_log for _ in range(3)] == [1, 1, 0]
    kept = await read_table(database, "audit_log")
    assert sorted(row["at"] for row in kept) == [old, old + MICROSECOND]
