"""Usage: eras, windows, chunks, and what a session lived of a window. All amounts are in millionths."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tenure.model.submissions import Contract

CHUNK_MAX = 1000
"""Sessions in a chunk."""

KINDS = (1, 2, 3)

Factors = tuple[int, int, int]
"""In millionths, of kinds 1, 2 and 3."""


class Era(msgspec.Struct, frozen=True):
    """A run of windows with the same factors."""

    started_at: datetime
    factors: Factors


class CutRules(msgspec.Struct, frozen=True):
    """What a window is cut by, and keeps."""

    interval_microseconds: int
    factors: Factors
    contract: Contract | None
    """None if there is nobody to send it to."""


class Cut(msgspec.Struct, frozen=True):
    now: datetime
    """By the database's clock."""
    last_cut_at: datetime
    windows: int


class Window(msgspec.Struct, frozen=True, kw_only=True):
    window_id: int
    installation_id: str
    """Of the installation that cut it."""
    started_at: datetime
    ended_at: datetime
    era: Era
    contract: Contract | None
    chunked_at: datetime | None = None
    sessions: int | None = None
    """None, as its usage, until all of its chunks are there."""
    usage_millionths: int | None = None
    delivered_at: datetime | None = None


class Unchunked(msgspec.Struct, frozen=True):
    """A window that is cut but not divided, or only in part."""

    window: Window
    chunks: int
    last_session_id: str | None
    """Of the last chunk that is there."""


class Piece(msgspec.Struct, frozen=True):
    """What makes a chunk."""

    first_session_id: str
    last_session_id: str
    sessions: int
    usage_millionths: int


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    window_id: int
    chunk: int
    first_session_id: str
    last_session_id: str
    sessions: int
    usage_millionths: int
    submission_id: str | None = None
    digest: bytes | None = None
    delivered_at: datetime | None = None


class Life(NamedTuple):
    """What a session lived of a window. Many: a window may have a million."""

    session_id: str
    user_object_id: str
    tenant_object_id: str
    capacity_id: str
    kind: int
    from_at: datetime | None
    """None if it lived already as the window began."""
    to_at: datetime | None
    """None if it lived on as the window ended."""
    before_microseconds: int
    """Lived in the era before the window."""
    total_microseconds: int
    """Lived in the era by the end of the window."""


class Seal(msgspec.Struct, frozen=True):
    submission_id: str
    digest: bytes


class PrunedUsage(msgspec.Struct, frozen=True):
    """One batch of what was kept long enough."""

    chunks: int
    windows: int
    sessions: int


class Lag(msgspec.Struct, frozen=True):
    """How far delivery is behind."""

    now: datetime
    delivered_until: datetime
    """All before this instant is delivered, or was not to be."""


class GroupBy(StrEnum):
    TENANT = "tenant"
    CAPACITY = "capacity"
    USER = "user"
    KIND = "kind"
    SESSION = "session"


class UsageFilter(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str | None = None
    capacity: str | None = None
    user: str | None = None


class UsageQuestion(msgspec.Struct, frozen=True, kw_only=True):
    from_at: datetime | None = None
    """None: 30 days before the end."""
    to_at: datetime | None = None
    """None: now. Never later than that: nobody can say what will be used."""
    criteria: UsageFilter = UsageFilter()
    group_by: GroupBy | None = None
    factors: Factors
    """That the next window would be cut with."""


class UsageGroup(msgspec.Struct, frozen=True):
    key: str | None
    usage_millionths: int
    sessions: int


class UsageSums(msgspec.Struct, frozen=True):
    final_until: datetime
    """The last cut: nothing before it can change."""
    groups: Sequence[UsageGroup]
    from_at: datetime
    to_at: datetime


class Installation(msgspec.Struct, frozen=True):
    installation_id: str
    kept_from: datetime
    """Where the windows that are kept begin."""
    last_cut_at: datetime
    last_window_id: int


class ChunkDelivery(msgspec.Struct, frozen=True):
    """A chunk, and what is known of its submission, at one instant."""

    chunk: int
    delivered_at: datetime | None
    submission_id: str | None
    delivery_key: str | None
    """None if its submission was pruned, or never made."""
    state: str | None
    delivered_attempts: int


class Overlap(msgspec.Struct, frozen=True):
    """Two sessions of a user on a capacity that lived at the same time."""

    session_id: str
    other_session_id: str
