"""The HTTP API: converts requests to calls of the other packages, and their results to responses."""
