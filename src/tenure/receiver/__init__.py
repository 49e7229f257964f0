"""`tenure receiver`: takes deliveries, checks signatures, counts every key once, and fails as it is told."""
