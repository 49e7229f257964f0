"""Jobs: what the ensemble does by itself, each on its grid of ticks and by one instance at a time."""
