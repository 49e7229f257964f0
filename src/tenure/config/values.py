"""The kinds of values that settings take. Each carries its rule: the words that messages and docs share."""

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from tenure.config.urls import SCHEMES, SQLITE, is_database_url, is_http_url
from tenure.signing import SECRET_WORDS, is_secret

JOBS = {"expire-sessions": 10.0, "emit-usage": 60.0, "prune": 3600.0, "watch": 30.0}
"""The built-in jobs and their default intervals in seconds."""
HANDLERS = ("echo", "discard")
GATEWAYS = ("usages", "oncall")
"""To which Tenure itself sends."""
RESERVED_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "idempotency-key",
        "transfer-encoding",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    }
)
"""What every request to a gateway says by itself."""

MAX_SECONDS = 1_000_000_000
MAX_FACTOR = 1_000_000
MICRO = Decimal("0.000001")
SIMILAR = 0.6
"""How alike two names are if the one may be suggested for the other."""
MISSPELT = 0.75
"""How alike they are if the one is refused as a misspelling of the other."""
MISSPELT_GATEWAY = 0.85
"""Stricter, since anybody may have gateways of any name."""


class Rule(NamedTuple):
    """What is allowed, in words that follow "must be"; what no type can say of it; and what a wrong value meant."""

    words: str
    holds: Callable[[Any], object] = lambda _: True
    meant: Callable[[str], str | None] = lambda _: None


def near_miss(name: str, names: Iterable[str], similarity: float = SIMILAR) -> str | None:
    return next(iter(get_close_matches(name, names, n=1, cutoff=similarity)), None)


def _misspelt(name: str, built_in: Iterable[str], group: str) -> str | None:
    """The built-in name that was meant, unless an application brings one of exactly this name."""
    near = near_miss(name, built_in, MISSPELT)
    if near is None or near == name or name in entry_points(group=group).names:
        return None
    return near


def _meant_database(url: str) -> str | None:
    """How the URL should begin. A driver in the scheme is none of the user's business."""
    scheme = near_miss(re.split("[:+]", url)[0].lower(), SCHEMES)
    beginning = SQLITE if scheme == "sqlite" else f"{scheme}://"
    return None if scheme is None or url.startswith(beginning) else beginning


def _is_factor(factor: Decimal) -> bool:
    return factor.is_finite() and not factor.is_signed() and factor <= MAX_FACTOR and factor == factor.quantize(MICRO)


def _is_header_name(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name)) and name.lower() not in RESERVED_HEADERS


def _misspelt_gateway(name: str) -> str | None:
    """What goes to a gateway of a name that nobody sends to is never sent."""
    near = near_miss(name, GATEWAYS, MISSPELT_GATEWAY)
    return None if near == name else near


_NAME = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*")
_misspelt_job = partial(_misspelt, built_in=JOBS, group="tenure.jobs")
_misspelt_handler = partial(_misspelt, built_in=HANDLERS, group="tenure.stream_handlers")

Switch = Annotated[bool, Rule("true or false")]
Text = Annotated[str, Rule("text of at least one character", bool)]

Seconds = Annotated[float, Meta(ge=1, le=MAX_SECONDS), Rule("a number of seconds from 1 to 1000000000")]
SecondsOrNone = Annotated[
    float,
    Meta(ge=0, le=MAX_SECONDS),
    Rule("0 or a number of seconds from 1 to 1000000000", lambda seconds: seconds == 0 or seconds >= 1),
]
Days = Annotated[float, Meta(ge=0.00001, le=36500), Rule("a number of days from 0.00001 to 36500")]
Pauses = Annotated[
    tuple[Annotated[float, Meta(ge=0, le=MAX_SECONDS)], ...],
    Meta(min_length=1),
    Rule("a list of one or more numbers of seconds from 0 to 1000000000"),
]

Port = Annotated[int, Meta(ge=0, le=65535), Rule("a whole number from 0 to 65535")]
Workers = Annotated[int, Meta(ge=1, le=256), Rule("a whole number from 1 to 256")]
PoolSize = Annotated[int, Meta(ge=4, le=1000), Rule("a whole number from 4 to 1000")]
Count = Annotated[int, Meta(ge=1, le=1_000_000), Rule("a whole number from 1 to 1000000")]
Bytes = Annotated[int, Meta(ge=1, le=1 << 30), Rule("a whole number from 1 to 1073741824")]
Statuses = Annotated[tuple[Annotated[int, Meta(ge=200, le=599)], ...], Rule("a list of whole numbers from 200 to 599")]

Kind = Annotated[Literal["1", "2", "3"], Rule("1, 2 or 3")]
Factor = Annotated[Decimal, Rule("a number from 0 to 1000000 with at most six decimals", _is_factor)]
Format = Annotated[
    Literal["tenure", "cloudevents"],
    Rule("tenure or cloudevents", meant=partial(near_miss, names=("tenure", "cloudevents"))),
]

DatabaseUrl = Annotated[
    str,
    Rule(
        "sqlite:///file, postgresql://user@host/database or mssql://user@host/database, "
        "with the special characters of a password percent-encoded",
        is_database_url,
        _meant_database,
    ),
]
Secret = Annotated[str, Rule(SECRET_WORDS, is_secret)]
HttpUrl = Annotated[str, Rule("an http or https address without credentials", is_http_url)]
Host = Annotated[str, Rule("an address or a host name", re.compile(r"[A-Za-z0-9.:_%-]+").fullmatch)]
Prefix = Annotated[
    str,
    Rule(
        "empty or a path that begins with a slash and ends without one, as /api/v3",
        re.compile(r"(/(?!\.{1,2}(/|\Z))[A-Za-z0-9._~-]+)*").fullmatch,
    ),
]

Handler = Annotated[
    str,
    Rule(
        "echo, discard or a handler that an application adds",
        lambda name: name and _misspelt_handler(name) is None,
        _misspelt_handler,
    ),
]
JobName = Annotated[
    str,
    Rule(
        "expire-sessions, emit-usage, prune, watch or that of an application's own job: "
        "lower-case letters and digits with single dashes or underscores between them",
        lambda name: _NAME.fullmatch(name) and _misspelt_job(name) is None,
        _misspelt_job,
    ),
]
GatewayName = Annotated[
    str,
    Rule(
        "usages, oncall or one of your own: "
        "lower-case letters and digits with single dashes or underscores between them",
        lambda name: _NAME.fullmatch(name) and _misspelt_gateway(name) is None,
        _misspelt_gateway,
    ),
]
OptionName = Annotated[str, Rule("a lower-case name such as grammar", re.compile(r"[a-z][a-z0-9_]*").fullmatch)]
HeaderName = Annotated[str, Rule("that of a header which Tenure does not set itself", _is_header_name)]
HeaderValue = Annotated[
    str,
    Rule("printable ASCII without spaces around it", re.compile(r"[!-~]([ -~]*[!-~])?").fullmatch),
]
