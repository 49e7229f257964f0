"""The faults of a receiver, and the choice of the fault for a delivery. `fault_playback.py` does the I/O.

The fault of a delivery depends only on the settings (`Faults`), the delivery key, and how often that key has arrived
since the faults were set. It does not depend on the order and timing of deliveries with other keys, so a test gets the
same faults whenever it is repeated.
"""

from bisect import bisect
from hashlib import blake2b
from itertools import accumulate
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tenure.errors import ConfigurationError

KEYS_REMEMBERED = 1_000_000
"""The maximum number of keys whose arrivals are counted. Beyond it, the key that arrived first is forgotten."""
FIRST_FAILURE_STATUS = 300
"""The lowest status that is a failure. A sender treats every lower status as success."""

Seconds = Annotated[float, Meta(ge=0, le=3600)]
FinalStatus = Annotated[int, Meta(ge=200, le=599)]


class _Way(msgspec.Struct, frozen=True, kw_only=True, tag_field="way", rename="camel", forbid_unknown_fields=True):
    weight: Annotated[float, Meta(gt=0, le=1_000_000)] = 1.0
    counted: bool = False
    """Whether the delivery is recorded in the ledger before it fails."""


class Status(_Way, frozen=True, kw_only=True, tag="status"):
    status: FinalStatus = 503
    retry_after_seconds: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    retry_after_as: Literal["seconds", "date"] = "seconds"

    def __post_init__(self) -> None:
        if self.status < FIRST_FAILURE_STATUS and not self.counted:
            raise ValueError("`counted` must be true for a status below 300: the sender treats it as success")


class Delay(_Way, frozen=True, kw_only=True, tag="delay"):
    """Sends the correct response after a delay of `seconds`."""

    seconds: Seconds = 1.0
    counted: Literal[True] = True


class SlowBody(_Way, frozen=True, kw_only=True, tag="slow-body"):
    """Sends the correct status immediately, then `bytes` bytes with a pause of `seconds` before each of them."""

    seconds: Seconds = 0.1
    bytes: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    counted: Literal[True] = True


class EndlessBody(_Way, frozen=True, kw_only=True, tag="endless-body"):
    """Sends the correct status and a body that ends only when the sender closes the connection."""

    counted: Literal[True] = True


class Drop(_Way, frozen=True, kw_only=True, tag="drop"):
    """Resets the connection without a response. If `counted` is false, the delivery is not recorded."""

    counted: bool = True


class RejectDuplicates(_Way, frozen=True, kw_only=True, tag="reject-duplicates"):
    """Returns `status` for a key that is already in the ledger, and the correct response for any other key."""

    status: FinalStatus = 409
    counted: Literal[True] = True


class Redirect(_Way, frozen=True, kw_only=True, tag="redirect"):
    status: Annotated[int, Meta(ge=300, le=399)] = 307
    location: Annotated[str, Meta(pattern=r"\A[!-~]+\Z", max_length=2000)] = "/elsewhere"


class Garbage(_Way, frozen=True, kw_only=True, tag="garbage"):
    """Sends bytes that are not HTTP."""


Way: TypeAlias = Status | Delay | SlowBody | EndlessBody | Drop | RejectDuplicates | Redirect | Garbage

EVERY_WAY: tuple[Way, ...] = (
    Status(status=500),
    Status(status=503, retry_after_seconds=1),
    Status(status=429, retry_after_seconds=1, retry_after_as="date"),
    Delay(),
    SlowBody(),
    EndlessBody(),
    Drop(),
    Drop(counted=False),
    RejectDuplicates(),
    Redirect(),
    Garbage(),
)


class Faults(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A share of the deliveries fails. The way in which a delivery fails is drawn from `ways`, by their weights."""

    share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    seed: int = 0
    times: Annotated[int, Meta(ge=1)] | None = None
    """Only the first `times` deliveries of a key can fail. If None, all of them can."""
    ways: Annotated[tuple[Way, ...], Meta(min_length=1, max_length=100)] = EVERY_WAY


def read_faults(content: bytes | str) -> Faults:
    """Decode JSON: a faults object, or a number. A number is the share of deliveries that fail, in any of EVERY_WAY."""
    try:
        decoded = msgspec.json.decode(content, type=Annotated[float, Meta(ge=0, le=1)] | Faults)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"faults: must be a share from 0 to 1 or a faults object: {error}") from error
    return decoded if isinstance(decoded, Faults) else Faults(share=decoded)


class Chooser:
    """Chooses the fault of each delivery. It counts the arrivals of each key, because the choice depends on them."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._cumulative_weights = list(accumulate(way.weight for way in faults.ways))
        self._arrivals: dict[str, int] = {}

    def choose(self, key: str) -> Way | None:
        """Return the fault of this delivery of the key, or None if it does not fail."""
        faults = self.faults
        if faults.share == 0:
            return None
        arrival = self._count_arrival(key)
        if faults.times is not None and arrival > faults.times:
            return None
        share_draw, way_draw = _draw_two(f"{faults.seed} {key} {arrival}")
        if share_draw >= faults.share:
            return None
        weights = self._cumulative_weights
        # Without `hi`, rounding could produce an index after the last way.
        return faults.ways[bisect(weights, way_draw * weights[-1], hi=len(faults.ways) - 1)]

    def _count_arrival(self, key: str) -> int:
        arrival = self._arrivals.get(key, 0) + 1
        self._arrivals[key] = arrival
        if len(self._arrivals) > KEYS_REMEMBERED:
            del self._arrivals[next(iter(self._arrivals))]
        return arrival


def _draw_two(text: str) -> tuple[float, float]:
    """Return two numbers from 0 to below 1 that depend only on the text. The hash is the same on every machine."""
    digest = blake2b(text.encode(), digest_size=12).digest()
    return int.from_bytes(digest[:6], "big") / 2**48, int.from_bytes(digest[6:], "big") / 2**48
