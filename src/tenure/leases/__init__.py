"""Leases: acquire, renew and release the exclusive right of one instance to do some work."""
