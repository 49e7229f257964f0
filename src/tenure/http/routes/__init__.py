"""The routes, one resource a file, each with its JSON shapes."""
