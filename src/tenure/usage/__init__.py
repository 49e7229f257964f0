"""Usage: what sessions lived, as it is billed."""
