"""The lease routes: who leads, and how to have another one do it."""

from collections.abc import Sequence

import msgspec

from tenure.errors import Invalid, NotFound, Unavailable
from tenure.http.cursors import cursor_of_text, text_of
from tenure.http.pages import page
from tenure.http.requests import name_of
from tenure.http.routing import Answer, Call, Route
from tenure.http.shapes import Cursor, LeaseAnswer, LeaseList, PageLimit, lease_answer
from tenure.model.leases import Lease
from tenure.store import Store


class LeaseQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    limit: PageLimit = 100
    cursor: Cursor | None = None


class LeaseRoutes:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._path = f"{prefix}/leases"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/leases",
                handler=self.list,
                tag="leases",
                summary="List the leases that were ever held, by name",
                description="Job locks included. `held` is by the database's clock at this moment.",
                query=LeaseQuery,
                answers={200: LeaseList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="POST",
                path="/leases/{name}/resign",
                handler=self.resign,
                tag="leases",
                summary="End a lease now, whoever holds it",
                description="Its holder stops at once and stands back for a moment, so that another one can lead.",
                answers={200: LeaseAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
        ]

    async def list(self, call: Call) -> Answer:
        query: LeaseQuery = call.query
        after = None if query.cursor is None else text_of(query.cursor)
        found = await self._store.list_leases(after, query.limit + 1)
        return page(found, query, self._path, lambda lease: cursor_of_text(lease.name), _listed)

    async def resign(self, call: Call) -> Answer:
        lease = await self._store.resign_lease(name_of(call.path["name"]))
        if lease is None:
            raise NotFound(f"nobody ever held a lease {call.path['name'][:64]}")
        return Answer(lease_answer(lease))


def _listed(leases: Sequence[Lease], count: int, cursor: str | None) -> LeaseList:
    return LeaseList([lease_answer(lease) for lease in leases], count, cursor)
