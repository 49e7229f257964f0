"""What each worker process reports to the database about itself: that it is there, and what it has counted."""
