"""What a route requires of its caller, and the one place where a request is refused for lack of it.

Every route declares its grants. The declaration has no default, so a new route cannot forget it. The pipeline calls
`authorise` on all transports right after it has identified the caller; the OpenAPI and AsyncAPI documents and the test
of all routes with all kinds of credentials read the same declarations.
"""

import msgspec

from tenure.access.caller import Caller
from tenure.domain.keys import Role
from tenure.errors import Forbidden


class Grants(msgspec.Struct, frozen=True):
    roles: tuple[Role, ...] = ()
    """The roles that may call the route. A tuple: membership is one comparison of identities for the first entry."""
    public: bool = False
    """Whether the route needs no credential. Its caller is identified only if `names_caller` is set."""
    names_caller: bool = False
    """Whether a public route shows more to a caller with a valid credential."""


ANY_ROLE = Grants((Role.CLIENT, Role.OPERATOR, Role.READER))
CLIENTS = Grants((Role.CLIENT, Role.OPERATOR))
READERS = Grants((Role.READER, Role.OPERATOR))
OPERATORS = Grants((Role.OPERATOR,))
PUBLIC = Grants(public=True)
PUBLIC_WITH_MORE_FOR_CALLERS = Grants(public=True, names_caller=True)


def authorise(caller: Caller, grants: Grants) -> None:
    """Raises `Forbidden` if the caller may not call a route with these grants, which is not public."""
    if caller.role not in grants.roles:
        raise Forbidden(f"the role {caller.role} does not allow this request")
    if caller.scope.tenant is not None:
        # Requests are not narrowed to a tenant yet, so such a caller would see and change other tenants.
        raise Forbidden("credentials of one tenant are not supported yet")
