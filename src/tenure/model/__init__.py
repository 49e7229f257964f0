"""The nouns of Tenure, as plain frozen records. No I/O, no SQL, no HTTP.

Durations are whole microseconds, instants are aware datetimes in UTC, ids are canonical strings.
"""
