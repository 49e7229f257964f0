"""The payload source of usage. All renderings of a chunk, at any time and on any instance, are identical.

If the instance that divides a window also runs the executor and the executor keeps up, a chunk is rendered during the
division (`RenderedAhead`). All other chunks are rendered when they are sent. Each chunk is checked twice before it is
sent. Its sums must equal those that were stored when its window was divided. Its digest must equal the one that was
stored before its first attempt. If the sums or the digest differ, rows have been altered, and the chunk is withheld.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from tenure.clock import monotonic
from tenure.domain.leases import Fence
from tenure.domain.submissions import Contract, Envelope
from tenure.domain.usage import Chunk, ChunkBounds, ChunkDigest, Era, Window
from tenure.domain.usage_records import DividedChunk, Records
from tenure.errors import DatabaseTooSlow, DatabaseUnavailable
from tenure.store.contract import Store
from tenure.submissions.payloads import Withheld
from tenure.telemetry.events import Telemetry, UsageDelivered
from tenure.usage.formats import FORMATS, body_of

READ_RETRY_SECONDS = 10.0
"""The pause before a chunk that could not be read in time is retried. Other chunks do not wait for it."""
RUN_MAX = 12
"""The maximum number of adjacent chunks that one read renders."""

AHEAD_MAX = 3 * RUN_MAX
"""The maximum number of chunks in `RenderedAhead`: about 12 MB, or 22 MB as CloudEvents."""
AHEAD_SECONDS = 30.0
"""Chunks that were rendered longer ago than this are dropped: the executor of another instance may have sent them."""

_Run = list[tuple[Window, Chunk]]


class _Kept(NamedTuple):
    """A chunk that was rendered while its window was divided."""

    window: Window
    name: str
    """The name of the format."""
    divided: DividedChunk
    added: float

    def records_of(self, window: Window, chunk: Chunk, name: str) -> Records | None:
        """Returns the records, or None if the saved chunk has another format, other bounds or another window. Two
        windows can have the same number: a promoted standby that lacked a window cuts another one with the same number.
        """
        saved = ChunkBounds(chunk.first_session_id, chunk.last_session_id, chunk.sessions, chunk.usage_millionths)
        found = (self.name, self.divided.bounds, _span(self.window))
        return self.divided.records if found == (name, saved, _span(window)) else None


def _span(window: Window) -> tuple[str, datetime, datetime, Era]:
    return window.installation_id, window.started_at, window.ended_at, window.era


def usage_contract(contract: Contract, usage_format: str) -> Contract:
    """Return the contract of a gateway for usage, without a limit on attempts: usage is sent until delivered."""
    return replace(contract, max_attempts=None, format=usage_format)


class RenderedAhead:
    """A cache of the chunks that this instance rendered while it divided windows. A chunk stays in the cache until its
    first attempt, or until it is dropped (AHEAD_SECONDS).

    A chunk that is not in the cache is rendered when it is sent.
    """

    def __init__(self) -> None:
        self._chunks: dict[tuple[int, int], _Kept] = {}
        """By the numbers of the window and of the chunk."""
        self._taken = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None

    def add(self, window: Window, first: int, name: str, divided: Sequence[DividedChunk]) -> None:
        now = monotonic()
        for number, each in enumerate(divided, first):
            self._chunks[window.window_id, number] = _Kept(window, name, each, now)
        if self._expiry is None:
            self._drop_old()

    def take(self, window: Window, chunk: Chunk, name: str) -> Records | None:
        """Removes the chunk from the cache, and returns its records. Returns None if the cache does not have the chunk,
        or if the cached chunk has another format, window or bounds than the saved chunk.
        """
        kept = self._chunks.pop((chunk.window_id, chunk.chunk), None)
        self._taken.set()
        return None if kept is None else kept.records_of(window, chunk, name)

    async def wait_for_room(self, seconds: float) -> bool:
        """Waits until there is room for a run of chunks. Returns False if there is none within this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self._chunks) > AHEAD_MAX - RUN_MAX:
                    self._taken.clear()
                    await self._taken.wait()
                return True
        return False

    def _drop_old(self) -> None:
        """Drops the chunks that are AHEAD_SECONDS old, and schedules the next call for when the oldest of the remaining
        chunks reaches this age.
        """
        now = monotonic()
        self._chunks = {key: kept for key, kept in self._chunks.items() if now - kept.added < AHEAD_SECONDS}
        self._taken.set()
        self._expiry = None
        if self._chunks:
            oldest = min(kept.added for kept in self._chunks.values())
            self._expiry = asyncio.get_running_loop().call_later(oldest + AHEAD_SECONDS - now, self._drop_old)


class UsagePayloads:
    name = "usage"
    media_types: Mapping[str, str] = {name: usage_format.media_type for name, usage_format in FORMATS.items()}

    def __init__(self, store: Store, ahead: RenderedAhead, telemetry: Telemetry) -> None:
        self._store = store
        self._ahead = ahead
        self._telemetry = telemetry
        # Reads one run of chunks at a time, because requests need the database, too.
        self._reading = asyncio.Semaphore(1)

    async def render(self, envelopes: Sequence[Envelope]) -> Mapping[str, bytes | Withheld]:
        found = await self._store.find_chunks([envelope.submission_id for envelope in envelopes])
        formats = {envelope.submission_id: str(envelope.contract.format) for envelope in envelopes}
        payloads: dict[str, bytes | Withheld] = dict.fromkeys(
            formats, Withheld("there is no chunk for this submission")
        )
        others = []
        for window, chunk in found:
            submission_id = str(chunk.submission_id)
            records = self._ahead.take(window, chunk, formats[submission_id])
            if records is None:
                others.append((window, chunk))
            else:
                payloads[submission_id] = _checked_body(chunk, records)
        for part in await asyncio.gather(
            *(self._render_run(formats[str(run[0][1].submission_id)], run) for run in _runs(others, formats))
        ):
            payloads |= part
        return payloads

    async def _render_run(self, name: str, run: _Run) -> Mapping[str, bytes | Withheld]:
        """Renders a run of chunks. If the chunks cannot be read together in time, reads them one by one."""
        window, chunks = run[0][0], [chunk for _, chunk in run]
        try:
            async with self._reading:
                rendered = await self._store.render_chunks(window, chunks, FORMATS[name].template(window))
            payloads = [_checked_body(chunk, records) for chunk, records in zip(chunks, rendered, strict=True)]
        except DatabaseTooSlow as error:
            # Any other `DatabaseUnavailable` is raised: then the executor stops, and the next leader sends the chunk.
            if len(run) > 1:
                return {key: value for each in run for key, value in (await self._render_run(name, [each])).items()}
            payloads = [Withheld(f"the chunk could not be read: {error.detail}", READ_RETRY_SECONDS)]
        return {str(chunk.submission_id): payload for chunk, payload in zip(chunks, payloads, strict=True)}

    async def store_digests(self, fence: Fence, envelopes: Sequence[Envelope]) -> Mapping[str, Withheld]:
        digests = [ChunkDigest(envelope.submission_id, envelope.digest) for envelope in envelopes]
        same = await self._store.store_digests(fence, digests)
        changed = [digest.submission_id for digest in digests if not same.get(digest.submission_id)]
        return dict.fromkeys(changed, Withheld("its digest differs from the one stored before its first attempt"))

    async def report_delivered(self, submission_ids: Sequence[str]) -> None:
        with suppress(DatabaseUnavailable):  # after this error, only a log line is missing
            for window in await self._store.find_delivered_windows(submission_ids):
                report_if_delivered(window, self._telemetry)


def _runs(found: Sequence[tuple[Window, Chunk]], formats: Mapping[str, str]) -> Sequence[_Run]:
    """Groups the chunks into runs of adjacent chunks of one window and format, each short enough to be read at once."""
    runs: list[_Run] = []
    for window, chunk in sorted(found, key=lambda each: (each[1].window_id, each[1].chunk)):
        if runs and len(runs[-1]) < RUN_MAX and _is_adjacent(runs[-1][-1][1], chunk, formats):
            runs[-1].append((window, chunk))
        else:
            runs.append([(window, chunk)])
    return runs


def _is_adjacent(one: Chunk, other: Chunk, formats: Mapping[str, str]) -> bool:
    is_next = (one.window_id, one.chunk + 1) == (other.window_id, other.chunk)
    return is_next and formats[str(one.submission_id)] == formats[str(other.submission_id)]


def _checked_body(chunk: Chunk, records: Records) -> bytes | Withheld:
    if (records.sessions, records.usage_millionths) != (chunk.sessions, chunk.usage_millionths):
        return Withheld("its sums differ from those stored when its window was divided")
    return body_of(records)


def report_if_delivered(window: Window, telemetry: Telemetry) -> None:
    if window.delivered_at is not None:
        lag = max(0.0, round((window.delivered_at - window.ended_at).total_seconds(), 3))
        telemetry.report(UsageDelivered(window.window_id, window.ended_at, window.sessions or 0, lag))
