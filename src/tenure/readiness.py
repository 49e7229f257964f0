"""Whether this instance should get requests: started, not stopping, database within reach, schema new enough."""

from collections.abc import Sequence

from tenure.ensemble import Ensemble
from tenure.errors import Draining, SchemaTooOld, Starting
from tenure.model.leases import Lease
from tenure.store import migrate
from tenure.store.store import Store


class Readiness:
    def __init__(self, store: Store, ensemble: Ensemble) -> None:
        self._store = store
        self._ensemble = ensemble
        self.started = False
        self.draining = False

    async def check(self) -> None:
        """Raises what is in the way, if anything is."""
        if self.draining:
            raise Draining("this instance is stopping")
        if not self.started:
            raise Starting("this instance is starting")
        revision = await self._store.schema_revision()
        if not migrate.is_sufficient(revision):
            raise SchemaTooOld(
                f"the schema is at {revision or 'nothing'}; this version needs {migrate.required_revision()}"
            )

    async def leases(self) -> Sequence[Lease]:
        """Those that this instance has a part in: what it leads or could lead, and the locks of jobs."""
        board = await self._store.read_board(self._ensemble.lease_names)
        return [*board.leases, *(posting.lock for posting in board.postings if posting.lock is not None)]

    def leads(self, lease: Lease) -> bool:
        """Holds it, and may still trust that it does."""
        return lease.held and lease.holder == self._ensemble.holder and self._ensemble.trusts(lease.name)
