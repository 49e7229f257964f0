"""Counts durations in little memory. Each duration is rounded up to three significant digits, so a percentile is at
most 1 % too high.
"""

from collections import Counter

DIGITS = 3
MICROSECONDS = 1_000_000


class Latencies:
    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        """By number of microseconds: how many durations were rounded to this number."""
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        self.counts[_rounded(round(seconds * MICROSECONDS))] += 1
        self.count += 1
        self.longest = max(self.longest, seconds)

    def merge(self, other: "Latencies") -> None:
        self.counts.update(other.counts)
        self.count += other.count
        self.longest = max(self.longest, other.longest)

    def percentile(self, share: float) -> float | None:
        """Return the duration in seconds that this share of all durations does not exceed; None if there are none."""
        wanted = share * self.count
        seen = 0
        for microseconds, count in sorted(self.counts.items()):
            seen += count
            if seen >= wanted:
                return microseconds / MICROSECONDS
        return None


def _rounded(microseconds: int) -> int:
    """Round up to DIGITS significant digits."""
    unit: int = 10 ** max(0, len(str(microseconds)) - DIGITS)
    return -(-microseconds // unit) * unit
