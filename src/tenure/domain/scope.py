"""The part of the data that a caller may see and change."""

import msgspec


class Scope(msgspec.Struct, frozen=True):
    """Store methods narrow their statements to a scope. What is outside it looks as if it did not exist."""

    tenant: str | None = None
    """The only tenant that the caller sees; None for all tenants."""
    user: str | None = None
    """The only user for whom the caller acts; None for all users."""


EVERYTHING = Scope()
