"""Probes for load balancers and orchestrators, and the readiness of this instance."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from tenure import __version__
from tenure.domain.leases import Lease
from tenure.ensemble import Ensemble
from tenure.errors import Draining, Invalid, SchemaTooOld, Starting, Unavailable
from tenure.http.answers import Answer
from tenure.http.pipeline import Call, Route
from tenure.http.routes.leases import LeaseWithRole, lease_with_role
from tenure.sessions.counts import CachedCounts
from tenure.store import migrate
from tenure.store.contract import Store


class HealthAnswer(msgspec.Struct, frozen=True, rename="camel"):
    status: Literal["ok"]
    version: str
    active_sessions: int


class LivenessAnswer(msgspec.Struct, frozen=True):
    status: Literal["ok"]


class ReadinessAnswer(msgspec.Struct, frozen=True):
    status: Literal["ready"]
    leases: list[LeaseWithRole]


class Readiness:
    def __init__(self, store: Store, ensemble: Ensemble) -> None:
        self._store = store
        self._ensemble = ensemble
        self.started = False
        self.draining = False

    async def check(self) -> None:
        """Raises an error that contains the reason if this instance is not ready."""
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
        """The leases that this instance holds or could hold, and the locks of jobs."""
        board = await self._store.read_board(self._ensemble.lease_names)
        return [*board.leases, *(board_job.lock for board_job in board.board_jobs if board_job.lock is not None)]

    def leads(self, lease: Lease) -> bool:
        """Whether this instance holds the lease and still trusts it."""
        return lease.held and lease.holder == self._ensemble.holder and self._ensemble.trusts(lease.name)


class ProbeRoutes:
    def __init__(self, counts: CachedCounts, readiness: Readiness) -> None:
        self._counts = counts
        self._readiness = readiness

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/healthz",
                handler=self.liveness,
                tag="operations",
                summary="Liveness",
                description="Does not query the database: restarting a process does not bring a database back.",
                answers={200: LivenessAnswer},
                refusals=(Invalid,),
                stays=True,
            ),
            Route(
                method="GET",
                path="/readyz",
                handler=self.readiness,
                tag="operations",
                summary="Readiness",
                description=(
                    "503 while the instance starts or drains, cannot reach the database, or if the schema is too old. "
                    "Shows the leases and whether this instance holds them; followers are ready too."
                ),
                answers={200: ReadinessAnswer},
                refusals=(Invalid, Unavailable),
                stays=True,
            ),
            Route(
                method="GET",
                path="/health",
                handler=self.health,
                tag="operations",
                summary="Version and load",
                description="`activeSessions` may be up to ten seconds old.",
                answers={200: HealthAnswer},
                refusals=(Invalid, Unavailable),
            ),
        ]

    async def liveness(self, _call: Call) -> Answer:
        return Answer(LivenessAnswer("ok"))

    async def readiness(self, _call: Call) -> Answer:
        await self._readiness.check()
        leases = await self._readiness.leases()
        return Answer(
            ReadinessAnswer("ready", [lease_with_role(lease, self._readiness.leads(lease)) for lease in leases])
        )

    async def health(self, _call: Call) -> Answer:
        return Answer(HealthAnswer("ok", __version__, (await self._counts.last()).active))
