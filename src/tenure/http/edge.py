"""The edge: what an instance refuses before a request reaches its route.

Two kinds of limits stand here, under the names that they have in the section `[http]` of the configuration:

- `allowed_hosts` and `allowed_origins`, which `Edge.check` applies to the headers of every request, for all transports.
- Bytes, counts and times. The protocols in `server/` apply them, because only they see bytes and connections.

Both count what they refuse with `Edge.refused`. The counts are reported in intervals, not one by one, so that an attack
does not fill the log.

**Hosts.** A page of another site can send requests to an instance in the browser's own network if the name of that site
resolves to the address of the instance (DNS rebinding). The browser then sends the name of the site as `Host`. So an
instance answers only to names that it knows. An address is no name and cannot be rebound.

**Origins.** A page of any site can send some requests without asking first, for instance `POST` without a body. The
browser marks them with `Origin` and `Sec-Fetch-Site`. A request that changes something, or opens a stream, is refused
if these headers name another origin. Other clients send neither header.
"""

import ipaddress
from collections import Counter

from tenure.config import HttpConfig, is_loopback
from tenure.errors import (
    FieldError,
    ForbiddenOrigin,
    HeadersTooLarge,
    Invalid,
    Misdirected,
    Problem,
    RequestTimeout,
    TooManyConnections,
    UriTooLong,
)
from tenure.http.answers import Headers
from tenure.telemetry.events import RequestsRefused, Telemetry

REPORT_SECONDS = 10.0
KNOWN_HOSTS_MAX = 256
"""How many values of `Host` are remembered as allowed, so that they are parsed only once."""
ANY = "*"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
EDGE_REFUSALS = (Invalid, RequestTimeout, UriTooLong, Misdirected, HeadersTooLarge, TooManyConnections)
"""What every request may get, besides `ForbiddenOrigin` for requests that change something."""

_CHECKED = frozenset({b"host", b"origin", b"sec-fetch-site"})
_FOREIGN_SITES = frozenset({b"cross-site", b"same-site"})
"""`same-site` too: it includes other ports of the same host."""


class Edge:
    def __init__(self, limits: HttpConfig, host: str, telemetry: Telemetry) -> None:
        """`host` is the address on which the instance listens."""
        self.limits = limits
        self._telemetry = telemetry
        self._hosts = {_without_brackets(name).lower() for name in (*limits.allowed_hosts, host)}
        self._all_addresses = not is_loopback(host)
        self._known_hosts: set[bytes] = set()
        self._origins = {origin.lower().encode() for origin in limits.allowed_origins}
        self._all_origins = ANY in limits.allowed_origins
        self._refused: Counter[str] = Counter()
        self._reported_at: dict[str, float] = {}

    def check(self, headers: Headers, *, changes: bool, http_version: str = "1.1") -> Problem | None:
        """Returns why the request is refused, or None. `changes` is true for a request that may change something."""
        host = origin = site = None
        for name, value in headers:
            if name in _CHECKED:
                if name == b"host":
                    if host is not None:
                        return _host_required()
                    host = value
                elif name == b"origin":
                    # Browsers send one. Two cannot both be the right one.
                    origin = value if origin is None else b"null"
                else:
                    site = value
        if host is None:
            if http_version == "1.1":
                return _host_required()
        elif host not in self._known_hosts and not self._is_allowed(host):
            self.refused("allowed_hosts")
            return Misdirected("this instance does not serve the host of this request; see allowed_hosts")
        if changes and (origin or site) and self._is_foreign(host, origin, site):
            self.refused("allowed_origins")
            return ForbiddenOrigin("this origin may not send requests that change something; see allowed_origins")
        return None

    def refused(self, limit: str) -> None:
        """Counts a request or connection that exceeded the limit of this name."""
        self._refused[limit] += 1

    def report(self, now: float) -> None:
        """Reports the counts since the last report, each limit once per REPORT_SECONDS."""
        for limit, count in list(self._refused.items()):
            if now - self._reported_at.get(limit, -REPORT_SECONDS) >= REPORT_SECONDS:
                self._reported_at[limit] = now
                del self._refused[limit]
                self._telemetry.report(RequestsRefused(limit, count))

    @property
    def has_unreported(self) -> bool:
        return bool(self._refused)

    def _is_allowed(self, host: bytes) -> bool:
        name = _name_of(host)
        if ANY not in self._hosts and name not in self._hosts and not is_loopback(name):
            return self._all_addresses and _is_address(name)
        if len(self._known_hosts) < KNOWN_HOSTS_MAX:
            self._known_hosts.add(host)
        return True

    def _is_foreign(self, host: bytes | None, origin: bytes | None, site: bytes | None) -> bool:
        if self._all_origins or (origin is not None and origin.lower() in self._origins):
            return False
        if site in _FOREIGN_SITES:
            return True
        # Only the host is compared. Behind a proxy that ends TLS, the scheme of the page is not the one seen here.
        return origin is not None and (host is None or origin.lower().partition(b"://")[2] != host.lower())


def _host_required() -> Invalid:
    return Invalid(FieldError("Host", "must be given exactly once"))


def _name_of(host: bytes) -> str:
    """Returns the name or address in a `Host` header: without the port, in lower case."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def _without_brackets(name: str) -> str:
    return name.strip("[]")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
