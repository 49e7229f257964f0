"""Usage: every instant of every session is billed exactly once, and every chunk arrived at the receiver.

The check computes the expected usage with fractions, and renders the expected chunks, with none of the service's code
for usage. So if the digest of each chunk that the receiver got equals the expected one, the usage of each session was
sent correctly for each window.
"""

from decimal import Decimal
from fractions import Fraction

from proof.checks.outcome import Findings, Outcome
from proof.history import History
from proof.plan import Plan
from proof.tables import Tables
from tests.support.expected_usage import (
    Chunk,
    Era,
    SessionSpan,
    UsageTables,
    WindowSpan,
    bill_windows,
    chunks_of,
    total_usage,
)


def check(_history: History, tables: Tables, _plan: Plan) -> Outcome:
    findings = Findings()
    usage = _usage_tables(tables)
    _windows(usage, findings)
    bills = bill_windows(usage)
    due = dict(chunk for window in usage.windows for chunk in chunks_of(bills.get(window.window_id, ()), window))
    windows = {window.window_id: window for window in usage.windows}
    saved = {
        f"{windows[row['window_id']].installation_id}-{row['window_id']}-{row['chunk']}": (
            row["sessions"],
            Decimal(row["usage_millionths"]).scaleb(-6),
        )
        for row in tables.usage_chunks
    }
    deliveries = tables.ledgers["usages"]["deliveries"]
    received = {row["key"]: Chunk(row["records"], Decimal(row["usage"] or 0), row["digest"]) for row in deliveries}
    for key in sorted({*due, *saved, *received}):
        chunk = due.get(key)
        billed = None if chunk is None else (chunk.records, chunk.usage)
        findings.expect(saved.get(key) == billed, f"chunk {key} was saved as {saved.get(key)}, and should be {billed}")
        findings.expect(
            received.get(key) == chunk, f"chunk {key} arrived as {received.get(key)}, and should be {chunk}"
        )
    (totals,) = tables.ledgers["usages"]["totals"]
    total, expected = Decimal(totals["usage"]), total_usage(usage)
    findings.expect(total == expected, f"the receiver counted {total}, and the sessions used {expected}")
    return findings.outcome()


def _windows(usage: UsageTables, findings: Findings) -> None:
    """Checks that each instant from the start of the oldest window to the last cut is in exactly one window."""
    ends = [usage.began_at, *(window.ended_at for window in usage.windows)]
    starts = [*(window.started_at for window in usage.windows), usage.last_cut_at]
    for end, start in zip(ends, starts, strict=True):
        findings.expect(end == start, f"windows have a gap or overlap: {end} should equal {start}")


def _usage_tables(tables: Tables) -> UsageTables:
    eras = [
        Era(row["started_at"], tuple(Fraction(row[f"factor_{kind}"], 1_000_000) for kind in (1, 2, 3)))  # type: ignore[arg-type]
        for row in sorted(tables.usage_eras, key=lambda row: row["era"])
    ]
    windows = [
        WindowSpan(row["window_id"], row["installation_id"], row["started_at"], row["ended_at"], eras[row["era"] - 1])
        for row in sorted(tables.usage_windows, key=lambda row: row["window_id"])
    ]
    sessions = [
        SessionSpan(
            row["session_id"],
            row["user_object_id"],
            row["tenant_object_id"],
            row["capacity_id"],
            row["kind"],
            row["started_at"],
            tables.ended_at(row),
        )
        for row in tables.sessions
    ]
    (installation,) = tables.installation
    return UsageTables(sessions, eras, windows, installation["usage_kept_from"], installation["last_cut_at"])
