"""The database: one contract and three engines. No module outside this package uses SQL."""
