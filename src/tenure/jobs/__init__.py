"""Jobs: recurring work. Each job has a grid of ticks, and only one instance at a time runs it."""
