"""One connection's way out: framed bytes into a bounded send buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from websockets.frames import Frame, Opcode

if TYPE_CHECKING:
    from .hub import Hub

__all__ = ["HIGH_WATER", "PING", "Connection", "framed"]

HIGH_WATER: Final = 256 * 1024
"""Bytes in a connection's send buffer beyond which it counts as slow."""

FLOOD: Final = 32 * 1024 * 1024
"""Bytes of unread answers beyond which a connection is cut at once."""

PING: Final = Frame(Opcode.PING, b"").serialize(mask=False)


def framed(text: bytes) -> bytes:
    """Put JSON text into a WebSocket text frame, as servers send it (RFC 6455 §5.2)."""
    return Frame(Opcode.TEXT, text).serialize(mask=False)


class Connection:
    """
    The sending half of a WebSocket; the gateway's protocol reports what its transport does.

    Args:
        transport: Where framed bytes go; its `write` never blocks.
        hub: Whose tables it stands in.
        now: The loop's time.

    """

    __slots__ = (
        "_hub",
        "_waiters",
        "closed",
        "heard_at",
        "id",
        "label",
        "paused_at",
        "subject",
        "topics",
        "transport",
    )

    def __init__(self, transport: asyncio.Transport, hub: Hub, now: float) -> None:
        self.transport = transport
        self.id = ""
        self.subject = ""
        self.label = ""
        self.topics: set[str] = set()
        self.closed = False
        self.heard_at = now
        self.paused_at: float | None = None
        self._hub = hub
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def writable(self) -> bool:
        """Whether the send buffer has room; a closed connection has none."""
        return self.paused_at is None and not self.closed

    @property
    def write(self) -> Callable[[bytes], None]:
        """Takes framed bytes; never waits."""
        return self.transport.write

    def send(self, text: bytes) -> None:
        """
        Send one frame to this connection alone; dropped if it has ended.

        Who has asked for more than `FLOOD` bytes without reading them is cut.

        """
        if self.closed:
            return
        if self.transport.get_write_buffer_size() > FLOOD:
            self.end()
            self.transport.abort()
        else:
            self.transport.write(framed(text))

    async def wait_writable(self) -> None:
        """Wait until the buffer has drained or the connection has ended."""
        while not self.writable and not self.closed:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def pause(self, now: float) -> None:
        """Note that the send buffer is over its bound."""
        if self.paused_at is None:
            self.paused_at = now
            self._hub.paused(self)

    def resume(self) -> None:
        """Note that the send buffer has drained."""
        if self.paused_at is not None:
            self.paused_at = None
            self._wake()
            self._hub.resumed(self)

    def end(self) -> None:
        """Note that nothing can be sent any more; from now on nobody tries."""
        if not self.closed:
            self.closed = True
            self._wake()
            self._hub.closed(self)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<Connection {self.id} {self.subject} topics={len(self.topics)}>"
