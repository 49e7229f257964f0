"""The HTTP API as clients see it, on the hot lane and on the ordinary lane."""
