"""Time and chance in a test's hands."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable

__all__ = ["FakeClock", "FakeRandom", "settle"]

ROUNDS = 40
"""How often the event loop turns until everything that can run has run."""


async def settle() -> None:
    """Let all tasks run until they wait for something that only the test can give them."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


class _FakeTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """A clock that stands still; see `livetree.entropy.Clock`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now = 0.0
        self._start_ms = now_ms
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _FakeTimer]] = []

    def monotonic(self) -> float:
        """Return the seconds that have been let pass."""
        return self._now

    def now_ms(self) -> int:
        """Return the same in milliseconds, from the start on."""
        return self._start_ms + round(self._now * 1000)

    def call_later(self, delay: float, callback: Callable[[], None]) -> _FakeTimer:
        """Call back when that much time has been let pass."""
        timer = _FakeTimer(callback)
        heapq.heappush(self._timers, (self._now + delay, next(self._order), timer))
        return timer

    async def elapse(self, seconds: float) -> None:
        """Let time pass: what falls due happens in order, and everything settles between."""
        await settle()
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            self._now, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
                await settle()
        self._now = until
        await settle()

    @property
    def due(self) -> list[float]:
        """In how many seconds something falls due, the next first."""
        return sorted(at - self._now for at, _, timer in self._timers if timer.callback)

    def __repr__(self) -> str:
        return f"<FakeClock {self._now:.3f} s, {len(self.due)} timers>"


class FakeRandom:
    """Random bytes that are the same for the same seed; in place of `os.urandom`."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._random = random.Random(seed)

    def __call__(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def __repr__(self) -> str:
        return f"FakeRandom(seed={self.seed})"
