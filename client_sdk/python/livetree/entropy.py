"""What the SDK takes from the machine: time and chance. All else is decided without them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Protocol

from .core.ids import uuid7

__all__ = ["Clock", "Entropy", "SystemClock", "Timer", "sleep"]


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Call it off; without effect when it has been made."""


class Clock(Protocol):
    """Where the SDK reads time; `livetree.testing.FakeClock` is one that a test moves."""

    def monotonic(self) -> float:
        """Return seconds from some moment on, never fewer than before."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, UTC."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call back once, after `delay` seconds, between two steps of the event loop."""


class SystemClock:
    """The clock of this machine and of the running event loop."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)

    def __repr__(self) -> str:
        return "SystemClock()"


class Entropy:
    """
    Where ids and jitter come from.

    Args:
        clock: The time in the ids.
        random_bytes: Makes that many random bytes.

    """

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock
        self._random_bytes = random_bytes

    def new_id(self) -> str:
        """Make an id for a message, a topic or a mutation (UUIDv7)."""
        return uuid7(self._clock.now_ms(), self._random_bytes(10))

    def fraction(self) -> float:
        """Return a number from 0 up to, but never, 1."""
        return int.from_bytes(self._random_bytes(6), "big") / 2**48


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait by a clock; cancelling ends the wait and leaves nothing behind."""
    over = asyncio.Event()
    timer = clock.call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()
