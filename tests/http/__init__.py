"""The HTTP API as clients see it, on every engine, on the fast path (hot lane) and on the ordinary path."""
