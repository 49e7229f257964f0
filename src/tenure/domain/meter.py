"""Computes usage from billable time, in whole millionths and without floats.

The usage of a session is the factor of its kind, multiplied by its billable time, divided by 30 days. The running total
of a session is its usage since the start of the era. The usage of the session in a window is the rounded running total
at the end of the window minus the rounded running total at the start of the window. So the sum over all windows of an
era is the usage of the session in that era, rounded once. The number of windows makes no difference. The usage in a
window is never negative, because a running total never decreases.

To sum many sessions, PostgreSQL and SQL Server do the same arithmetic in SQL, and SQLite calls `usage_of` from SQL.
Conformance tests compare the results.
"""

PERIOD_MICROSECONDS = 30 * 24 * 3600 * 1_000_000
MILLIONTHS = 1_000_000
DECIMALS = 6

_DIVISOR = PERIOD_MICROSECONDS
"""Usage in millionths = factor in millionths * microseconds / divisor."""


def usage_of(microseconds: int, factor_millionths: int) -> int:
    """Return the usage in millionths, rounded half to even."""
    whole, rest = divmod(factor_millionths * microseconds, _DIVISOR)
    # Round up if the rest is more than half of the divisor, or if it is exactly half and `whole` is odd. `2 * rest` and
    # the divisor are even, so the 1 that an odd `whole` adds changes the comparison only if the rest is exactly half.
    return whole + (2 * rest + (whole & 1) > _DIVISOR)


def usage_between(before_microseconds: int, total_microseconds: int, factor_millionths: int) -> int:
    """Return the usage of a session in a window.

    Both times are billable times of the session since the start of the era: `before_microseconds` up to the window's
    start, `total_microseconds` up to the window's end.
    """
    return usage_of(total_microseconds, factor_millionths) - usage_of(before_microseconds, factor_millionths)


def decimal_text(millionths: int) -> str:
    """Format an amount as a JSON number, without an exponent or trailing zeros."""
    whole, rest = divmod(abs(millionths), MILLIONTHS)
    sign = "-" if millionths < 0 else ""
    return f"{sign}{whole}.{rest:0{DECIMALS}}".rstrip("0").rstrip(".")
