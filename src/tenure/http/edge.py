"""The edge: the part of an instance that refuses requests before they reach their route.

There are three kinds of limits, which are configured in the sections `[http]` and `[access]`:

- `allowed_hosts` and `allowed_origins`, which `Edge.check` applies to the headers of every request, for all transports.
- Bytes, counts and times. The protocols in `server/` apply them, because only they see bytes and connections.
- Requests per second of a credential, and wrong credentials per minute of an address (`access/limits.py`).

Refusals because of these limits are counted by `Edge.refused`. The counts are reported at intervals, so that an attack
does not fill the log.

`Edge.check` reads the headers once, and returns a `Visit`: the edge's record of the request. It contains the id of the
request, which is in every response, in every problem and in the log. A client may choose the id (`X-Request-ID`).

**Hosts.** A page of another site can send requests to an instance in the browser's own network if the name of that site
resolves to the address of the instance (DNS rebinding). The browser then sends the name of the site as `Host`. So an
instance serves only requests whose `Host` is a configured name or a loopback host. An instance that does not listen on
a loopback address also accepts every IP address as `Host`: after DNS rebinding, `Host` is a name, never an IP address.

**Origins.** A page of any site can send some requests without a preflight, for instance `POST` without a body. The
browser marks these requests with `Origin` and `Sec-Fetch-Site`. A request that changes something, or opens a stream, is
refused if these headers show another origin that is not in `allowed_origins`. Other clients send neither header.

**CORS.** A browser shows a response to a page of another origin only if the response allows that origin. Every response
to a request of an origin in `allowed_origins` allows it, problems included, and a preflight of such an origin is
answered without a credential. The response names that origin, never `*`, and does not allow cookies: a page of another
origin sends its credential in a header, and the sign-in cookie does not count for such a page (`access/cookies.py`). If
origins are allowed, the headers of a response depend on the origin, so every response says `Vary: Origin`.
"""

import ipaddress
import os
import re
from collections import Counter
from collections.abc import Callable
from itertools import count as count_from

import msgspec

from tenure.access.caller import Caller, CallerKind
from tenure.access.limits import ADDRESSES_MAX, CREDENTIALS_MAX, ClientAddresses, TokenBuckets
from tenure.clock import monotonic
from tenure.config import AccessConfig, HttpConfig, is_loopback
from tenure.errors import (
    FieldError,
    ForbiddenOrigin,
    HeadersTooLarge,
    Invalid,
    Misdirected,
    Problem,
    RateLimited,
    RequestTimeout,
    TooManyConnections,
    TooManyFailures,
    Unauthenticated,
    UriTooLong,
)
from tenure.http.answers import Answer, Headers
from tenure.naming import CAMEL, Names, SnakeNames
from tenure.telemetry.events import RequestsRefused, Telemetry
from tenure.telemetry.trace_context import TRACEPARENT, Trace

REPORT_SECONDS = 10.0
KNOWN_HOSTS_MAX = 256
"""How many values of `Host` are remembered as allowed, so that they are parsed only once."""
ANY = "*"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
EDGE_REFUSALS = (Invalid, RequestTimeout, UriTooLong, Misdirected, HeadersTooLarge, TooManyConnections)
"""Refusals that every request may get. Requests that change something may also get `ForbiddenOrigin`."""

REQUEST_ID_HEADER = b"x-request-id"
CASE_HEADER = b"tenure-json-case"
"""With this header a client chooses the names of fields in its response: `camel` or `snake`."""
BURST_SECONDS = 2
"""If `requests_burst` is 0, the burst of a credential is `requests_per_second` times this number."""
MINUTE_SECONDS = 60
PREFLIGHT_SECONDS = 600
"""How long a browser may remember the answer to a preflight."""
NO_CONTENT = 204
EXPOSED_HEADERS = b"allow, link, location, retry-after, www-authenticate, x-request-id, x-session-id"
"""The response headers that a page of an allowed origin may read, in addition to those that every page may read."""

_FORWARDED = b"x-forwarded-for"
_FORWARDED_PROTO = b"x-forwarded-proto"
_TRACEPARENT = TRACEPARENT.encode()
_CHECKED = frozenset({b"host", b"origin", b"sec-fetch-site", REQUEST_ID_HEADER, CASE_HEADER})
_TWO_HOSTS = b"\n"
"""Stands for several `Host` headers. No value of a header contains a line end."""
_VARY: Headers = ((b"vary", b"origin"),)
_is_request_id = re.compile(rb"[!-~]{1,128}").fullmatch
_FOREIGN_SITES = frozenset({b"cross-site", b"same-site"})
"""The values of `Sec-Fetch-Site` that show another origin. `same-site` includes other ports of the same host."""


class Visit(msgspec.Struct, gc=False):
    """The edge's record of a request, on any transport."""

    request_id: str
    peer: tuple[str, int] | None
    """The other end of the connection: the client, or a proxy."""
    headers: Headers
    """The headers that the edge adds to the response, in addition to X-Request-ID."""
    forwarded: bytes | None
    """The value of X-Forwarded-For; None without this header, or without trusted proxies."""
    problem: Problem | None
    """Why the request is refused; None if it is not."""
    is_of_allowed_origin: bool = False
    trace: Trace | None = None
    """The position of the request in a trace; None if traces are off or this request is not sampled."""
    names: Names = CAMEL
    """The names of fields in the response."""


class Edge:
    def __init__(
        self,
        limits: HttpConfig,
        host: str,
        telemetry: Telemetry,
        access: AccessConfig = AccessConfig(),  # noqa: B008 - frozen
        clock: Callable[[], float] = monotonic,
        snake_names: Names = SnakeNames(),  # noqa: B008 - never changed
    ) -> None:
        """`host` is the address on which the instance listens. `clock` returns seconds, for the token buckets."""
        self.limits = limits
        self._telemetry = telemetry
        self._hosts = {_without_brackets(name).lower() for name in (*limits.allowed_hosts, host)}
        self._all_addresses = not is_loopback(host)
        self._known_hosts: set[bytes] = set()
        self._origins = {origin.lower().encode() for origin in limits.allowed_origins}
        self._all_origins = ANY in limits.allowed_origins
        self._begin_trace = telemetry.begin_trace
        self._checked = _CHECKED | ({_FORWARDED} if limits.trusted_proxies else set())
        if self._begin_trace is not None:
            self._checked |= {_TRACEPARENT}
        self._vary = _VARY if limits.allowed_origins else ()
        self._addresses = ClientAddresses(limits.trusted_proxies)
        self.requests = _buckets_of_requests(access, clock)
        """The token buckets of credentials; None if requests are not limited."""
        self._failures = _buckets_of_failures(access, clock)
        # An id that this process makes is this prefix and a number. The 48 random bits in the prefix distinguish the id
        # from the ids of other processes.
        self._id_prefix = f"{os.urandom(6).hex()}-"
        self._id_numbers = count_from(1)
        self._names_by_case = {b"camel": CAMEL, b"snake": snake_names}
        self._names = self._names_by_case[limits.json_case.encode()]
        self._refused: Counter[str] = Counter()
        self._reported_at: dict[str, float] = {}

    def check(  # noqa: C901, PLR0912 - one loop over the headers, for the hot lane
        self, headers: Headers, *, changes: bool, http_version: str = "1.1", peer: tuple[str, int] | None = None
    ) -> Visit:
        """Returns the visit, with a problem if the request is refused. `changes` is true for a request that may change
        something.
        """
        host = origin = site = given_id = forwarded = traceparent = problem = trace = case = None
        checked = self._checked
        for name, value in headers:
            if name in checked:
                if name == b"host":
                    host = value if host is None else _TWO_HOSTS
                elif name == REQUEST_ID_HEADER:
                    given_id = value if given_id is None else b""
                elif name == b"origin":
                    # Browsers send one `Origin`. Several count as `null`, which is never the origin of this instance.
                    origin = value if origin is None else b"null"
                elif name == CASE_HEADER:
                    case = value
                elif name == _FORWARDED:
                    forwarded = value if forwarded is None else b"%s,%s" % (forwarded, value)
                elif name == _TRACEPARENT:
                    # Only one `traceparent` is valid. If there are several, the empty value makes tracing ignore them.
                    traceparent = value if traceparent is None else b""
                else:
                    site = value
        if host not in self._known_hosts:
            problem = self._problem_of_host(host, http_version)
        if problem is None and changes and (origin or site) and self._is_foreign(host, origin, site):
            self.refused("allowed_origins")
            problem = ForbiddenOrigin("this origin may not send requests that change something; see allowed_origins")
        if given_id is not None and _is_request_id(given_id):
            request_id = given_id.decode("ascii")
        else:
            request_id = self._id_prefix + str(next(self._id_numbers))
        if self._begin_trace is not None:
            trace = self._begin_trace(traceparent, request_id)
        names = self._names if case is None else self._names_by_case.get(case.lower(), self._names)
        if origin is None or not self._is_allowed_origin(origin):
            return Visit(request_id, peer, self._vary, forwarded, problem, False, trace, names)
        return Visit(request_id, peer, _shown_to(origin), forwarded, problem, True, trace, names)

    def incomplete_visit(self, headers: Headers, peer: tuple[str, int] | None) -> Visit:
        """Returns the visit of a request that is refused before its headers are complete."""
        known = [header for header in headers if header[0] in (REQUEST_ID_HEADER, CASE_HEADER, b"origin")]
        return self.check(known, changes=False, peer=peer)

    def count_request(self, caller: Caller) -> None:
        """Raises `RateLimited` if the credential has sent too many requests. Anonymous callers are not limited."""
        if self.requests is not None and caller.kind is not CallerKind.ANONYMOUS:
            # A public id contains no space, so no other credential uses the bucket of an API key.
            is_key = caller.kind is CallerKind.KEY
            seconds = self.requests.take(caller.subject if is_key else f"{caller.kind.value} {caller.subject}")
            if seconds:
                self.refused("requests_per_second")
                raise RateLimited("this credential sends too many requests; see requests_per_second", seconds)

    def refusal_of_credential(self, problem: Unauthenticated, visit: Visit) -> Problem:
        """Counts a wrong credential for the client address. Returns `problem`, or `TooManyFailures` if the address has
        sent too many wrong credentials. A missing credential does not count.
        """
        if self._failures is None or problem.missing or visit.peer is None:
            return problem
        seconds = self._failures.take(self._addresses.name_of_client(visit.peer[0], visit.forwarded))
        if not seconds:
            return problem
        self.refused("failures_per_minute")
        return TooManyFailures("this address sends too many wrong credentials; see failures_per_minute", seconds)

    def is_forwarded_https(self, headers: Headers, visit: Visit) -> bool:
        """Whether the browser uses https, according to the header of a trusted proxy."""
        said = [value for name, value in headers if name == _FORWARDED_PROTO]
        if not said or visit.peer is None or not self._addresses.is_trusted(visit.peer[0]):
            return False
        # The nearest proxy writes the last value. The values before it may be forged.
        return said[-1].rpartition(b",")[2].strip().lower() == b"https"

    def refused(self, limit: str) -> None:
        """Counts a request or connection that was refused because of the limit with this name."""
        self._refused[limit] += 1

    def report(self, now: float) -> None:
        """Reports the counts since the last report, for each limit at most once per REPORT_SECONDS."""
        for limit, count in list(self._refused.items()):
            if now - self._reported_at.get(limit, -REPORT_SECONDS) >= REPORT_SECONDS:
                self._reported_at[limit] = now
                del self._refused[limit]
                self._telemetry.report(RequestsRefused(limit, count))

    @property
    def has_unreported(self) -> bool:
        return bool(self._refused)

    def _problem_of_host(self, host: bytes | None, http_version: str) -> Problem | None:
        if host is _TWO_HOSTS or (host is None and http_version == "1.1"):
            return _host_required()
        if host is None or self._is_allowed(host):
            return None
        self.refused("allowed_hosts")
        return Misdirected("this instance does not serve the host of this request; see allowed_hosts")

    def _is_allowed(self, host: bytes) -> bool:
        name = _name_of(host)
        if ANY not in self._hosts and name not in self._hosts and not is_loopback(name):
            return self._all_addresses and _is_address(name)
        if len(self._known_hosts) < KNOWN_HOSTS_MAX:
            self._known_hosts.add(host)
        return True

    def _is_allowed_origin(self, origin: bytes) -> bool:
        return self._all_origins or origin.lower() in self._origins

    def _is_foreign(self, host: bytes | None, origin: bytes | None, site: bytes | None) -> bool:
        if self._all_origins or (origin is not None and self._is_allowed_origin(origin)):
            return False
        if site in _FOREIGN_SITES:
            return True
        # Compare only the host: behind a proxy that terminates TLS, the scheme of the request is not that of the page.
        return origin is not None and (host is None or origin.lower().partition(b"://")[2] != host.lower())


def preflight(methods: str, headers: str) -> Answer:
    """Returns the answer to the preflight of an allowed origin. `Visit.headers` names the origin."""
    return Answer(
        b"",
        NO_CONTENT,
        (
            (b"access-control-allow-methods", methods.encode()),
            (b"access-control-allow-headers", headers.encode()),
            (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
        ),
    )


def _shown_to(origin: bytes) -> Headers:
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", EXPOSED_HEADERS),
        *_VARY,
    )


def _buckets_of_requests(access: AccessConfig, clock: Callable[[], float]) -> TokenBuckets | None:
    rate = access.requests_per_second
    return TokenBuckets(rate, access.requests_burst or rate * BURST_SECONDS, CREDENTIALS_MAX, clock) if rate else None


def _buckets_of_failures(access: AccessConfig, clock: Callable[[], float]) -> TokenBuckets | None:
    rate = access.failures_per_minute / MINUTE_SECONDS
    return TokenBuckets(rate, access.failures_burst, ADDRESSES_MAX, clock) if rate else None


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
