"""Opens and reads single sessions."""

from typing import Any

from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import OpenOutcome, OpenRequest, Session
from tests.support.databases import Database
from tests.support.open_requests import open_one, request


async def open_new_session(database: Database, **given: Any) -> Session:
    """Opens a session whose key must be free."""
    result = await open_one(database.store, request(**given))
    assert result.outcome is OpenOutcome.CREATED
    assert result.session is not None
    return result.session


async def open_session(database: Database, one: OpenRequest) -> Session:
    """Returns the live session of the key; opens one if there is none."""
    result = await open_one(database.store, one)
    assert result.session is not None
    return result.session


async def read_session(database: Database, session_id: str) -> Session:
    session = await database.store.get_session(session_id, EVERYTHING)
    assert session is not None
    return session
