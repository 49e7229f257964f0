"""`tenure bench`: loads a running service within limits, and measures it.

`connections.py` is a small HTTP client that costs little, so that the measurement is about the service. `latencies.py`
counts durations. `run.py` sends the load, and ends the sessions that it opened.
"""
