"""
The live list of topics: who watches it is told what changed in it.

One task reads the database and tells the watchers, so what anyone is told is never
older than what it was told before. Changes that come while it reads are told together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from livetree.core import protocol as p
from msgspec import Struct

from .listing import Allowed, entries_of, frames_of, page
from .ports import Store, Subscriber, TopicRow

__all__ = ["ROUND_SECONDS", "Watcher", "Watching"]

log = logging.getLogger("livetree.topics")

ROUND_SECONDS: Final = 0.1
"""The least time from one round of telling to the next; what comes meanwhile is gathered."""

RETRY_SECONDS: Final = 1.0
"""How soon it is tried again when the database couldn't be read."""

CHANGED_AT_ONCE: Final = 200
"""How many topics that changed are told in one round."""

WHOLE_AT_ONCE: Final = 50
"""How many watchers are told the whole list in one round: the others wait for it too."""


class Watcher(Struct, frozen=True, eq=False):
    """
    A connection that watches the list.

    Args:
        connection: Where it is told.
        subject: Whose read positions it sees.
        allowed: Whether a topic may be seen there.
        limit: How many topics the whole list's frame has.

    """

    connection: Subscriber
    subject: str
    allowed: Allowed
    limit: int


class Watching:
    """
    Everyone who watches the list, and what they are still to be told.

    A watcher is told the whole list first, then what changes. One that reads too slowly,
    or that missed something while the database couldn't be read, is told the whole again.
    However often a connection asks, it is told the whole list once a round.

    Args:
        store: The truth.
        spawn: Runs the task that tells them.

    """

    def __init__(
        self, store: Store, spawn: Callable[[Coroutine[Any, Any, None], str], None]
    ) -> None:
        self._store = store
        self._spawn = spawn
        self._watchers: dict[Subscriber, Watcher] = {}
        # In the order in which they are told: who asks again waits behind the others.
        self._behind: dict[Subscriber, None] = {}
        self._changed: dict[str, None] = {}
        self._read: dict[str, dict[str, None]] = {}
        self._running = False
        self._closed = False
        self._told_at = 0.0

    def watch(self, watcher: Watcher) -> None:
        """Tell a connection the whole list, and from then on what changes."""
        if not watcher.connection.closed and not self._closed:
            self._watchers[watcher.connection] = watcher
            self._behind.pop(watcher.connection, None)
            self._behind[watcher.connection] = None
            self._wake()

    def forget(self, connection: Subscriber) -> None:
        """Tell a connection no more, not even what is being read for it now."""
        self._watchers.pop(connection, None)
        self._behind.pop(connection, None)

    def close(self) -> None:
        """Tell nobody anything any more."""
        self._closed = True
        self._watchers.clear()
        self._behind.clear()

    def changed(self, topic_id: str) -> None:
        """Take note that a topic's entry has changed, has come or has gone."""
        if self._watchers:
            self._changed[topic_id] = None
            self._wake()

    def read(self, subject: str, topic_id: str) -> None:
        """Take note that a subject has read on."""
        if self._watchers:
            self._read.setdefault(subject, {})[topic_id] = None
            self._wake()

    def reads_again(self, connection: Subscriber) -> None:
        """Take note that a connection has room for what it wasn't told."""
        if connection in self._behind:
            self._wake()

    # Telling ----------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._running:
            self._running = True
            self._spawn(self._tell_all(), "topic list")

    async def _tell_all(self) -> None:
        now = asyncio.get_running_loop().time
        try:
            while self._watchers and (self._changed or self._read or self._due()):
                await asyncio.sleep(max(0.0, self._told_at + ROUND_SECONDS - now()))
                try:
                    await self._tell()
                except Exception as error:
                    log.warning("the list of topics can't be told: %r", error)
                    # What was to be told is not known any more: all are told the whole.
                    self._behind |= dict.fromkeys(self._watchers)
                    await asyncio.sleep(RETRY_SECONDS)
                self._told_at = now()
        finally:
            self._running = False
            self._changed.clear()
            self._read.clear()

    def _due(self) -> list[Watcher]:
        return [self._watchers[each] for each in self._behind if each.writable]

    async def _tell(self) -> None:
        """Tell each watcher what it is to be told now; who reads slowly gets the whole later."""
        for watcher in self._due()[:WHOLE_AT_ONCE]:
            if self._is_there(watcher):
                # Before the database is read: what changes from here on is told after it.
                self._behind.pop(watcher.connection, None)
                frame = await self._whole(watcher)
                self._send([watcher], frame)
        changed = list(self._changed)[:CHANGED_AT_ONCE]
        for topic_id in changed:
            del self._changed[topic_id]
        read, self._read = self._read, {}
        rows = await self._store.listed(changed) if changed else []
        by_subject: dict[str, list[Watcher]] = {}
        for watcher in self._watchers.values():
            if not watcher.connection.writable:
                self._behind[watcher.connection] = None
            elif watcher.connection not in self._behind:
                by_subject.setdefault(watcher.subject, []).append(watcher)
        for subject, watchers in by_subject.items():
            await self._tell_changed(subject, watchers, changed, rows)
            await self._tell_read(subject, watchers, read.get(subject, {}))

    async def _whole(self, watcher: Watcher) -> p.Topics:
        rows, cursor = await page(
            self._store, watcher.allowed, cursor=None, limit=watcher.limit, name=""
        )
        entries = await entries_of(self._store, watcher.subject, rows)
        return p.Topics(whole=True, topics=entries, next=cursor)

    async def _tell_changed(
        self, subject: str, watchers: list[Watcher], changed: list[str], rows: list[TopicRow]
    ) -> None:
        shown = [row for row in rows if any(watcher.allowed(row.topic_id) for watcher in watchers)]
        there = {row.topic_id for row in rows}
        entries = {entry.id: entry for entry in await entries_of(self._store, subject, shown)}
        alike: dict[tuple[str, ...], list[Watcher]] = {}
        for watcher in watchers:
            if visible := tuple(filter(watcher.allowed, changed)):
                alike.setdefault(visible, []).append(watcher)
        for visible, those in alike.items():
            # What went between the two readings is told with its own change.
            gone = [each for each in visible if each not in there]
            if gone:
                self._send(those, p.Topics(whole=False, topics=[], gone=gone))
            mine = [row for row in shown if row.topic_id in visible and row.topic_id in entries]
            for some in frames_of(mine):
                told = [entries[row.topic_id] for row in some]
                self._send(those, p.Topics(whole=False, topics=told))

    async def _tell_read(
        self, subject: str, watchers: list[Watcher], topic_ids: dict[str, None]
    ) -> None:
        visible = [each for each in topic_ids if any(whose.allowed(each) for whose in watchers)]
        seen = await self._store.seen(subject, visible) if visible else {}
        for topic_id, each in seen.items():
            those = [watcher for watcher in watchers if watcher.allowed(topic_id)]
            frame = p.ReadPosition(topic=topic_id, read_seq=each.read_seq, unread=each.unread)
            self._send(those, frame)

    def _send(self, watchers: list[Watcher], frame: p.Topics | p.ReadPosition) -> None:
        encoded = p.encode(frame)
        for watcher in watchers:
            if not self._is_there(watcher):
                continue
            if watcher.connection.writable:
                watcher.connection.send(encoded)
            else:
                self._behind[watcher.connection] = None

    def _is_there(self, watcher: Watcher) -> bool:
        """Tell whether it still watches, and has not asked anew while the database was read."""
        return self._watchers.get(watcher.connection) is watcher

    def statistics(self) -> dict[str, int]:
        """Return figures for tests, logs and the console."""
        return {"watchers": len(self._watchers), "watchersBehind": len(self._behind)}

    def __repr__(self) -> str:
        return f"<Watching {self.statistics()}>"
