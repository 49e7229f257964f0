from tests.support.databases import Database


async def test_starts_empty(database: Database) -> None:
    assert (await database.store.count_sessions()).total == 0
