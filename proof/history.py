"""The records of clients during a run. The checks use only these records and the final tables.

Instants are microseconds since 1970 of this host's clock. PostgreSQL and SQLite run on the same host and read the same
clock, so an instant in an answer can be compared with the time at which a request was sent, except while a fault has
stepped the clock of the database (`History.is_disturbed`).
"""

import time
from typing import Any

import msgspec

from proof.plan import HOLD_LEASE_SECONDS

Key = tuple[str, str]
"""Capacity and user: at most one session of a key is live."""

STEP_MARGIN = int((HOLD_LEASE_SECONDS + 1) * 1e6)
"""The longest lease, plus one second for a transaction that read the clock before a step; in microseconds."""
CROWDED = 3.0
"""Up to this many runnable tasks per core, the checks do not extend their limits on time."""
SAMPLE = 500_000
"""The microseconds between two samples of the crowding."""
TIMEOUT, REFUSED, LOST = "timeout", "refused", "lost"
"""Why a request has no answer: no answer came in time, the connection was refused, or the connection broke."""


def now() -> int:
    return time.time_ns() // 1000


class Operation(msgspec.Struct, kw_only=True):
    """One request and its answer. Without an answer, `status` is 0, and the server may have executed the request."""

    client: str
    """The kind of the client, such as `user` or `seats`."""
    action: str
    """`open`, `heartbeat`, `end`, `list`, `submit`, …"""
    via: str = ""
    """Where the request was sent: `instance 0`, or `proxy`."""
    credential: str = ""
    key: Key = ("", "")
    session_id: str = ""
    kind: int = 0
    called_at: int = 0
    returned_at: int = 0
    status: int = 0
    failure: str = ""
    answer: Any = None

    @property
    def seconds(self) -> float:
        return (self.returned_at - self.called_at) / 1e6


class Belief(msgspec.Struct, kw_only=True):
    """A session that the Python client held, and the last instant at which the client considered it live."""

    session_id: str
    lease_seconds: float
    opened_at: int
    believed_at: int
    """The instant just before the last check that found the session not lost; 0 if there was no such check."""
    looks: int
    """How many checks found the session not lost."""
    lost_reason: str = ""


class Stream(msgspec.Struct, kw_only=True):
    """A stream: how many messages were sent and echoed, and the reason that the server gave for its end."""

    session_id: str
    sent: int
    echoed: int
    stopped: bool
    """Whether the client requested the end and got the answer."""
    reason: str = ""
    counted: int | None = None
    """The number of messages (`chunks`) in the server's last message."""


class Sighting(msgspec.Struct, kw_only=True):
    """A lease as a reader saw it in `GET /leases`."""

    name: str
    epoch: int
    holder: str
    held: bool
    asked_at: int
    seen_at: int


class Feed(msgspec.Struct, kw_only=True):
    """All events that one follower read, in the order in which it read them."""

    name: str
    events: list[dict[str, Any]]
    connections: int = 0


class KeyLife(msgspec.Struct, kw_only=True):
    """An API key that a client created, used, revoked, and went on using."""

    label: str
    public_id: str
    revoked_at: int = 0
    """When the answer to the revocation arrived; 0: it was not revoked."""


class Fault(msgspec.Struct, kw_only=True):
    kind: str
    target: str
    began_at: int
    healed_at: int = 0
    recovered_at: int = 0
    """When all affected instances had opened a session again; 0: not measured."""

    def overlaps(self, start: int, end: int, margin: int) -> bool:
        return self.began_at <= end and start <= max(self.healed_at, self.recovered_at) + margin


class ClockStep(msgspec.Struct, kw_only=True):
    """A time in which the clock of the database was wrong by `offset` microseconds."""

    offset: int
    """Positive if the clock was ahead of the real time."""
    began_at: int
    """Just before the clock was set wrong."""
    ended_at: int = 0
    """Just after the clock was set right; 0: it was not set right."""

    @property
    def forward_at(self) -> int:
        """When the clock was stepped forward: at the beginning, or at the end if the clock was behind."""
        return self.began_at if self.offset > 0 else self.ended_at


class Crowding(msgspec.Struct, kw_only=True):
    """The number of runnable tasks per core of the machine at an instant."""

    at: int
    tasks_per_core: float


class History(msgspec.Struct, kw_only=True):
    """Everything that a run has recorded."""

    began_at: int = 0
    ended_at: int = 0
    operations: list[Operation] = []
    beliefs: list[Belief] = []
    streams: list[Stream] = []
    sightings: list[Sighting] = []
    feeds: list[Feed] = []
    key_lives: list[KeyLife] = []
    faults: list[Fault] = []
    skipped: dict[str, str] = {}
    """The kinds of faults that the plan asks for but that could not be injected, and why."""
    steps: list[ClockStep] = []
    crowding: list[Crowding] = []
    """Samples in the order of time. Empty if the operating system has no `/proc/stat`."""
    accepted: dict[str, int] = {}
    """The ids of the submissions whose acceptance a client has seen, and how often each must be delivered."""
    deadlocks: int = 0
    """How many deadlocks PostgreSQL has resolved."""
    unsettled: list[str] = []
    """What did not settle in time after the last fault, and which faults had no recovery in time."""

    def slowdown(self, start: int, end: int) -> float:
        """The factor by which the checks extend a limit on time that runs between two instants.

        A factor above 1 usually means that other work crowds the machine: the ensemble itself seldom has more than
        CROWDED runnable tasks per core.
        """
        near = [each.tasks_per_core for each in self.crowding if start - SAMPLE <= each.at <= end + SAMPLE]
        return max(1.0, sum(near) / len(near) / CROWDED) if near else 1.0

    def is_disturbed(self, *instants: int | None) -> bool:
        """Whether any of these instants may come from a period in which the clock of the database was wrong.

        The instants may have been read from the host clock or from the clock of the database. The period also includes
        the time until all leases that were written with the wrong clock have expired, and the time until the clock,
        after a step back, has reached the instants that were written before that step.
        """
        return any(
            step.began_at - abs(step.offset) - STEP_MARGIN <= instant
            and (not step.ended_at or instant <= step.ended_at + 2 * abs(step.offset) + STEP_MARGIN)
            for step in self.steps
            for instant in instants
            if instant is not None
        )
