"""`tenure bench`: sends a limited load to a running service, and measures the latencies.

`connections.py` is a small HTTP client that needs little CPU time, so that the measurement shows the speed of the
service, not of the client. `latencies.py` counts durations. `run.py` sends the load, and ends the sessions that it
opened.
"""
