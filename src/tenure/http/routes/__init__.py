"""The routes. Each module has the routes of one resource and their JSON structs."""
