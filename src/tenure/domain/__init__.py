"""Domain records, and domain rules as pure functions: no I/O, no clock, no SQL."""
