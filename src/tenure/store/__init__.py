"""The database of Tenure: one contract and three engines. No module outside this package sends SQL to it."""
