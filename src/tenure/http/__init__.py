"""The HTTP API: thin translations between requests and the parts below."""
