"""A clock in a hurry: clients that would wait seconds between two tries wait milliseconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

HURRY = 50.0


class Hurried:
    """
    The machine's clock, for which a second has twenty milliseconds.

    Only the time of the day is right: it is in ids.

    """

    def monotonic(self) -> float:
        return time.monotonic() * HURRY

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay / HURRY, callback)


HOURS = 3_600.0 * HURRY
"""So that a busy machine is not taken for a dead one."""
