"""What is sent: as it was accepted or, if it is usage, rendered when its time has come."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tenure.model.leases import Fence
from tenure.model.submissions import Parcel
from tenure.store.store import Store
from tenure.usage.rendering import Renderer, Withheld


class Contents:
    """Of one batch: read beside the beginning of its attempts, sealed after it."""

    def __init__(self, store: Store, renderer: Renderer) -> None:
        self._store = store
        self._renderer = renderer
        self._withheld: dict[str, Withheld] = {}
        self._rendered: dict[str, bytes] = {}
        self._parcels: dict[str, Parcel] = {}

    async def read(self, submission_ids: Sequence[str]) -> None:
        parcels = await self._store.read_parcels(submission_ids)
        self._parcels = {parcel.submission_id: parcel for parcel in parcels}
        usage = [parcel for parcel in parcels if parcel.contract.format is not None]
        if usage:
            self._take(await self._renderer.render(usage))

    def _take(self, bodies: Mapping[str, bytes | Withheld]) -> None:
        for submission_id, body in bodies.items():
            if isinstance(body, Withheld):
                self._withheld[submission_id] = body
            else:
                self._rendered[submission_id] = body
                self._parcels[submission_id] = replace(self._parcels[submission_id], payload=body)

    async def seal(self, fence: Fence, begun: Sequence[str]) -> None:
        """Before any of these is sent, and after its attempt was recorded."""
        bodies = {each: self._rendered[each] for each in begun if each in self._rendered}
        if bodies:
            self._withheld |= await self._renderer.seal(fence, bodies)

    def parcel(self, submission_id: str) -> Parcel:
        return self._parcels[submission_id]

    def withheld(self, submission_id: str) -> Withheld | None:
        return self._withheld.get(submission_id)
