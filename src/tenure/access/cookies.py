"""The sign-in cookie: it carries the credential of a person who uses Tenure from a browser page of this instance.

A page cannot keep an API key safe: any script on the page could read it. So the page sends the credential once
(`POST /sign-in`), and the browser keeps it in a cookie that scripts cannot read (`HttpOnly`). The cookie contains the
credential itself, so it is checked like a header `Authorization` in every request: a revoked key stops working, and
nothing is stored on the server.

A browser adds cookies to requests by itself, even to requests that a page of another origin causes. Three rules keep
such pages from using the cookie:

- `SameSite=Strict`: the browser omits the cookie in requests of pages of other sites.
- A cookie counts only if the page belongs to the origin that the page calls. `SameSite` does not stop a page of another
  origin of the same site, such as another port of the same host, and the next rule does not stop a page whose origin is
  in `allowed_origins`. If the page belongs to another origin, the request counts as one without a credential.
- The check of `Origin` (`http/edge.py`) comes before the cookie is read. It refuses requests that change something if
  they come from another origin that is not in `allowed_origins`.

A header `Authorization` takes precedence: a request that has one is never identified by its cookie.
"""

from collections.abc import Sequence
from typing import Literal

COOKIE_NAME = "tenure_credential"
COOKIE_MAX_SECONDS = 12 * 3600
"""The browser forgets the cookie after this time, or when the credential expires, whichever is first."""
COOKIE_CREDENTIAL_MAX = 4000
"""The longest credential that the cookie may contain: browsers drop a cookie whose name and value have more than 4096
bytes."""

_COOKIE = b"cookie"
_OWN_SITES = frozenset({b"same-origin", b"none"})
"""`none`: the user typed the address, or opened a bookmark."""


def credential_in_cookie(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """Returns the credential in the sign-in cookie of a request; None if the cookie is missing or does not count.

    If the request has two different cookies of this name, neither counts: one of them was set for another path, and the
    request does not show which.
    """
    found = cookie_value(COOKIE_NAME, [value for name, value in headers if name == _COOKIE])
    return found if found is not None and _is_of_own_page(headers) else None


def cookie_value(name: str, values: Sequence[bytes]) -> bytes | None:
    """Returns a cookie from the values of the headers `Cookie`; None if it is missing, empty, or has several values."""
    prefix = f"{name}=".encode()
    found = {
        pair[len(prefix) :]
        for value in values
        for pair in map(bytes.strip, value.split(b";"))
        if pair.startswith(prefix)
    }
    return found.pop() or None if len(found) == 1 else None


def cookie_header(credential: str, path: str, max_age_seconds: int, *, secure: bool) -> tuple[bytes, bytes]:
    """Returns the header that sets the cookie. With an empty credential and 0 seconds, it clears the cookie."""
    return set_cookie(COOKIE_NAME, credential, path, max_age_seconds, "Strict", secure=secure)


def set_cookie(
    name: str, value: str, path: str, max_age_seconds: int, same_site: Literal["Strict", "Lax"], *, secure: bool
) -> tuple[bytes, bytes]:
    attributes = f"Max-Age={max_age_seconds}; Path={path}; HttpOnly; SameSite={same_site}{'; Secure' if secure else ''}"
    return b"set-cookie", f"{name}={value}; {attributes}".encode("ascii")


def _is_of_own_page(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the request comes from a page of the origin that it calls, or from no page.

    If the request has `Sec-Fetch-Site`, this header decides: browsers send it over TLS and to loopback addresses, and
    pages cannot set it. Otherwise the host in `Origin`, if there is one, must be the host of the request. The schemes
    are not compared: behind a proxy that terminates TLS, they differ.
    """
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in (b"sec-fetch-site", b"origin", b"host"):
            if name in given:
                return False
            given[name] = value
    site, origin = given.get(b"sec-fetch-site"), given.get(b"origin")
    if site is not None:
        return site in _OWN_SITES
    return origin is None or origin.lower().partition(b"://")[2] == given.get(b"host", b"").lower()
