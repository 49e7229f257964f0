"""`tenure receiver`: accepts deliveries, verifies signatures, counts every key once, and fails as configured.

- `server.py` listens, serves connections and stops on a signal; `messages.py` reads and writes HTTP/1.1.
- `receiver.py` handles a request. `faults.py` selects the fault of a delivery, `fault_playback.py` plays it.
- `recorder.py` commits deliveries in batches to the SQLite file of `ledger.py`. `usage.py` sums the usage in a body,
  and `events.py` reads the events in a body.
"""
