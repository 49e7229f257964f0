"""Limits on the requests of each caller, and on the wrong credentials from each address.

Both limits use token buckets. A bucket holds at most `burst` tokens and gets `per_second` new tokens in each second.
The entry of a bucket is one number: the instant at which the bucket will be full again. A caller or address without an
entry has a full bucket. So an entry can be dropped after that instant. The number of entries is limited: if an entry is
dropped earlier, to make room for another one, its caller or address starts again with a full bucket.

Every instance counts for itself, by the clock of its host. A request is counted only after its credential is checked:
an accepted credential takes a token from its own bucket, a wrong one from the bucket of the address. So an attacker who
sends wrong credentials never uses up the requests of a valid one.
"""

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from math import ceil

from tenure.clock import monotonic

CREDENTIALS_MAX = 10_000
"""The most credentials whose requests are counted at the same time. An entry takes about 150 bytes."""
ADDRESSES_MAX = 10_000
"""The most addresses whose wrong credentials are counted at the same time."""
CLEANING_SECONDS = 1.0
"""The shortest time between two searches for full buckets. A search looks at all entries."""
ROUNDING_SECONDS = 1e-6
"""A tolerance, because sums of floating-point seconds are not exact."""
FORWARDED_MAX = 32
"""How many addresses of X-Forwarded-For are looked at, from the right."""
IPV6_COUNTED_BITS = 64
"""A site usually gets a whole IPv6 prefix of this length, so all its addresses count as one."""

Address = IPv4Address | IPv6Address


class TokenBuckets:
    """One token bucket per name."""

    def __init__(self, per_second: float, burst: int, names_max: int, clock: Callable[[], float] = monotonic) -> None:
        self._seconds_per_token = 1 / per_second
        self._seconds_of_burst = (burst - 1) / per_second
        self._names_max = names_max
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._cleaned_at = float("-inf")

    def take(self, name: str) -> int:
        """Takes a token from the bucket of this name and returns 0. If the bucket is empty, returns the seconds until
        it has a token, rounded up.
        """
        now = self._clock()
        full_at = self._full_at.get(name)
        if full_at is None:
            if len(self._full_at) >= self._names_max:
                self._make_room(now)
            full_at = now
        elif full_at < now:
            full_at = now
        missing_seconds = full_at - now - self._seconds_of_burst
        if missing_seconds > ROUNDING_SECONDS:
            return ceil(missing_seconds)
        self._full_at[name] = full_at + self._seconds_per_token
        return 0

    def __len__(self) -> int:
        return len(self._full_at)

    def _make_room(self, now: float) -> None:
        if now - self._cleaned_at >= CLEANING_SECONDS:
            self._cleaned_at = now
            self._full_at = {name: full_at for name, full_at in self._full_at.items() if full_at > now}
        if len(self._full_at) >= self._names_max:
            del self._full_at[next(iter(self._full_at))]


class ClientAddresses:
    """Finds the address of the client of a request, which may have come through proxies.

    If the other end of the connection is a proxy in `trusted`, the client is the right-most address in X-Forwarded-For
    that is not such a proxy. The client may have forged everything to the left of this address.
    """

    def __init__(self, trusted: Sequence[str]) -> None:
        self._trusted = [ip_network(network) for network in trusted]

    def name_of_client(self, peer: str, forwarded: bytes | None) -> str:
        """Returns the name of the client's bucket: its IPv4 address, or the /64 network of its IPv6 address.

        If `peer` is not an IP address, returns `peer` itself.
        """
        address = _address_in(peer)
        if address is None:
            return peer
        if forwarded is not None:
            hops = forwarded.decode("latin-1").split(",")[-FORWARDED_MAX:]
            while hops and self._is_trusted(address):
                before = _address_in(hops.pop())
                if before is None:
                    break  # The trusted proxy did not write an address: count the proxy itself.
                address = before
        return _counted_name(address)

    def is_trusted(self, peer: str) -> bool:
        """Whether the peer of a connection is a trusted proxy."""
        address = _address_in(peer)
        return address is not None and self._is_trusted(address)

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


def _address_in(text: str) -> Address | None:
    """Returns the address in an entry such as `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # A dual-stack listener reports an IPv4 client as an IPv4-mapped IPv6 address.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _counted_name(address: Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, IPV6_COUNTED_BITS), strict=False))
