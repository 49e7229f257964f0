"""PostgreSQL, from version 14 on."""
