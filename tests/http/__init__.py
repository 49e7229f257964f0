"""The HTTP edge, from outside: what a caller can rely on, on every engine and in both lanes."""
