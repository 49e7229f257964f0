"""What the tests share: databases, clocks, running instances."""
