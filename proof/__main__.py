"""`python -m proof`."""

from proof.cli import main

main()
