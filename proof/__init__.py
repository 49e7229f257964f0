"""Proof under fire: starts a real ensemble, hurts it for as long as asked, and checks every promise.

`python -m proof` is the command; docs/reliability.md describes it. The order of the modules is the order of a run:
`plan` (what is asked), `ensemble` (processes), `network` (links that can break), `clients` (load), `faults`, `history`
(what clients saw) and `tables` (what the database holds at the end), `checks` (one promise per file), `report`.
`planted` breaks a copy of the source on purpose, to show that the checks notice it.
"""
