"""The payload source of usage. It renders a chunk when it is sent. All renderings, on any instance, are identical.

A rendered chunk is checked twice before it is sent. Its sums, computed here by the meter, must equal those that the
database computed when it divided the window. Its digest must equal the one that was stored before its first
attempt. If either differs, rows have been altered, and the chunk is withheld.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256

from msgspec.structs import replace

from tenure.domain.leases import Fence
from tenure.domain.submissions import Contract, Envelope
from tenure.domain.usage import Chunk, ChunkDigest, Window
from tenure.errors import DatabaseTooSlow, DatabaseUnavailable
from tenure.store.contract import Store
from tenure.submissions.payloads import Withheld
from tenure.telemetry.events import Telemetry, UsageDelivered
from tenure.usage.formats import FORMATS, render

READ_RETRY_SECONDS = 10.0
"""The pause before a chunk that could not be read in time is retried. Other chunks do not wait for it."""


def usage_contract(contract: Contract, usage_format: str) -> Contract:
    """Return the contract of a gateway for usage, without a limit on attempts: usage is sent until delivered."""
    return replace(contract, max_attempts=None, format=usage_format)


class UsagePayloads:
    name = "usage"
    media_types: Mapping[str, str] = {name: usage_format.media_type for name, usage_format in FORMATS.items()}

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        # One chunk is read at a time. While a chunk is rendered, the next one is already being read.
        self._reading = asyncio.Semaphore(1)

    async def render(self, envelopes: Sequence[Envelope]) -> Mapping[str, bytes | Withheld]:
        found = await self._store.find_chunks([envelope.submission_id for envelope in envelopes])
        chunks = {chunk.submission_id: (window, chunk) for window, chunk in found}
        payloads = await asyncio.gather(
            *(self._payload(envelope, chunks.get(envelope.submission_id)) for envelope in envelopes)
        )
        return {envelope.submission_id: payload for envelope, payload in zip(envelopes, payloads, strict=True)}

    async def _payload(self, envelope: Envelope, found: tuple[Window, Chunk] | None) -> bytes | Withheld:
        if found is None:
            return Withheld("there is no chunk for this submission")
        window, chunk = found
        try:
            async with self._reading:
                intervals = await self._store.read_intervals(window, chunk)
        except DatabaseTooSlow as error:
            # A database that is away is raised instead: the executor stops, and the next leader sends the chunk.
            return Withheld(f"the chunk could not be read: {error.detail}", READ_RETRY_SECONDS)
        rendered = render(str(envelope.contract.format), window, intervals)
        if (rendered.sessions, rendered.usage_millionths) != (chunk.sessions, chunk.usage_millionths):
            return Withheld("its sums differ from those stored when its window was divided")
        return rendered.body

    async def store_digests(self, fence: Fence, payloads: Mapping[str, bytes]) -> Mapping[str, Withheld]:
        digests = [ChunkDigest(submission_id, sha256(payload).digest()) for submission_id, payload in payloads.items()]
        same = await self._store.store_digests(fence, digests)
        changed = [submission_id for submission_id in payloads if not same.get(submission_id)]
        return dict.fromkeys(changed, Withheld("its digest differs from the one stored before its first attempt"))

    async def report_delivered(self, submission_ids: Sequence[str]) -> None:
        with suppress(DatabaseUnavailable):  # the only effect is a missing log line
            found = await self._store.find_chunks(submission_ids)
            for window in {window.window_id: window for window, _ in found}.values():
                report_if_delivered(window, self._telemetry)


def report_if_delivered(window: Window, telemetry: Telemetry) -> None:
    if window.delivered_at is not None:
        lag = max(0.0, round((window.delivered_at - window.ended_at).total_seconds(), 3))
        telemetry.report(UsageDelivered(window.window_id, window.ended_at, window.sessions or 0, lag))
