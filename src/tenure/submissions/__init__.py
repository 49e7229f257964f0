"""Submissions: accepted by any instance, sent by one, at least once."""
