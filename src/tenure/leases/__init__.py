"""Leases: what only one instance may do, and how it knows that it still may."""
