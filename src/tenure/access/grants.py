"""Grants: what a route requires of its caller. `authorise` is the only function that checks them.

Every route declares its grants. The declaration has no default, so a new route cannot omit it. For each request to a
route that is not public, over HTTP or as a WebSocket, the pipeline calls `authorise` as soon as it has identified the
caller and counted the request. The OpenAPI and AsyncAPI documents and the test of all routes with all kinds of
credentials read the same declarations.
"""

from collections.abc import Mapping

import msgspec

from tenure.access.caller import Caller
from tenure.domain.keys import Role
from tenure.errors import Forbidden
from tenure.ids import canonical_id

SESSION_ID = "sessionId"
"""The name of the path parameter that contains a session id."""
_NO_PARAMETERS: Mapping[str, str] = {}


class Grants(msgspec.Struct, frozen=True):
    roles: tuple[Role, ...] = ()
    """The roles that may call the route. In a tuple, a look-up finds the first role with a single comparison."""
    session_token: bool = False
    """Whether a session token may call the route for its own session, whose id is the parameter SESSION_ID."""
    public: bool = False
    """Whether the route needs no credential. Its caller is identified only if `names_caller` is set."""
    names_caller: bool = False
    """Whether a public route shows more to a caller with a valid credential."""
    all_tenants: bool = True
    """Whether the route refuses callers who are bound to a tenant. False for a route that reads and changes only data
    within the scope of its caller."""


def narrowed(grants: Grants) -> Grants:
    """Returns the grants with `all_tenants` False, for a route that passes its caller's scope to every store method."""
    return msgspec.structs.replace(grants, all_tenants=False)


ANY_ROLE = Grants((Role.CLIENT, Role.OPERATOR, Role.READER))
CLIENTS = Grants((Role.CLIENT, Role.OPERATOR))
READERS = Grants((Role.READER, Role.OPERATOR))
ANY_ROLE_OR_SESSION_TOKEN = Grants((Role.CLIENT, Role.OPERATOR, Role.READER), session_token=True)
CLIENTS_OR_SESSION_TOKEN = Grants((Role.CLIENT, Role.OPERATOR), session_token=True)
OPERATORS = Grants((Role.OPERATOR,))
PUBLIC = Grants(public=True)
PUBLIC_WITH_MORE_FOR_CALLERS = Grants(public=True, names_caller=True)


def authorise(caller: Caller, grants: Grants, parameters: Mapping[str, str] = _NO_PARAMETERS) -> None:
    """Raises `Forbidden` if the caller may not call a route with these grants. Not called for public routes.

    `parameters` are those of the path.
    """
    if caller.role not in grants.roles:
        if caller.session_id is None:
            raise Forbidden(f"the role {caller.role} does not allow this request")
        # An id of no session is refused in the same way: a token must not reveal which other sessions exist.
        if not grants.session_token or canonical_id(parameters.get(SESSION_ID, "")) != caller.session_id:
            raise Forbidden("a session token is valid for requests about its own session only")
    if grants.all_tenants and caller.scope.is_bound:
        raise Forbidden("this credential is bound to a tenant, and this request concerns all tenants")
