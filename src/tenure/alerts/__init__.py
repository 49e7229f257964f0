"""Alerts: the job that raises and clears them, their delivery, and the metrics of the whole installation."""
