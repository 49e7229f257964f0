"""The ways to fail, and which request meets which. Pure: they are played in `playing.py`.

Whether a delivery fails, and how, follows from the seed, its key and how often that key has come since the faults were
set, and from nothing else. So a run can be repeated, however its requests are mixed and timed.
"""

from bisect import bisect
from hashlib import blake2b
from itertools import accumulate
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tenure.errors import ConfigurationError

KEYS_REMEMBERED = 1_000_000
"""How often a key has come is forgotten for those that came first, once there are more."""
FAILING = 300
"""The first status that asks the sender to come again."""

Seconds = Annotated[float, Meta(ge=0, le=3600)]
FinalStatus = Annotated[int, Meta(ge=200, le=599)]


class _Way(msgspec.Struct, frozen=True, kw_only=True, tag_field="way", rename="camel", forbid_unknown_fields=True):
    weight: Annotated[float, Meta(gt=0, le=1_000_000)] = 1.0
    counted: bool = False
    """Whether the delivery is in the ledger before it fails."""


class Status(_Way, frozen=True, kw_only=True, tag="status"):
    status: FinalStatus = 503
    retry_after_seconds: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    retry_after_as: Literal["seconds", "date"] = "seconds"

    def __post_init__(self) -> None:
        if self.status < FAILING and not self.counted:
            raise ValueError("a status below 300 says that the delivery was counted, so `counted` must be true")


class Delay(_Way, frozen=True, kw_only=True, tag="delay"):
    """A true answer whose first byte comes late."""

    seconds: Seconds = 1.0
    counted: Literal[True] = True


class SlowBody(_Way, frozen=True, kw_only=True, tag="slow-body"):
    """The status at once, then one byte at a time."""

    seconds: Seconds = 0.1
    bytes: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    counted: Literal[True] = True


class EndlessBody(_Way, frozen=True, kw_only=True, tag="endless-body"):
    """The status, and a body until the sender has had enough."""

    counted: Literal[True] = True


class Drop(_Way, frozen=True, kw_only=True, tag="drop"):
    """The connection ends without an answer; not counted, it ends as if nothing had arrived."""

    counted: bool = True


class RejectDuplicates(_Way, frozen=True, kw_only=True, tag="reject-duplicates"):
    """A key that is in the ledger already gets this status; another is taken as usual."""

    status: FinalStatus = 409
    counted: Literal[True] = True


class Redirect(_Way, frozen=True, kw_only=True, tag="redirect"):
    status: Annotated[int, Meta(ge=300, le=399)] = 307
    location: Annotated[str, Meta(pattern=r"\A[!-~]+\Z", max_length=2000)] = "/elsewhere"


class Garbage(_Way, frozen=True, kw_only=True, tag="garbage"):
    """Bytes that are not HTTP."""


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
    share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    seed: int = 0
    times: Annotated[int, Meta(ge=1)] | None = None
    """Only the first so many deliveries of a key can fail; None: any."""
    ways: Annotated[tuple[Way, ...], Meta(min_length=1, max_length=100)] = EVERY_WAY


def read_faults(content: bytes | str) -> Faults:
    """From JSON: an object, or a number alone, which is the share that fails in every way there is."""
    try:
        read = msgspec.json.decode(content, type=Annotated[float, Meta(ge=0, le=1)] | Faults)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"faults: must be a share from 0 to 1 or an object with faults: {error}") from error
    return read if isinstance(read, Faults) else Faults(share=read)


class Chooser:
    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._bounds = list(accumulate(way.weight for way in faults.ways))
        self._times_seen: dict[str, int] = {}

    def choose(self, key: str) -> Way | None:
        """How this delivery of the key fails, if it does."""
        faults = self.faults
        if faults.share == 0:
            return None
        time = self._seen_again(key)
        if faults.times is not None and time > faults.times:
            return None
        fails, how = _draws(f"{faults.seed} {key} {time}")
        if fails >= faults.share:
            return None
        return faults.ways[bisect(self._bounds, how * self._bounds[-1], hi=len(faults.ways) - 1)]

    def _seen_again(self, key: str) -> int:
        time = self._times_seen.get(key, 0) + 1
        self._times_seen[key] = time
        if len(self._times_seen) > KEYS_REMEMBERED:
            del self._times_seen[next(iter(self._times_seen))]
        return time


def _draws(text: str) -> tuple[float, float]:
    """Two numbers from 0 to below 1, the same for the same text on every machine."""
    digest = blake2b(text.encode(), digest_size=12).digest()
    return int.from_bytes(digest[:6], "big") / 2**48, int.from_bytes(digest[6:], "big") / 2**48
