"""The reports of a worker process to the database: that the process is alive, and what it has counted."""
