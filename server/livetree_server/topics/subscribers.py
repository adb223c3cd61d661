"""
Who watches a topic, and how each of them gets what it misses.

A subscriber either hears everything as it is published, or is *behind* at a position
that it has for certain. Opening, resuming and reading too slowly are the same: what is
missing after the position is sent, and then it joins, with nothing in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from livetree.core import protocol as p

from .ports import Fanout, Store, Subscriber
from .reading import log_since
from .room import Position, Room, slim_frame

__all__ = ["Subscribers"]

CATCH_UP_PAGE: Final = 32
"""How many missed deltas are read at once; what doesn't fit the buffer is read again."""


class Subscribers:
    """
    The subscribers of one topic.

    Args:
        topic_id: The topic.
        store: Where missed deltas are read.
        fanout: Where subscribers join that are up to date.
        spawn: Runs what must not hold the topic up.
        catch_up_soon: Has `catch_up` called for a subscriber, in the topic's order.

    """

    def __init__(
        self,
        topic_id: str,
        store: Store,
        fanout: Fanout,
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        catch_up_soon: Callable[[Subscriber], None],
    ) -> None:
        self._topic_id = topic_id
        self._store = store
        self._fanout = fanout
        self._spawn = spawn
        self._catch_up_soon = catch_up_soon
        self._all: set[Subscriber] = set()
        self._behind: dict[Subscriber, Position] = {}
        self._sending: dict[Subscriber, Position] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def behind(self) -> int:
        """How many are not up to date."""
        return len(self._behind)

    def is_behind(self, subscriber: Subscriber) -> bool:
        """Tell whether it waits to be caught up."""
        return subscriber in self._behind

    def add(self, subscriber: Subscriber, position: Position) -> None:
        """Take a subscriber in, as one that has what is at this position."""
        self._fanout.leave(self._topic_id, subscriber)
        self._all.add(subscriber)
        self._behind[subscriber] = position
        subscriber.topics.add(self._topic_id)

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a subscriber."""
        self._fanout.leave(self._topic_id, subscriber)
        self._all.discard(subscriber)
        self._behind.pop(subscriber, None)
        subscriber.topics.discard(self._topic_id)

    def lagging(self, subscriber: Subscriber, position: Position) -> None:
        """Note that a subscriber has what is published so far, and gets no more for now."""
        if subscriber in self._all:
            self._behind[subscriber] = position

    def end(self, reason: str) -> None:
        """Tell everyone that the topic is gone, and forget them."""
        gone = p.encode(p.Gone(topic=self._topic_id, reason=reason))
        for subscriber in list(self._all):
            self.remove(subscriber)
            subscriber.send(gone)

    def start_over(self) -> list[Subscriber]:
        """Void everyone's position: the history that they have is not the database's."""
        for subscriber in self._all:
            self._fanout.leave(self._topic_id, subscriber)
            # No commit has this id, so the snapshot will be marked as a reset.
            self._behind[subscriber] = Position(0, "", {})
        return list(self._all)

    async def catch_up(self, room: Room, subscriber: Subscriber) -> None:
        """
        Send what a subscriber misses; it joins once it has everything.

        With a full buffer it stays behind; when it has drained, this is called again.

        Raises:
            StoreError: If the database can't be read; the subscriber stays behind.

        """
        at = self._behind.get(subscriber)
        if at is None or self._sending.get(subscriber) is at:
            return
        if subscriber.closed:
            self.remove(subscriber)
            return
        while subscriber.writable:
            missed = await log_since(room, at.seq, at.commit, self._store, limit=CATCH_UP_PAGE)
            if self._behind.get(subscriber) is not at:
                return  # its connection has ended meanwhile
            if missed is None:
                await self._send_snapshot(room, subscriber, reset=at.commit is not None)
                return
            if not missed:
                self._send_rest(room, subscriber, at)
                return
            at = self._behind[subscriber] = _send_deltas(subscriber, missed, at)

    def _send_rest(self, room: Room, subscriber: Subscriber, at: Position) -> None:
        for frame in room.streams_since(at.streams):
            subscriber.send(frame)
        subscriber.send(room.synced())
        if subscriber.writable:
            del self._behind[subscriber]
            self._fanout.join(self._topic_id, subscriber)
        else:
            # What was just sent has filled its buffer: it is up to date, and waits.
            self._behind[subscriber] = room.position

    async def _send_snapshot(self, room: Room, subscriber: Subscriber, *, reset: bool) -> None:
        if cold := room.cold_page():
            room.hold(await self._store.contents(self._topic_id, cold))
            if subscriber not in self._behind:
                return  # its connection has ended meanwhile
        # From here to the capture nothing waits: one step, one state.
        chunks = room.snapshot(reset=reset)
        position = self._behind[subscriber] = room.position
        if len(chunks) == 1:
            subscriber.send(p.encode(chunks[0]))
            self._send_rest(room, subscriber, position)
            return
        self._sending[subscriber] = position
        work = self._send_chunks(subscriber, chunks, position)
        self._spawn(work, f"snapshot of {self._topic_id}")

    async def _send_chunks(
        self, subscriber: Subscriber, chunks: list[p.Snapshot], position: Position
    ) -> None:
        """Send a large snapshot at the reader's pace, beside the topic's work."""
        try:
            for chunk in chunks:
                await subscriber.wait_writable()
                if subscriber.closed or self._behind.get(subscriber) is not position:
                    return  # gone, or opened anew
                subscriber.send(p.encode(chunk))
                await asyncio.sleep(0)
        finally:
            if self._sending.get(subscriber) is position:
                del self._sending[subscriber]
        self._catch_up_soon(subscriber)


def _send_deltas(subscriber: Subscriber, missed: list[bytes], at: Position) -> Position:
    """Send as many deltas as fit; returns the position after the last of them."""
    for frame in missed:
        if not subscriber.writable:
            break
        delta = p.decode_frame(frame)
        assert isinstance(delta, p.Delta)
        subscriber.send(slim_frame(delta) if len(frame) > p.LARGE_DELTA_BYTES else frame)
        at = Position(delta.seq, delta.commit, at.streams)
    return at
