"""`tenure demo`: a whole installation for a few minutes, with simulated users.

`installation.py` starts the service and a receiver in a temporary folder, and removes the folder at the end. `users.py`
simulates the users with the Python client. `story.py` reads from the service and the receiver what has happened, and
`cli/demo.py` shows it.
"""
