"""The reads that all engines share, as SQLAlchemy Core."""
