"""
The program: one module a command.

What a command needs is imported when it runs, so that the others start at once. Whatever
goes wrong becomes one sentence, in `program`.
"""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line, and end the process with its exit status."""
    try:
        from .program import INTERRUPTED, run
    except KeyboardInterrupt:  # while it was being loaded
        sys.exit(130)
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # while it was ending
        status = INTERRUPTED
    sys.exit(status)
