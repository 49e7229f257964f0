"""Fault injection: starts a real ensemble, injects faults for the given time, and checks every promise.

`python -m proof` is the command; docs/reliability.md describes it. These are the main modules, in the order in which a
run uses them: `plan` (the options), `ensemble` (processes), `network` (links that can break), `clients` (load),
`faults`, `history` (the requests and responses), `tables` (the rows in the database at the end), `checks` (one promise
per file), `report`. `planted` breaks a copy of the source on purpose, to show that the checks notice it.
"""
