"""
The program with less patience, for tests that wait until it is at an end.

    python -m tests.faults.impatient SLOW_SECONDS=1 serve --port 0

What stands before the command are constants of the server and what they shall be instead.

"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from livetree_server.cli import main
from livetree_server.gateway import endpoint
from livetree_server.http import door
from livetree_server.hub import hub
from livetree_server.hub.connection import Connection

MODULES = (door, endpoint, hub)
TICK_SECONDS = 0.1


async def tick_often(self: hub.Hub, overloaded: Callable[[Connection], None]) -> None:
    while True:
        await asyncio.sleep(TICK_SECONDS)
        self.tick(asyncio.get_running_loop().time(), overloaded)


def shorten(name: str, value: float) -> None:
    """Give a constant another value, in the module that has it."""
    (module,) = [module for module in MODULES if hasattr(module, name)]
    setattr(module, name, value)


if __name__ == "__main__":
    hub.Hub.tick_for_ever = tick_often  # type: ignore[method-assign]
    while "=" in sys.argv[1]:
        name, _, value = sys.argv.pop(1).partition("=")
        shorten(name, float(value))
    main()
