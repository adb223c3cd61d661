"""
Who hears what: one table of fast subscribers a topic, and the workers.

A frame is framed once and the same bytes are written to everyone. A connection whose
send buffer fills leaves the tables at once; the rooms note where it is and catch it up
when it reads again, so nothing is queued for it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from livetree.core.protocol import Offer, encode

from ..globs import matches
from .connection import PING, Connection, framed

__all__ = ["Hub", "Listener"]

PING_SECONDS: Final = 20.0
SILENCE_SECONDS: Final = 60.0
SLOW_SECONDS: Final = 30.0


class OfferLike(Protocol):
    """A reply that waits for a worker."""

    @property
    def topic_id(self) -> str:
        """Its topic."""

    @property
    def message_id(self) -> str:
        """Its message."""

    @property
    def model(self) -> str | None:
        """The model that was asked for."""


class Hearer(Protocol):
    """Where a topic's frames go."""

    @property
    def closed(self) -> bool:
        """Whether it has ended."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Takes framed bytes; never waits."""


class Listener(Protocol):
    """Who is told when a subscriber falls behind or reads again."""

    def lagging(self, topic_id: str, subscriber: Connection) -> None:
        """Note where it is: it has everything published so far, and gets no more."""

    def drained(self, topic_id: str, subscriber: Connection) -> None:
        """Catch it up."""

    def ended(self, topic_id: str, subscriber: Connection) -> None:
        """Forget it: its connection has ended."""

    def reads_again(self, subscriber: Connection) -> None:
        """Tell it what it missed that is of no topic."""

    def closed(self, subscriber: Connection) -> None:
        """Forget it altogether."""


class Worker:
    """A connection that asked for offers."""

    def __init__(
        self, connection: Connection, patterns: Sequence[str], allowed: Callable[[str], bool]
    ) -> None:
        self.connection = connection
        self.allowed = allowed
        self._patterns = list(patterns)

    def serves(self, offer: OfferLike) -> bool:
        """Tell whether a pattern matches the offer's model; no model is matched by ``*``."""
        model = offer.model or ""
        return self.allowed(offer.topic_id) and any(
            matches(pattern, model) for pattern in self._patterns
        )


class Hub:
    """
    All connections of this process.

    Args:
        limit: How many connections there may be.

    """

    def __init__(self, *, limit: int = 20_000) -> None:
        self.limit = limit
        self.listener: Listener | None = None
        self.connections: set[Connection] = set()
        self._channels: dict[str, dict[Hearer, Callable[[bytes], None]]] = {}
        self._workers: dict[Connection, Worker] = {}

    # Fan-out --------------------------------------------------------------------------

    def join(self, topic_id: str, subscriber: Hearer) -> None:
        """Let a connection that is up to date hear what is published from now on."""
        if not subscriber.closed:
            channel = self._channels.setdefault(topic_id, {})
            channel[subscriber] = subscriber.write

    def leave(self, topic_id: str, subscriber: Hearer) -> None:
        """Let it hear no more."""
        channel = self._channels.get(topic_id)
        if channel is not None and channel.pop(subscriber, None) is not None and not channel:
            del self._channels[topic_id]

    def publish(self, topic_id: str, frames: Sequence[bytes]) -> None:
        """Write frames to all that joined: one write for each, the same bytes for all."""
        channel = self._channels.get(topic_id)
        if channel is None:
            return
        data = b"".join(map(framed, frames))
        # A copy: whoever's buffer this write fills leaves the table meanwhile.
        for write in list(channel.values()):
            write(data)

    def offered(self, offers: Sequence[OfferLike]) -> None:
        """Tell workers of new offers; the first to claim one wins it."""
        for worker in list(self._workers.values()):
            for offer in offers:
                if worker.serves(offer):
                    worker.connection.send(_offer(offer))

    def serve(
        self,
        connection: Connection,
        patterns: Sequence[str],
        allowed: Callable[[str], bool],
        open_offers: Sequence[OfferLike],
    ) -> None:
        """Make a connection a worker, and tell it what is open now; no patterns end that."""
        if connection.closed:
            return
        self._workers.pop(connection, None)
        if patterns:
            worker = self._workers[connection] = Worker(connection, patterns, allowed)
            for offer in open_offers:
                if worker.serves(offer):
                    connection.send(_offer(offer))

    # What the gateway reports -----------------------------------------------------------

    def opened(self, connection: Connection) -> bool:
        """Take a connection in; False if there are too many."""
        if len(self.connections) >= self.limit:
            return False
        self.connections.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        """Forget a connection everywhere: it has ended, if only for us."""
        if not connection.closed:
            connection.end()  # which comes back here
            return
        self.connections.discard(connection)
        self._workers.pop(connection, None)
        for topic_id in list(connection.topics):
            self.leave(topic_id, connection)
            if self.listener is not None:
                self.listener.ended(topic_id, connection)
        connection.topics.clear()
        if self.listener is not None:
            self.listener.closed(connection)

    def paused(self, connection: Connection) -> None:
        """Stop sending to a connection whose buffer is full."""
        for topic_id in connection.topics:
            channel = self._channels.get(topic_id)
            if channel is None or connection not in channel:
                continue
            self.leave(topic_id, connection)
            if self.listener is not None:
                self.listener.lagging(topic_id, connection)

    def resumed(self, connection: Connection) -> None:
        """Have a connection caught up that reads again."""
        for topic_id in list(connection.topics):
            if self.listener is not None:
                self.listener.drained(topic_id, connection)
        if self.listener is not None:
            self.listener.reads_again(connection)

    # Time -------------------------------------------------------------------------------

    def tick(self, now: float, overloaded: Callable[[Connection], None]) -> None:
        """
        Ping who is quiet, cut who is silent, and end who reads too slowly.

        Args:
            now: The loop's time.
            overloaded: Closes a connection that was over its bound for too long.

        """
        for connection in list(self.connections):
            quiet = now - connection.heard_at
            slow = connection.paused_at is not None and now - connection.paused_at
            if quiet > SILENCE_SECONDS:
                connection.transport.abort()
            elif slow and slow > SLOW_SECONDS:
                overloaded(connection)
            elif quiet > PING_SECONDS and connection.writable:
                connection.transport.write(PING)

    async def tick_for_ever(self, overloaded: Callable[[Connection], None]) -> None:
        """Tick every few seconds until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(5)
            self.tick(loop.time(), overloaded)

    def statistics(self) -> dict[str, int]:
        """Return figures over all connections."""
        return {
            "connections": len(self.connections),
            "slow": sum(connection.paused_at is not None for connection in self.connections),
            "topics": len(self._channels),
            "subscriptions": sum(len(channel) for channel in self._channels.values()),
            "workers": len(self._workers),
        }

    def __repr__(self) -> str:
        return f"<Hub {self.statistics()}>"


def _offer(offer: OfferLike) -> bytes:
    return encode(Offer(topic=offer.topic_id, message_id=offer.message_id, model=offer.model))
