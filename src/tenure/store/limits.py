"""Limits on what one transaction does, on how long a read may take, and on how long rows are kept."""

from datetime import timedelta

BATCH_MAX = 128
"""The most requests in one transaction. The answer to a write must fit into a socket buffer: PostgreSQL could not send
a larger answer to a paused instance, and no timeout would end the transaction, which would keep its locks."""
SWEEP_MAX = 500
"""The most sessions in a batch of the sweep or of evictions. So many fit into the answer, because it contains only
the id, reason and end of each."""
PRUNE_MAX = 1000
LEASE_HISTORY_KEPT = timedelta(days=30)
JOB_RUNS_KEPT = timedelta(days=7)
SUBMISSIONS_KEPT = timedelta(days=7)
"""For delivered or cancelled submissions. Failed submissions are kept until they are retried or cancelled."""
USAGE_KEPT = timedelta(days=400)
"""For windows, chunks and closed sessions."""
LONG_READ_SECONDS = 30
"""The time limit of reads whose cost grows with the table. They block no writer."""
AUDIT_SECONDS = 600
WINDOWS_MAX = 128
"""The most windows that are cut in one transaction."""
