"""Runs the program: ``python -m livetree_server.cli``."""

from . import main

main()
