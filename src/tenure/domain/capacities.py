"""Capacities: the number of seats, what happens when all seats are taken, and the owning tenant."""

from datetime import datetime
from enum import StrEnum

import msgspec


class WhenFull(StrEnum):
    REJECT = "reject"
    EVICT_OLDEST = "evictOldest"


SEATS_MAX = 2_147_483_647


class Seats(msgspec.Struct, frozen=True):
    """The settings of a capacity. A capacity without settings has the defaults: no limit and no tenant."""

    max_sessions: int | None = None
    when_full: str = WhenFull.REJECT.value
    tenant_object_id: str | None = None


def rules_text(seats: Seats | None) -> str:
    """The settings of a capacity as text, for the audit log; `none` if it has no settings."""
    if seats is None:
        return "none"
    values = {
        "maxSessions": seats.max_sessions,
        "whenFull": seats.when_full,
        "tenantObjectId": seats.tenant_object_id,
    }
    return ", ".join(f"{name}={'null' if value is None else value}" for name, value in values.items())


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    capacity_id: str
    seats: Seats
    active_sessions: int
    created_at: datetime
    modified_at: datetime
