"""Read positions on their way to the database: for one topic of one subject, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from .ports import Seen, Store

__all__ = ["Marking"]


class _Write:
    """A write that has not begun, and all who wait for it."""

    __slots__ = ("done", "seq")

    def __init__(self) -> None:
        self.seq = 0
        self.done: asyncio.Future[Seen | None] = asyncio.get_running_loop().create_future()


class Marking:
    """
    Moves read positions.

    While one is being written, all others of that subject and topic wait for a single
    further write: positions only move forward, so the furthest serves them all.

    Args:
        store: Where positions are kept.
        spawn: Runs the tasks that write.
        moved: Told of each position that was written.

    """

    def __init__(
        self,
        store: Store,
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        moved: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._spawn = spawn
        self._moved = moved
        self._writing: set[tuple[str, str]] = set()
        self._waiting: dict[tuple[str, str], _Write] = {}

    async def mark(self, subject: str, topic_id: str, seq: int) -> Seen | None:
        """
        Move a subject's read position to ``seq`` or further.

        Cancelling it takes nothing back. Returns None if there is no such topic.

        Raises:
            StoreError: If the database can't be written.
            LivetreeError: What the store refuses with.

        """
        key = subject, topic_id
        if (write := self._waiting.get(key)) is None:
            write = self._waiting[key] = _Write()
        write.seq = max(write.seq, seq)
        if key not in self._writing:
            self._writing.add(key)
            self._spawn(self._write(key), "read position")
        return await asyncio.shield(write.done)

    async def _write(self, key: tuple[str, str]) -> None:
        try:
            while (write := self._waiting.pop(key, None)) is not None:
                try:
                    seen = await self._store.mark_read(*key, write.seq)
                except Exception as error:
                    write.done.set_exception(error)
                    write.done.exception()  # read here, in case nobody waits any more
                else:
                    if seen is not None:
                        self._moved(*key)
                    write.done.set_result(seen)
        finally:
            self._writing.discard(key)

    def __repr__(self) -> str:
        return f"<Marking writing={len(self._writing)} waiting={len(self._waiting)}>"
