"""Jobs: recurring work, each on its grid of ticks and run by one instance at a time."""
