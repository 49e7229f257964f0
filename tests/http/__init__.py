"""The HTTP API as clients see it, on every engine and in both lanes."""
