"""What happened to sessions, for other systems: the feed, and deliveries to gateways."""
