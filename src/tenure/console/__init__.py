"""The console: static files, and the one route that serves them."""
