"""Token buckets, and the address under which a client is counted."""

import pytest

from tenure.access.limits import FORWARDED_MAX, ClientAddresses, TokenBuckets


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def taken(buckets: TokenBuckets, tries: int, name: str = "a") -> int:
    """How many of the tries get a token."""
    return sum(buckets.take(name) == 0 for _ in range(tries))


# Token buckets.


@pytest.mark.parametrize(("per_second", "burst"), [(10.0, 20), (1.0, 1), (1.0, 20), (0.1, 3), (1000.0, 1)])
def test_rate_applies_after_burst(per_second: float, burst: int) -> None:
    clock = ManualClock()
    buckets = TokenBuckets(per_second, burst, 10, clock)
    assert taken(buckets, burst * 2) == burst
    for _ in range(5):
        clock.now += 1.001 / per_second
        assert taken(buckets, 3) == 1
    clock.now += 1.001 * burst / per_second
    assert taken(buckets, burst * 2) == burst


def test_returned_wait_is_sufficient_and_at_most_one_second_too_long() -> None:
    clock = ManualClock()
    buckets = TokenBuckets(0.3, 4, 10, clock)
    for _ in range(50):
        wait = buckets.take("a")
        if wait:
            clock.now += wait - 1.01
            assert buckets.take("a") > 0, "a second less would have been enough"
            clock.now += 1.01
            assert buckets.take("a") == 0


def test_refused_tries_take_no_token() -> None:
    clock = ManualClock()
    buckets = TokenBuckets(1.0, 2, 10, clock)
    assert taken(buckets, 1000) == 2
    clock.now += 1.001
    assert taken(buckets, 1000) == 1


def test_each_name_has_its_own_bucket() -> None:
    buckets = TokenBuckets(1.0, 2, 10, ManualClock())
    assert [taken(buckets, 5, name) for name in ("a", "b")] == [2, 2]


def test_full_buckets_are_deleted_first_at_the_limit() -> None:
    clock = ManualClock()
    buckets = TokenBuckets(1.0, 5, 100, clock)
    assert taken(buckets, 10, "busy") == 5
    for number in range(50):
        buckets.take(f"once {number}")
    clock.now += 1.5  # the buckets that lost one token are full again
    for number in range(60):
        buckets.take(f"later {number}")
    assert len(buckets) <= 100
    assert taken(buckets, 10, "busy") == 1, "the busy bucket was deleted although full ones existed"
    for number in range(10_000):
        buckets.take(f"many {number}")
        assert len(buckets) <= 100


# Addresses.

PROXIES = ("10.0.0.0/8", "2001:db8:ffff::1")


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", b"198.51.100.7", "192.0.2.1"),
        ("10.1.2.3", None, "10.1.2.3"),
        ("10.1.2.3", b"198.51.100.7", "198.51.100.7"),
        ("10.1.2.3", b" 198.51.100.7 ", "198.51.100.7"),
        ("10.1.2.3", b"1.1.1.1, 198.51.100.7", "198.51.100.7"),
        ("10.1.2.3", b"1.1.1.1, 198.51.100.7, 10.9.9.9", "198.51.100.7"),
        ("10.1.2.3", b"10.0.0.7, 10.0.0.8", "10.0.0.7"),
        ("10.1.2.3", b"198.51.100.7:4711", "198.51.100.7"),
        ("10.1.2.3", b"[2001:db8::7]:80", "2001:db8::/64"),
        ("10.1.2.3", b"198.51.100.7, unknown", "10.1.2.3"),
        ("10.1.2.3", b"198.51.100.7, unknown, 10.9.9.9", "10.9.9.9"),
        ("10.1.2.3", b"", "10.1.2.3"),
        ("10.1.2.3", b"\xff\x00,", "10.1.2.3"),
        ("::ffff:10.1.2.3", b"198.51.100.7", "198.51.100.7"),
        ("::ffff:192.0.2.1", b"198.51.100.7", "192.0.2.1"),
        ("2001:db8:ffff::1", b"2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:3::4", None, "2001:db8:1:2::/64"),
        ("2001:db8:1:2:aaaa::9", None, "2001:db8:1:2::/64"),
        ("2001:db8:1:3:aaaa::9", None, "2001:db8:1:3::/64"),
        ("fe80::1%eth0", None, "fe80::/64"),
    ],
)
def test_client_is_found_behind_trusted_proxies(peer: str, forwarded: bytes | None, expected: str) -> None:
    """The client is the right-most address that is not a trusted proxy; if all are, the left-most address. If the entry
    that a trusted proxy wrote is not an address, the client is this proxy. An IPv6 client is named by its /64 network.
    """
    assert ClientAddresses(PROXIES).name_of_client(peer, forwarded) == expected


def test_forwarded_header_is_ignored_without_trusted_proxies() -> None:
    assert ClientAddresses(()).name_of_client("10.1.2.3", b"198.51.100.7") == "10.1.2.3"


def test_forwarded_addresses_are_read_up_to_a_limit() -> None:
    hops = b",".join([b"198.51.100.7"] + [b"10.0.0.1"] * 100_000)
    assert ClientAddresses(PROXIES).name_of_client("10.1.2.3", hops) == "10.0.0.1"
    hops = b",".join([b"198.51.100.7"] + [b"10.0.0.1"] * (FORWARDED_MAX - 1))
    assert ClientAddresses(PROXIES).name_of_client("10.1.2.3", hops) == "198.51.100.7"
