"""Submissions: accepted anywhere, sent by one, lost never."""
