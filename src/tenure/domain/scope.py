"""The part of the data that a caller may see and change."""

import msgspec


class Scope(msgspec.Struct, frozen=True):
    """Store methods narrow their statements to a scope. Data outside the scope looks as if it did not exist."""

    tenant: str | None = None
    """The only tenant that the caller sees; None for all tenants."""
    user: str | None = None
    """The only user for whom the caller acts; None for all users of the tenant. A scope with a user has a tenant."""

    @property
    def is_bound(self) -> bool:
        return self.tenant is not None

    def admits(self, tenant: str, user: str) -> bool:
        """Whether a session of this tenant and user is in the scope."""
        return (self.tenant is None or self.tenant == tenant) and (self.user is None or self.user == user)

    def admits_tenant(self, tenant: str | None) -> bool:
        return self.tenant is None or self.tenant == tenant


EVERYTHING = Scope()
