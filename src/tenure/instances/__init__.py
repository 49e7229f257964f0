"""What each worker process reports to the database about itself: that it is alive, and its counts."""
