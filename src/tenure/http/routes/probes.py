"""Probes for load balancers and orchestrators, and the readiness of this instance."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec
from msgspec.structs import replace

from tenure import __version__
from tenure.access.grants import ANY_ROLE, PUBLIC, PUBLIC_WITH_MORE_FOR_CALLERS, narrowed
from tenure.clock import instant_text
from tenure.domain.leases import Lease
from tenure.ensemble import Ensemble
from tenure.errors import DatabaseUnavailable, Draining, Invalid, SchemaTooOld, Starting, Unavailable
from tenure.http.answers import Answer, Headers
from tenure.http.pipeline import Call, Route
from tenure.http.routes.leases import LeaseWithRole, lease_with_role
from tenure.sessions.counts import SessionCounter
from tenure.store import migrate
from tenure.store.contract import Store

TEXT: Headers = ((b"content-type", b"text/plain; charset=utf-8"),)


class HealthAnswer(msgspec.Struct, frozen=True, rename="camel"):
    status: Literal["ok"]
    version: str
    active_sessions: int


class LivenessAnswer(msgspec.Struct, frozen=True):
    status: Literal["ok"]


class ReadinessAnswer(msgspec.Struct, frozen=True):
    status: Literal["ready"]
    instance: str
    """The name of this instance as a holder of leases; empty for callers who may not know it."""
    mode: Literal["leader", "follower"]
    """Whether this instance holds the lease of the executor."""
    leases: list[LeaseWithRole]


class ReadinessHeaders(msgspec.Struct, frozen=True):
    accept: str = ""


class Readiness:
    def __init__(self, store: Store, ensemble: Ensemble, executor_lease: str) -> None:
        self._store = store
        self._ensemble = ensemble
        self.executor_lease = executor_lease
        self.instance = ensemble.holder
        self.started = False
        self.waiting_for = ""
        """The reason why the database stopped the last try to start; empty if there was no such try."""
        self.draining = False

    async def check(self) -> None:
        """Raises an error with the reason if this instance is not ready."""
        if self.draining:
            raise Draining("this instance is stopping")
        if not self.started:
            raise Starting(f"this instance is starting{self.waiting_for and ': '}{self.waiting_for}")
        refusal = self._store.refusing_writes
        if refusal is not None:
            raise DatabaseUnavailable(refusal)
        revision = await self._store.schema_revision()
        if not migrate.is_sufficient(revision):
            raise SchemaTooOld(
                f"the schema revision is {revision or 'none'}; this version needs {migrate.required_revision()}"
            )

    async def leases(self) -> Sequence[Lease]:
        """Returns the leases that this instance holds or may acquire, and the locks of jobs."""
        board = await self._store.read_board(self._ensemble.lease_names)
        return [*board.leases, *(board_job.lock for board_job in board.board_jobs if board_job.lock is not None)]

    def leads(self, lease: Lease) -> bool:
        """Whether this instance holds the lease according to the database, and still trusts it (`Ensemble.trusts`)."""
        return lease.held and lease.holder == self._ensemble.holder and self._ensemble.trusts(lease.name)


class ProbeRoutes:
    def __init__(self, counts: SessionCounter, readiness: Readiness) -> None:
        self._counts = counts
        self._readiness = readiness

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/healthz",
                handler=self.liveness,
                grants=PUBLIC,
                tag="operations",
                summary="Liveness",
                description="Does not query the database: restarting this process would not repair the database.",
                answers={200: LivenessAnswer},
                refusals=(Invalid,),
                unprefixed=True,
            ),
            Route(
                method="GET",
                path="/readyz",
                handler=self.readiness,
                grants=PUBLIC_WITH_MORE_FOR_CALLERS,
                tag="operations",
                summary="Readiness",
                description=(
                    "503 while the instance starts or drains, while the database cannot be reached or refuses writes, "
                    "and if the schema is too old. "
                    "Shows which instance answers, the leases, and whether it holds them; followers are ready too. "
                    "With `Accept: text/plain`, one line about the lease of the executor. "
                    "Needs no credential. "
                    "Names the holders only to callers with a valid credential that is not bound to a tenant."
                ),
                headers=ReadinessHeaders,
                answers={200: ReadinessAnswer},
                refusals=(Invalid, Unavailable),
                unprefixed=True,
            ),
            Route(
                method="GET",
                path="/health",
                handler=self.health,
                grants=narrowed(ANY_ROLE),
                tag="operations",
                summary="Version and load",
                description="`activeSessions` is the number of live sessions. The count is at most a second old.",
                answers={200: HealthAnswer},
                refusals=(Invalid, Unavailable),
            ),
        ]

    async def liveness(self, _call: Call) -> Answer:
        return Answer(LivenessAnswer("ok"))

    async def readiness(self, call: Call) -> Answer:
        await self._readiness.check()
        leases = [lease_with_role(lease, self._readiness.leads(lease)) for lease in await self._readiness.leases()]
        instance = self._readiness.instance
        if call.caller.role is None or call.caller.scope.is_bound:
            # The names of holders contain the host names of instances.
            leases = [replace(lease, holder="") for lease in leases]
            instance = ""
        executor = next((each for each in leases if each.name == self._readiness.executor_lease and each.held), None)
        mode: Literal["leader", "follower"] = "follower" if executor is None else executor.role
        if _wants_text(call.headers.accept):
            return Answer(_as_text(mode, instance, executor), headers=TEXT)
        return Answer(ReadinessAnswer("ready", instance, mode, leases))

    async def health(self, call: Call) -> Answer:
        return Answer(HealthAnswer("ok", __version__, await self._counts.active(call.caller.scope)))


def _instant_text(value: datetime | str) -> str:
    """Formats a value that `fields.instant` returned: already a text if the instant has no fraction of a second."""
    return value if isinstance(value, str) else instant_text(value)


def _wants_text(accept: str) -> bool:
    return "text/plain" in accept and "json" not in accept


def _as_text(mode: str, instance: str, executor: LeaseWithRole | None) -> bytes:
    """Returns one line of `name=value` pairs, for scripts. The line of a follower also names the leader."""
    expires_at = "" if executor is None else _instant_text(executor.expires_at)
    line = f"mode={mode} holder_id={instance} lease_expires_at={expires_at}"
    if mode == "follower":
        line += f" leader_id={'' if executor is None else executor.holder}"
    return f"{line}\n".encode()
