"""Many requests, one transaction; and retries while another transaction holds a row."""
