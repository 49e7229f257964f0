"""Combines requests into batches, and retries requests while another transaction holds their row."""
