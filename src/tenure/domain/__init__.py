"""The records of the domain, and its rules as pure functions: no I/O, no clock, no SQL."""
