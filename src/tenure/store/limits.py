"""Limits on the size of transactions and on the size and duration of reads, and the retention times of rows."""

from datetime import timedelta

BATCH_MAX = 128
"""The most requests in one transaction. The answer to a write must fit into a socket buffer: PostgreSQL could not send
a larger answer to a paused instance, and no timeout would end the transaction, which would keep its locks."""
SWEEP_MAX = 500
"""The most sessions in a batch of the sweep or of evictions. This limit is higher than BATCH_MAX, because the answer
contains little about each session."""
PRUNE_MAX = 1000
"""The most rows of each table that a batch of the job `prune` deletes. This limit does not count the attempts of
submissions: all attempts of a submission are deleted with it."""
LEASE_HISTORY_KEPT = timedelta(days=30)
JOB_RUNS_KEPT = timedelta(days=7)
SUBMISSIONS_KEPT = timedelta(days=7)
"""How long delivered or cancelled submissions are kept. Failed submissions are kept until they are retried or
cancelled."""
USAGE_KEPT = timedelta(days=400)
"""How long windows, chunks and closed sessions are kept. They are kept for longer while their own window or an earlier
one still has to be divided or delivered."""
SCAN_MAX = 5000
"""The most index entries that a page of sessions or events reads, of live and of closed sessions each, if no index
checks the whole filter of the page."""
LAPSE_LOOK_MAX = 1000
"""How many sessions a page of `GET /sessions?order=lapse` reads first, in the order of `check_at`. If a session with an
earlier deadline could be missing from the page then, LAPSE_SCAN_MAX sessions are read."""
LAPSE_SCAN_MAX = 10_000
"""The most sessions that a page of `GET /sessions?order=lapse` reads."""
COUNT_MAX = 20_000
"""The most sessions that a count with a filter checks, for live and for closed sessions each."""
UNSENT_SPANS_MAX = 10
"""A section of a session's history ends after at most this number of spans of windows that were cut without a
gateway."""
COUNTED_MAX = 50_000
"""The most submissions of one gateway and state that are counted."""
COUNTED_TOTAL = 80_000
"""How many submissions one request counts before its limit for each gateway and state falls to COUNTED_MIN. Pending and
failed submissions are counted first."""
COUNTED_MIN = 1_000
"""How many submissions of each gateway and state are counted even if COUNTED_TOTAL is used up."""
COUNTED_GATEWAYS_MAX = 50
"""Submissions are counted for at most this number of gateways: the first ones by name."""
LAPSES_MAX = 20_000
"""The most sessions waiting for the sweep that a page of events searches for lapses."""
AUDIT_LOG_KEPT = timedelta(days=400)
INSTANCES_KEPT = timedelta(days=1)
"""Counted from the time at which the instance was last seen."""
ACTIVITY_KEPT = timedelta(days=8)
ALERTS_KEPT = timedelta(days=90)
"""How long cleared alerts are kept. An active alert is not deleted."""
CHUNKS_WATCHED_MAX = 100
"""The most undelivered chunks of usage that the job `watch` reads. The job begins with the oldest windows."""
WINDOWS_WATCHED_MAX = 20
"""The most undelivered windows whose chunks the job `watch` reads."""
ENDS_WATCHED_MAX = 20_000
"""The most ends of sessions that the job `watch` counts. It counts the most recent ones."""
EPOCHS_WATCHED_MAX = 50
"""The most epochs of a lease that the job `watch` counts. It counts the most recent ones."""
LONG_READ_SECONDS = 30
"""The time limit of reads whose cost grows with the table. No writer waits for the end of such a read."""
AUDIT_SECONDS = 600
"""The time limit of each read that checks usage or sessions for `tenure audit`."""
WINDOWS_MAX = 128
"""The most windows that are cut in one transaction."""
MARK_KEYS_MAX = 50_000
"""The most rows of a mark of usage, which has one row for each combination of tenant, capacity and kind. A sum reads
the rows of two marks."""
IMPORT_BATCH_MAX = 500
"""The most sessions that one transaction imports. While it runs, other writes of sessions wait."""
MARK_BATCH_MAX = 1000
"""The most rows of a mark that one transaction saves or deletes."""
EDGE_SESSIONS_MAX = 5000
"""The most sessions that a quick sum of usage reads from one index for the part of its span before the first mark, and
for the part after the last one."""
USER_ENTRIES_MIN = 2000
"""A page of sums by user first reads a range of users with about this number of index entries, or more if the page is
large. If the range contains too few users, the page reads further ranges."""
USER_ROUNDS = 4
"""How many ranges of users a page of sums by user reads, one after the other, before it reads all remaining users."""
