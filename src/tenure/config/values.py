"""The types of settings. Each carries a rule whose text is used in messages and in the documentation."""

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from importlib.metadata import entry_points
from ipaddress import ip_network
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from tenure.config.profiles import PROFILES
from tenure.config.urls import SCHEMES, SQLITE, is_database_url, is_http_url, is_secure_url
from tenure.domain.alerts import ONCALL
from tenure.domain.events import EVENTS_LEASE, EventType
from tenure.domain.leases import JOB_LOCK
from tenure.domain.submissions import USAGES
from tenure.ids import canonical_id
from tenure.signing import SECRET_RULE, is_secret

JOBS = {"expire-sessions": 10.0, "emit-usage": 60.0, "mark-usage": 300.0, "prune": 3600.0, "watch": 30.0}
"""The built-in jobs and their default intervals in seconds."""
HANDLERS = ("echo", "discard")
GATEWAYS = (USAGES, ONCALL)
"""The gateways that only Tenure itself submits to."""
HOLDER_MAX = 100
ROLES: tuple[Literal["client", "reader", "operator"], ...] = ("client", "reader", "operator")
RESERVED_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "idempotency-key",
        "traceparent",
        "transfer-encoding",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    }
)
"""Headers that the settings `headers` of gateways and traces cannot contain."""

MAX_SECONDS = 1_000_000_000
MAX_FACTOR = 1_000_000
MICRO = Decimal("0.000001")
SIMILAR = 0.6
"""A known name is suggested for an unknown one if the two are at least this similar."""
MISSPELLED = 0.75
"""An unknown name of a job or handler is refused as a misspelling if it is at least this similar to a built-in name."""
MISSPELLED_GATEWAY = 0.85
"""The same limit for gateways. It is higher, so that operators can choose the names of their gateways more freely."""


class Rule(NamedTuple):
    allowed: str
    """Completes "must be …" in messages and documentation."""
    check: Callable[[Any], object] = lambda _: True
    """Checks the part of the rule that the type cannot express. Returns a true value if the setting is allowed."""
    suggest: Callable[[str], str | None] = lambda _: None
    """Suggests a valid value for an invalid one."""


def near_miss(name: str, names: Iterable[str], similarity: float = SIMILAR) -> str | None:
    return next(iter(get_close_matches(name, names, n=1, cutoff=similarity)), None)


def _misspelled(name: str, built_in: Iterable[str], group: str) -> str | None:
    """Return the built-in name that `name` misspells, or None. Names that applications register are allowed."""
    near = near_miss(name, built_in, MISSPELLED)
    if near is None or near == name or name in entry_points(group=group).names:
        return None
    return near


def _suggest_database(url: str) -> str | None:
    """Return the correct beginning of the URL, without a driver in the scheme, because Tenure chooses its drivers."""
    scheme = near_miss(re.split("[:+]", url)[0].lower(), SCHEMES)
    beginning = SQLITE if scheme == "sqlite" else f"{scheme}://"
    return None if scheme is None or url.startswith(beginning) else beginning


def _is_factor(factor: Decimal) -> bool:
    # `is_signed` also excludes -0, which a comparison with 0 would accept.
    return factor.is_finite() and not factor.is_signed() and factor <= MAX_FACTOR and factor == factor.quantize(MICRO)


def _is_header_name(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name)) and name.lower() not in RESERVED_HEADERS


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def _misspelled_gateway(name: str) -> str | None:
    """Return the built-in gateway that `name` misspells, or None.

    A misspelled name is refused, because Tenure itself would never submit to that gateway.
    """
    near = near_miss(name, GATEWAYS, MISSPELLED_GATEWAY)
    return None if near == name else near


_NAME = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://({_HOST_NAME.pattern})(:[0-9]{{1,5}})?")
_misspelled_job = partial(_misspelled, built_in=JOBS, group="tenure.jobs")
_misspelled_handler = partial(_misspelled, built_in=HANDLERS, group="tenure.stream_handlers")

_LEASE_NAME = re.compile(rf"(?!{JOB_LOCK}|{EVENTS_LEASE}$)[!-.0-~]{{1,{HOLDER_MAX}}}")
LeaseName = Annotated[
    str,
    Rule(
        f"1 to {HOLDER_MAX} characters, printable ASCII without spaces and slashes; "
        f"not {EVENTS_LEASE}, and not a name that begins with {JOB_LOCK}",
        _LEASE_NAME.fullmatch,
    ),
]
HolderName = Annotated[
    str,
    Rule(
        f"1 to {HOLDER_MAX} characters, printable ASCII without spaces and slashes",
        re.compile(rf"[!-.0-~]{{1,{HOLDER_MAX}}}").fullmatch,
    ),
]
AnyId = Annotated[str, Rule("a UUID", canonical_id)]
Switch = Annotated[bool, Rule("true or false")]
Text = Annotated[str, Rule("non-empty text", bool)]

Seconds = Annotated[float, Meta(ge=1, le=MAX_SECONDS), Rule("a number of seconds from 1 to 1000000000")]
SecondsOrZero = Annotated[
    float,
    Meta(ge=0, le=MAX_SECONDS),
    Rule("0 or a number of seconds from 1 to 1000000000", lambda seconds: seconds == 0 or seconds >= 1),
]
Leeway = Annotated[int, Meta(ge=0, le=60), Rule("a whole number of seconds from 0 to 60")]
Days = Annotated[float, Meta(ge=0.00001, le=36500), Rule("a number of days from 0.00001 to 36500")]
Backoff = Annotated[
    tuple[Annotated[float, Meta(ge=0, le=MAX_SECONDS)], ...],
    Meta(min_length=1),
    Rule("a list of one or more numbers of seconds from 0 to 1000000000"),
]

Port = Annotated[int, Meta(ge=0, le=65535), Rule("a whole number from 0 to 65535")]
Workers = Annotated[int, Meta(ge=1, le=256), Rule("a whole number from 1 to 256")]
PoolSize = Annotated[int, Meta(ge=4, le=1000), Rule("a whole number from 4 to 1000")]
Count = Annotated[int, Meta(ge=1, le=1_000_000), Rule("a whole number from 1 to 1000000")]
CountOrZero = Annotated[int, Meta(ge=0, le=1_000_000), Rule("a whole number from 0 to 1000000")]
Bytes = Annotated[int, Meta(ge=1, le=1 << 30), Rule("a whole number from 1 to 1073741824")]
HeaderBytes = Annotated[int, Meta(ge=1024, le=1 << 20), Rule("a whole number from 1024 to 1048576")]
Ratio = Annotated[float, Meta(ge=0, le=1), Rule("a number from 0 to 1")]
Statuses = Annotated[tuple[Annotated[int, Meta(ge=200, le=599)], ...], Rule("a list of whole numbers from 200 to 599")]

Kind = Annotated[Literal["1", "2", "3"], Rule("1, 2 or 3")]
Factor = Annotated[Decimal, Rule("a number from 0 to 1000000 with at most six decimals", _is_factor)]
Format = Annotated[
    Literal["tenure", "cloudevents"],
    Rule("tenure or cloudevents", suggest=partial(near_miss, names=("tenure", "cloudevents"))),
]
EventTypes = Annotated[
    tuple[str, ...],
    Rule(
        "a list of session.opened, session.upgraded and session.closed, each at most once",
        lambda types: all(each in list(EventType) for each in types) and len(set(types)) == len(types),
    ),
]
RoleName = Annotated[
    Literal["client", "reader", "operator"],
    Rule("client, reader or operator", suggest=partial(near_miss, names=ROLES)),
]

JsonCase = Annotated[
    Literal["camel", "snake"], Rule("camel or snake", suggest=partial(near_miss, names=("camel", "snake")))
]
UnknownFields = Annotated[
    Literal["refuse", "ignore"], Rule("refuse or ignore", suggest=partial(near_miss, names=("refuse", "ignore")))
]
ProfileName = Annotated[
    Literal["capacity", "transcription", "playback"],
    Rule("capacity, transcription or playback", suggest=partial(near_miss, names=tuple(PROFILES))),
]

LOG_LEVELS = ("debug", "info", "warning", "error")
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    Rule("debug, info, warning or error", suggest=partial(near_miss, names=LOG_LEVELS)),
]
SessionLogLevel = Annotated[
    Literal["off", "debug", "info"],
    Rule("off, debug or info", suggest=partial(near_miss, names=("off", "debug", "info"))),
]

DatabaseUrl = Annotated[
    str,
    Rule(
        "sqlite:///file, postgresql://user@host/database or mssql://user@host/database, "
        "with the special characters of a password percent-encoded",
        is_database_url,
        _suggest_database,
    ),
]
Secret = Annotated[str, Rule(SECRET_RULE, is_secret)]
HttpUrl = Annotated[str, Rule("an http or https address without credentials", is_http_url)]
SecureUrl = Annotated[
    str, Rule("an https address, or an http address of a loopback host, without credentials", is_secure_url)
]
Host = Annotated[str, Rule("an address or a host name", re.compile(r"[A-Za-z0-9.:_%-]+").fullmatch)]
HostNames = Annotated[
    tuple[str, ...],
    Rule(
        'a list of host names or addresses without a port, or ["*"]',
        lambda names: names == ("*",) or all(_HOST_NAME.fullmatch(name) for name in names),
    ),
]
Origins = Annotated[
    tuple[str, ...],
    Rule(
        'a list of origins such as https://app.example.com, or ["*"]',
        lambda origins: origins == ("*",) or all(_ORIGIN.fullmatch(origin) for origin in origins),
    ),
]
Networks = Annotated[
    tuple[str, ...],
    Rule(
        "a list of addresses, or networks such as 10.0.0.0/8",
        lambda networks: all(_is_network(network) for network in networks),
    ),
]
Prefix = Annotated[
    str,
    Rule(
        "empty or a path that begins with a slash and does not end with one, such as /api/v3",
        # No segment may be `.` or `..`, which clients resolve before they send a request.
        re.compile(r"(/(?!\.{1,2}(/|\Z))[A-Za-z0-9._~-]+)*").fullmatch,
    ),
]

Handler = Annotated[
    str,
    Rule(
        "echo, discard or the name of a handler that an application registers",
        lambda name: name and _misspelled_handler(name) is None,
        _misspelled_handler,
    ),
]
JobName = Annotated[
    str,
    Rule(
        "expire-sessions, emit-usage, mark-usage, prune, watch or the name of an application's job: "
        "lower-case letters and digits with single dashes or underscores between them",
        lambda name: _NAME.fullmatch(name) and _misspelled_job(name) is None,
        _misspelled_job,
    ),
]
GatewayName = Annotated[
    str,
    Rule(
        "usages, oncall or a name of your choice: "
        "lower-case letters and digits with single dashes or underscores between them",
        lambda name: _NAME.fullmatch(name) and _misspelled_gateway(name) is None,
        _misspelled_gateway,
    ),
]
OptionName = Annotated[str, Rule("a lower-case name such as grammar", re.compile(r"[a-z][a-z0-9_]*").fullmatch)]
HeaderName = Annotated[str, Rule("a header name that is not reserved for Tenure", _is_header_name)]
HeaderValue = Annotated[
    str,
    Rule("printable ASCII without leading or trailing spaces", re.compile(r"[!-~]([ -~]*[!-~])?").fullmatch),
]
