"""The meter: from time lived to usage, in whole millionths and without a float.

A session's usage is its kind's factor, times the time it lived, by 30 days. What a window is billed is the running
total at its end, rounded, minus the running total at its beginning, rounded: so the windows of an era add up to the
session's whole usage in it, rounded once, however many cuts there were. None is negative: a total never shrinks.

The engines do the same arithmetic where they add up many sessions; conformance tests compare.
"""

PERIOD_MICROSECONDS = 30 * 24 * 3600 * 1_000_000
MILLIONTHS = 1_000_000
DECIMALS = 6

_DIVISOR = PERIOD_MICROSECONDS
"""Millionths of a factor, times microseconds, by this: millionths of usage."""


def usage_of(microseconds: int, factor_millionths: int) -> int:
    """Millionths, rounded half even."""
    whole, rest = divmod(factor_millionths * microseconds, _DIVISOR)
    return whole + (2 * rest + (whole & 1) > _DIVISOR)


def usage_between(before_microseconds: int, total_microseconds: int, factor_millionths: int) -> int:
    """What is billed for a window: lived in its era before it began, and until it ended."""
    return usage_of(total_microseconds, factor_millionths) - usage_of(before_microseconds, factor_millionths)


def decimal_text(millionths: int) -> str:
    """As a JSON number: no exponent, no zeros at the end."""
    whole, rest = divmod(abs(millionths), MILLIONTHS)
    sign = "-" if millionths < 0 else ""
    return f"{sign}{whole}.{rest:0{DECIMALS}}".rstrip("0").rstrip(".")
