"""Events of sessions for other systems: the feed, and deliveries to gateways."""
