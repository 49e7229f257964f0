"""Chunks become bodies when they are sent: on any instance, at any time, byte for byte the same.

What is rendered is checked twice before anybody gets to see it. Its sums are added up here, by the meter, and must be
those that the database found when it divided the window. And its digest must be the one that was stored before the
first attempt. If either is not so, somebody has changed what never changes: it is not sent.
"""

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256

from tenure.errors import DatabaseUnavailable
from tenure.model.leases import Fence
from tenure.model.submissions import Parcel
from tenure.model.usage import Chunk, Seal, Window
from tenure.store.store import Store
from tenure.usage.formats import FORMATS, render


class Withheld(str):
    """Why something is not sent."""

    __slots__ = ()
    pause_seconds = 600.0
    """Nothing that time would mend; but whoever mends it need not tell us."""


class Unread(Withheld):
    """It took the database too long: others must not wait for it, and it may go better later."""

    __slots__ = ()
    pause_seconds = 10.0


class Renderer:
    def __init__(self, store: Store) -> None:
        self._store = store
        # While one is put into words here, the next one is read.
        self._reading = asyncio.Semaphore(1)

    async def render(self, parcels: Sequence[Parcel]) -> Mapping[str, bytes | Withheld]:
        found = await self._store.find_chunks([parcel.submission_id for parcel in parcels])
        chunks = {chunk.submission_id: (window, chunk) for window, chunk in found}
        bodies = await asyncio.gather(*(self._body(parcel, chunks.get(parcel.submission_id)) for parcel in parcels))
        return {parcel.submission_id: body for parcel, body in zip(parcels, bodies, strict=True)}

    async def _body(self, parcel: Parcel, found: tuple[Window, Chunk] | None) -> bytes | Withheld:
        if found is None:
            return Withheld("there is no chunk for it")
        if parcel.contract.format not in FORMATS:
            return Withheld(f"this version does not know the format {parcel.contract.format}")
        window, chunk = found
        try:
            async with self._reading:
                lives = await self._store.read_lives(window, chunk)
        except DatabaseUnavailable as error:
            return Unread(f"it could not be read: {error.detail}")
        rendered = render(parcel.contract.format, window, lives)
        if (rendered.sessions, rendered.usage_millionths) != (chunk.sessions, chunk.usage_millionths):
            return Withheld("it does not add up to what its window was divided into")
        return rendered.body

    async def seal(self, fence: Fence, bodies: Mapping[str, bytes]) -> Mapping[str, Withheld]:
        """Stores the digest of each that is sent for the first time; tells of those that have changed since theirs."""
        seals = [Seal(submission_id, sha256(body).digest()) for submission_id, body in bodies.items()]
        same = await self._store.seal_chunks(fence, seals)
        changed = [submission_id for submission_id in bodies if not same.get(submission_id)]
        return dict.fromkeys(changed, Withheld("it is not what was rendered before its first attempt"))
