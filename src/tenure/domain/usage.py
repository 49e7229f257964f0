"""Usage: eras, windows, chunks, and the billable intervals of sessions. All amounts are in millionths.

The job `emit-usage` cuts time into windows. The usage in a window is final. Each window is divided into chunks of
sessions. If a gateway is configured for usage, each chunk is delivered as one submission.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tenure.clock import MICROSECOND
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.submissions import Contract

CHUNK_MAX = 1000
"""The maximum number of sessions in a chunk."""

KINDS = (1, 2, 3)

Factors = tuple[int, int, int]
"""The factors of kinds 1, 2 and 3, in millionths."""


class Era(msgspec.Struct, frozen=True):
    """A sequence of windows with the same factors."""

    started_at: datetime
    factors: Factors


class CutRules(msgspec.Struct, frozen=True):
    """The arguments of a call of `cut_usage`. All windows that the call creates get these factors and this contract."""

    interval_microseconds: int
    factors: Factors
    contract: Contract | None
    """None if no gateway is configured for usage."""


class Cut(msgspec.Struct, frozen=True):
    """The result of one call of `cut_usage`."""

    now: datetime
    """The time of the database's clock."""
    last_cut_at: datetime
    """The end of the last window."""
    windows: int
    """The number of windows that the call created."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    window_id: int
    installation_id: str
    """The installation that cut the window."""
    started_at: datetime
    ended_at: datetime
    era: Era
    contract: Contract | None
    chunked_at: datetime | None = None
    """When the window was completely divided into chunks."""
    sessions: int | None = None
    """None until all chunks of the window exist; the same applies to `usage_millionths`."""
    usage_millionths: int | None = None
    delivered_at: datetime | None = None


class UnsentWindow(msgspec.Struct, frozen=True):
    """A window that was cut while no gateway was configured for usage, and that has not been sent since. All its chunks
    exist.
    """

    window_id: int
    chunks: int


class WindowToSend(msgspec.Struct, frozen=True):
    window_id: int
    submission_ids: Sequence[str]
    """The ids that the submissions of the window's chunks get, in the order of the chunks."""


class UndividedWindow(msgspec.Struct, frozen=True):
    """A window that has been cut but not yet completely divided into chunks."""

    window: Window
    chunks: int
    last_session_id: str | None
    """The last session of the last existing chunk; None if there is no chunk yet."""


class ChunkBounds(msgspec.Struct, frozen=True):
    """The first and the last session of a chunk, and the number and the usage of its sessions."""

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
    has_receipt: bool = False
    """Whether the receiver named the digest when it accepted the chunk."""


class BillableInterval(NamedTuple):
    """The part of a window in which a session was live. A tuple saves memory: a window may have a million intervals."""

    session_id: str
    user_object_id: str
    tenant_object_id: str
    capacity_id: str
    kind: int
    from_at: datetime | None
    """None if the session was already live when the window began."""
    to_at: datetime | None
    """None if the session was still live when the window ended."""
    before_microseconds: int
    """The billable time from the start of the era to the start of the window."""
    total_microseconds: int
    """The billable time from the start of the era to the end of the window."""


class ChunkDigest(msgspec.Struct, frozen=True):
    submission_id: str
    digest: bytes


class PrunedUsage(msgspec.Struct, frozen=True):
    """The numbers of rows that one call of `prune_usage` deleted."""

    chunks: int
    windows: int
    sessions: int


class Lag(msgspec.Struct, frozen=True):
    """How far the delivery of usage has progressed."""

    now: datetime
    delivered_until: datetime
    """All usage before this instant has been delivered, or needed no delivery because no gateway was configured."""


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


class UsageSumQuery(msgspec.Struct, frozen=True, kw_only=True):
    from_at: datetime | None = None
    """None means 30 days before `to_at`."""
    to_at: datetime | None = None
    """None means now. An instant in the future is replaced with now, because future usage is unknown."""
    criteria: UsageFilter = UsageFilter()
    group_by: GroupBy | None = None
    scope: Scope = EVERYTHING
    """If the scope has a tenant or a user, only usage of this tenant or user is summed."""
    factors: Factors
    """The configured factors, for usage since the last cut. The next cut will apply them, too."""
    quick: bool = False
    """If true, the sum of a span with many sessions may begin and end at marks near `from_at` and `to_at`, so that few
    sessions are read. The result has the instants that were used."""


class UsageGroup(msgspec.Struct, frozen=True):
    key: str | None
    """The tenant, capacity, user, kind or session of this group; None if the query does not group."""
    usage_millionths: int
    sessions: int


class UsageSums(msgspec.Struct, frozen=True):
    final_until: datetime
    """The last cut. Usage before it cannot change."""
    groups: Sequence[UsageGroup]
    from_at: datetime
    to_at: datetime


class Installation(msgspec.Struct, frozen=True):
    installation_id: str
    kept_from: datetime
    """The start of the oldest window that is kept."""
    last_cut_at: datetime
    last_window_id: int


class ChunkDelivery(msgspec.Struct, frozen=True):
    """A chunk and its submission, both read at one instant."""

    chunk: int
    delivered_at: datetime | None
    submission_id: str | None
    delivery_key: str | None
    """None if the submission was pruned or never created; the same applies to `state`."""
    state: str | None
    delivered_attempts: int


class Overlap(msgspec.Struct, frozen=True):
    """Two sessions of a user on a capacity that were live at the same time."""

    session_id: str
    other_session_id: str


# Marks: running sums at full hours, so that the sum over a long span need not read the sessions that were live in it.

HOURLY_MARKS_KEPT = timedelta(days=3)
"""A mark that is older than this at the last cut is kept only if it lies at midnight (UTC)."""
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


class MarkState(StrEnum):
    INCOMPLETE = "incomplete"
    """The rows of the mark are being saved or deleted. No sum uses it."""
    COMPLETE = "complete"
    SKIPPED = "skipped"
    """The mark has no rows, because the usage since the previous mark alone needs more than MARK_KEYS_MAX rows."""


class Mark(msgspec.Struct, frozen=True):
    at: datetime
    series: int
    """Only marks of the same series can be subtracted from each other."""
    state: MarkState


class MarkSums(NamedTuple):
    """A row of a mark: the sums of one tenant, capacity and kind. A tuple saves memory: a mark may have 50 000 rows."""

    tenant_object_id: str
    capacity_id: str
    kind: int
    usage_millionths: int
    """The usage from the beginning of the series to the mark."""
    started: int
    """The number of sessions that started between the beginning of the series and the mark."""
    live: int
    """The number of sessions that were live at the mark."""


class Marks(msgspec.Struct, frozen=True):
    last_cut_at: datetime
    begins_at: datetime
    """No usage before this instant is kept."""
    marks: Sequence[Mark]
    """Oldest first."""

    @property
    def last(self) -> Mark | None:
        """The newest mark that is complete or skipped."""
        return next((mark for mark in reversed(self.marks) if mark.state is not MarkState.INCOMPLETE), None)


class DueMark(msgspec.Struct, frozen=True):
    at: datetime
    from_at: datetime
    """The usage from this instant to `at` is added to the rows of the previous mark."""


def due_mark(found: Marks) -> DueMark | None:
    """Return the next mark to write, or None if its instant is not before the last cut.

    There is no mark at the last cut itself, because sessions can still end at that very instant.
    """
    last = found.last
    from_at = found.begins_at if last is None else max(last.at, found.begins_at)
    at = _grid_after(from_at, _HOUR)
    if not _is_kept(at, found):
        first_recent = _grid_after(found.last_cut_at - HOURLY_MARKS_KEPT - MICROSECOND, _HOUR)
        at = min(_grid_after(from_at, _DAY), first_recent)
    return DueMark(at, from_at) if at < found.last_cut_at else None


def old_marks(found: Marks) -> Sequence[Mark]:
    """The marks to delete. The last mark is never among them, because the next mark continues from it."""
    due = due_mark(found)
    return [
        mark
        for mark in found.marks
        if mark != found.last
        and not (_is_kept(mark.at, found) if mark.state is not MarkState.INCOMPLETE else due and due.at == mark.at)
    ]


def _is_kept(at: datetime, found: Marks) -> bool:
    is_recent = at >= found.last_cut_at - HOURLY_MARKS_KEPT
    return at >= found.begins_at and (is_recent or at == _grid_after(at - _DAY, _DAY))


def _grid_after(instant: datetime, step: timedelta) -> datetime:
    """Return the first instant of the grid after `instant`: a full hour or a midnight (UTC), depending on `step`."""
    midnight = instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + ((instant - midnight) // step + 1) * step


def add_sums(previous: Iterable[MarkSums], added: Iterable[MarkSums]) -> Sequence[MarkSums]:
    """Returns the rows of a mark: the sums of the previous mark plus those added since. `live` comes from `added`, and
    is 0 for a row that is not in `added`.
    """
    rows = {sums[:3]: sums._replace(live=0) for sums in previous}
    for sums in added:
        before = rows.get(sums[:3])
        rows[sums[:3]] = (
            sums
            if before is None
            else sums._replace(
                usage_millionths=before.usage_millionths + sums.usage_millionths, started=before.started + sums.started
            )
        )
    return list(rows.values())
