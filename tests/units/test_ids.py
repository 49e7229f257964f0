"""Identifiers: UUIDv7, and the cell number in session ids."""

from typing import Any
from uuid import UUID

from tenure.config import SessionsConfig
from tenure.ids import CELL, new_id, new_session_id
from tenure.sessions.ends import SessionEnds
from tenure.sessions.open import Opener
from tenure.telemetry.events import Telemetry

RANDOM_BITS_A = 0xFFF
USER = "0190b0a0-0000-7000-8000-000000000001"


def test_new_ids_are_unique_uuid7() -> None:
    ids = [UUID(new_id()) for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {each.version for each in ids} == {7}


def test_session_id_contains_cell_number_in_twelve_bits() -> None:
    """The cell is the number of the database that stores the session. Sessions can later be spread over several
    databases; only one database exists so far.
    """
    ids = [UUID(new_session_id()) for _ in range(1000)]
    assert {(each.int >> 64) & RANDOM_BITS_A for each in ids} == {int(CELL, 16)} == {0}
    assert {each.version for each in ids} == {7}
    assert {each.variant for each in ids} == {UUID(int=0x8 << 60).variant}
    assert len(set(ids)) == 1000


def test_opener_creates_session_id_with_cell_number() -> None:
    store: Any = ScriptedBatches()
    opener = Opener(store, SessionsConfig(), SessionEnds(Telemetry()), Telemetry())
    request = opener.request(user=USER, tenant=USER, capacity=USER, kind=1)
    assert request.session_id[15:18] == CELL


class ScriptedBatches:
    batches_in_flight = 1
