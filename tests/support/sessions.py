"""Sessions of a test's database: opened, and as they are recorded."""

from typing import Any

from tenure.domain.sessions import OpenOutcome, OpenRequest, Session
from tests.support.databases import Database
from tests.support.open_requests import open_one, request


async def opened(database: Database, **given: Any) -> Session:
    """A new one."""
    answer = await open_one(database.store, request(**given))
    assert answer.outcome is OpenOutcome.CREATED
    assert answer.session is not None
    return answer.session


async def live(database: Database, one: OpenRequest) -> Session:
    """The one there is by that key now, new or not."""
    answer = await open_one(database.store, one)
    assert answer.session is not None
    return answer.session


async def recorded(database: Database, session_id: str) -> Session:
    session = await database.store.get_session(session_id)
    assert session is not None
    return session
