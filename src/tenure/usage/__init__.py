"""Usage: measures how long sessions were live, and sends the amounts to a billing gateway."""
