"""`tenure doctor`: checks an installation for problems, and prints how to solve each. It changes nothing.

`examine.py` runs the checks, each with a time limit. A check is one function: it takes the `Patient`, which is the
installation, and returns its findings. `docs/doctor.md` has a section for every code of a finding.
"""
