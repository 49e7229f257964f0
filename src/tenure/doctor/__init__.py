"""`tenure doctor`: checks an installation for problems, and prints how to solve each. It changes nothing.

`examine.py` runs the checks, each with a time limit. A check is one function: it takes the `Patient` and returns what
it found. `docs/doctor.md` has a section for every code.
"""
