"""Probes and health: what a load balancer, an orchestrator and a person look at."""

from collections.abc import Sequence

from tenure import __version__
from tenure.errors import Invalid, Unavailable
from tenure.http.routing import Answer, Call, Route
from tenure.http.shapes import HealthAnswer, LivenessAnswer, ReadinessAnswer, lease_with_role
from tenure.readiness import Readiness
from tenure.sessions.sessions import Sessions


class OperationRoutes:
    def __init__(self, sessions: Sessions, readiness: Readiness) -> None:
        self._sessions = sessions
        self._readiness = readiness

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/healthz",
                handler=self.liveness,
                tag="operations",
                summary="Does the process answer?",
                description="Asks nothing of the database: restarting a process does not bring a database back.",
                answers={200: LivenessAnswer},
                refusals=(Invalid,),
                stays=True,
            ),
            Route(
                method="GET",
                path="/readyz",
                handler=self.readiness,
                tag="operations",
                summary="Should this instance get requests?",
                description=(
                    "503 while starting, draining, cut off from the database, or if the schema is too old. "
                    "Says who leads, and whether this instance does: leaders and followers are ready alike."
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
                description="`activeSessions` may be some seconds old.",
                answers={200: HealthAnswer},
                refusals=(Invalid, Unavailable),
            ),
        ]

    async def liveness(self, _call: Call) -> Answer:
        return Answer(LivenessAnswer("ok"))

    async def readiness(self, _call: Call) -> Answer:
        await self._readiness.check()
        leases = await self._readiness.leases()
        return Answer(ReadinessAnswer("ready", [lease_with_role(each, self._readiness.leads(each)) for each in leases]))

    async def health(self, _call: Call) -> Answer:
        return Answer(HealthAnswer("ok", __version__, (await self._sessions.counts.last()).active))
