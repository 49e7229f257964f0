"""Sessions: opening, renewing, ending and expiring them."""
