"""The lease routes: list leases and their terms, and make a holder resign."""

from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from tenure.access.grants import OPERATORS, READERS
from tenure.domain.leases import Lease, LeaseTerm, TermFilter
from tenure.errors import Invalid, NotFound, Unavailable
from tenure.http.answers import Answer
from tenure.http.decoding import name_of
from tenure.http.fields import Cursor, GivenInstant, Instant, PageLimit, in_utc, instant
from tenure.http.pages import cursor_of_term, cursor_of_text, number_of, page, term_position_of, text_of
from tenure.http.pipeline import Call, Route
from tenure.store.contract import Store


class LeaseQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    limit: PageLimit = 100
    cursor: Cursor | None = None


class LeaseAnswer(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    holder: str
    epoch: int
    held: bool
    acquired_at: Instant
    renewed_at: Instant
    expires_at: Instant


class LeaseWithRole(LeaseAnswer, frozen=True, rename="camel", kw_only=True):
    role: Literal["leader", "follower"]


class LeaseList(msgspec.Struct, frozen=True, rename="camel"):
    leases: list[LeaseAnswer]
    count: int
    next_cursor: str | None


class TermQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    from_at: GivenInstant | None = msgspec.field(name="from", default=None)
    to_at: GivenInstant | None = msgspec.field(name="to", default=None)
    limit: PageLimit = 100
    cursor: Cursor | None = None


class TermAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: str
    epoch: int
    holder: str
    acquired_at: Instant
    ended_at: Instant | None
    how: Literal["released", "resigned", "expired"] | None


class TermList(msgspec.Struct, frozen=True, rename="camel"):
    terms: list[TermAnswer]
    count: int
    next_cursor: str | None


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
                grants=READERS,
                tag="leases",
                summary="List leases, by name",
                description="All leases that were ever held, including job locks. The database's clock decides `held`.",
                query=LeaseQuery,
                answers={200: LeaseList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/leases/history",
                handler=self.timeline,
                grants=READERS,
                tag="leases",
                summary="List the terms of all leases, newest first",
                description=(
                    "The terms, of all leases except job locks, that overlap the span from `from` to `to`. "
                    "Terms are kept for 30 days."
                ),
                query=TermQuery,
                answers={200: TermList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/leases/{name}/history",
                handler=self.history,
                grants=READERS,
                tag="leases",
                summary="List the terms of a lease, newest first",
                description="A job lock has no history: list the runs of its job instead. Terms are kept for 30 days.",
                query=LeaseQuery,
                answers={200: TermList},
                refusals=(Invalid, NotFound, Unavailable),
            ),
            Route(
                method="POST",
                path="/leases/{name}/resign",
                handler=self.resign,
                grants=OPERATORS,
                tag="leases",
                summary="End a lease now",
                description="The holder stops, and gives other instances time to acquire the lease first.",
                answers={200: LeaseAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
        ]

    async def list(self, call: Call) -> Answer:
        query: LeaseQuery = call.query
        after = None if query.cursor is None else text_of(query.cursor)
        found = await self._store.list_leases(after, query.limit + 1)
        return page(found, query, self._path, lambda lease: cursor_of_text(lease.name), _listed)

    async def timeline(self, call: Call) -> Answer:
        query: TermQuery = call.query
        criteria = TermFilter(in_utc("from", query.from_at), in_utc("to", query.to_at))
        after = None if query.cursor is None else term_position_of(query.cursor)
        found = await self._store.list_all_terms(criteria, after, query.limit + 1)
        return page(found, query, f"{self._path}/history", cursor_of_term, _terms)

    async def history(self, call: Call) -> Answer:
        query: LeaseQuery = call.query
        name = name_of(call.path["name"])
        before = None if query.cursor is None else number_of(query.cursor)
        found = await self._store.list_terms(name, before, query.limit + 1)
        if found is None:
            raise NotFound(f"lease {name[:64]} does not exist, or is the lock of a job")
        path = f"{self._path}/{quote(name, safe='')}/history"
        return page(found, query, path, lambda term: cursor_of_text(str(term.epoch)), _terms)

    async def resign(self, call: Call) -> Answer:
        lease = await self._store.resign_lease(name_of(call.path["name"]), call.actor)
        if lease is None:
            raise NotFound(f"lease {call.path['name'][:64]} does not exist")
        return Answer(lease_answer(lease))


def _listed(leases: Sequence[Lease], count: int, cursor: str | None) -> LeaseList:
    return LeaseList([lease_answer(lease) for lease in leases], count, cursor)


def _terms(terms: Sequence[LeaseTerm], count: int, cursor: str | None) -> TermList:
    return TermList([_term(term) for term in terms], count, cursor)


def _term(term: LeaseTerm) -> TermAnswer:
    how: Any = term.how
    return TermAnswer(
        name=term.name,
        epoch=term.epoch,
        holder=term.holder,
        acquired_at=instant(term.acquired_at),
        ended_at=term.ended_at and instant(term.ended_at),
        how=how,
    )


def _lease_values(lease: Lease) -> tuple[Any, ...]:
    instants = (instant(lease.acquired_at), instant(lease.renewed_at), instant(lease.expires_at))
    return (lease.name, lease.holder, lease.epoch, lease.held, *instants)


def lease_answer(lease: Lease) -> LeaseAnswer:
    return LeaseAnswer(*_lease_values(lease))


def lease_with_role(lease: Lease, leads: bool) -> LeaseWithRole:
    return LeaseWithRole(*_lease_values(lease), role="leader" if leads else "follower")
