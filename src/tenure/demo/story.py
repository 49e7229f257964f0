"""Collects what happens in the demonstration, from the feed of events, the service and the ledger of the receiver."""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tenure.clock import from_microseconds, wall_microseconds
from tenure.receiver.ledger import Ledger, Totals
from tenure_client import AsyncClient
from tenure_client.errors import TenureError
from tenure_client.models import Event

POLL_SECONDS = 0.5
LINES_KEPT = 200
PAGE = 100
LAPSES = {"EXPIRED": "its term ended", "LEASE_EXPIRED": "no heartbeat", "IDLE_TIMEOUT": "went idle"}
NO_TOTALS = Totals(keys=0, requests=0, duplicates=0, conflicts=0, refused=0, failed=0, bytes=0, usage="0")


class Line(NamedTuple):
    """One thing that happened. `what` is opened, upgraded, ended, lapsed, evicted, refused, billed or failed."""

    at: datetime
    what: str
    text: str


class Seats(NamedTuple):
    max_sessions: int | None
    when_full: str
    live: int


class Story:
    def __init__(self, client: AsyncClient, ledger: Path) -> None:
        self._client = client
        self._ledger = ledger
        self._names: Mapping[str, str] = {}
        self._places: Mapping[str, str] = {}
        self._position = 0
        self.counts: Counter[str] = Counter()
        """The number of lines so far, by `what`."""
        self.seats: dict[str, Seats] = {}
        """The seats of each capacity, by the name of the capacity."""
        self.live_by_kind: dict[str, int] = {}
        self.totals = NO_TOTALS
        """What the receiver has counted so far, as its ledger says."""
        self.lines: deque[Line] = deque(maxlen=LINES_KEPT)
        """The newest last."""
        self.unread: asyncio.Queue[Line] = asyncio.Queue(LINES_KEPT)
        """The lines that are not printed yet. While the queue is full, new lines are not added."""

    def introduce(self, users: Mapping[str, str], places: Mapping[str, str]) -> None:
        """Set the names of users (`users`) and capacities (`places`), by id."""
        self._names = users
        self._places = places

    def refused(self, user: str, place: str) -> None:
        self._add(_now(), "refused", f"{user} on {place}: all seats are taken (429)")

    def failed(self, user: str, error: TenureError) -> None:
        self._add(_now(), "failed", f"{user}: {error}")

    async def follow(self) -> None:
        """Follow the feed of events until cancelled."""
        async for event in self._client.events.follow():
            self._tell(event)

    async def watch(self) -> None:
        """Read the seats and the receiver's ledger repeatedly."""
        while True:
            await self._look()
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self) -> None:
        try:
            metrics = await self._client.sessions.metrics()
            capacities = [each async for each in self._client.capacities.list()]
        except TenureError:
            return  # the next look may succeed
        self.live_by_kind = metrics.active_by_kind
        for each in capacities:
            name = self._places.get(each.capacity_id, each.capacity_id)
            self.seats[name] = Seats(each.max_sessions, each.when_full, each.active_sessions)
        for line in await asyncio.to_thread(self._read_ledger):
            self._add(*line)

    def _read_ledger(self) -> list[Line]:
        """Read the new deliveries and the totals from the file of the ledger. Return a line for each delivery."""
        ledger = Ledger(self._ledger, read_only=True)
        try:
            entries = ledger.page(self._position, PAGE)
            self.totals = ledger.totals()
        finally:
            ledger.close()
        self._position = entries[-1].position if entries else self._position
        return [
            Line(each.received_at, "billed", f"{each.records} sessions, {_decimal(each.usage)} units: delivered")
            for each in entries
        ]

    def _tell(self, event: Event) -> None:
        user = self._names.get(event.user_object_id, event.user_object_id)
        place = self._places.get(event.capacity_id, event.capacity_id)
        kind = f"{user} on {place}, kind {event.session_kind}"
        match event.type, event.close_reason:
            case "session.opened", _:
                self._add(event.at, "opened", kind)
            case "session.upgraded", _:
                self._add(event.at, "upgraded", kind)
            case "session.closed", "EVICTED":
                self._add(event.at, "evicted", f"{user} on {place}: a newer session took the seat")
            case "session.closed", reason if reason in LAPSES:
                self._add(event.at, "lapsed", f"{user} on {place}: {LAPSES[reason]} ({reason})")
            case "session.closed", reason if reason != "UPGRADED":  # an upgrade has its own line
                self._add(event.at, "ended", f"{user} on {place}")

    def _add(self, at: datetime, what: str, text: str) -> None:
        line = Line(at, what, text)
        self.counts[what] += 1
        self.lines.append(line)
        if not self.unread.full():
            self.unread.put_nowait(line)


def _decimal(text: str | None) -> str:
    whole, _, rest = (text or "0").partition(".")
    return f"{whole}.{rest:0<6.6}"


def _now() -> datetime:
    return from_microseconds(wall_microseconds())
