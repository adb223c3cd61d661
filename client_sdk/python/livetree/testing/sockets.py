"""Sockets without a network, turned by hand."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec

from ..transport import Socket, SocketClosed

__all__ = ["HandCrankedSocket", "HandCrankedTransport"]


class HandCrankedSocket:
    """
    A client's socket whose other end is the test.

    Attributes:
        sent: The frames that the client has sent and the test hasn't taken.
        closed: How it was closed, by either side.

    """

    def __init__(self) -> None:
        self.sent: deque[str] = deque()
        self.closed: SocketClosed | None = None
        self._inbox: deque[str] = deque()
        self._arrived = asyncio.Event()
        self._may_send = asyncio.Event()
        self._may_send.set()

    # The client's end

    async def send(self, text: str) -> None:
        """Hand a frame to the test."""
        await self._may_send.wait()
        if self.closed is not None:
            raise self.closed
        self.sent.append(text)
        self.heard(text)

    async def recv(self) -> str:
        """Wait for the test."""
        while not self._inbox:
            if self.closed is not None:
                raise self.closed
            self._arrived.clear()
            await self._arrived.wait()
        return self._inbox.popleft()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close it from the client's end."""
        self.drop(code, reason)

    # The test's end

    def heard(self, text: str) -> None:
        """Take note of a frame from the client; for those who answer by themselves."""

    def push(self, frame: msgspec.Struct | dict[str, Any] | str) -> None:
        """Send the client a frame."""
        if self.closed is None:
            text = frame if isinstance(frame, str) else msgspec.json.encode(frame).decode()
            self._inbox.append(text)
            self._arrived.set()

    def take(self) -> list[dict[str, Any]]:
        """Return what the client has sent since the last time, as JSON objects."""
        taken = [msgspec.json.decode(text) for text in self.sent]
        self.sent.clear()
        return taken

    def drop(self, code: int = 1006, reason: str = "") -> None:
        """End the connection; what was pushed before is still received."""
        if self.closed is None:
            self.closed = SocketClosed(code, reason)
            self._arrived.set()
            self._may_send.set()

    def stall(self) -> None:
        """Let the client's frames pile up, as on a full network."""
        self._may_send.clear()

    def __repr__(self) -> str:
        return f"<HandCrankedSocket {self.closed or 'open'} sent={len(self.sent)}>"


class HandCrankedTransport:
    """
    Opens hand-cranked sockets.

    Attributes:
        sockets: All that were opened, the newest last.
        failures: What the next calls raise, in order, before sockets are opened again.

    """

    def __init__(self) -> None:
        self.sockets: list[HandCrankedSocket] = []
        self.failures: deque[Exception] = deque()
        self.urls: list[str] = []

    async def open(self, url: str) -> Socket:
        """Open a socket, or fail as told."""
        self.urls.append(url)
        if self.failures:
            raise self.failures.popleft()
        socket = HandCrankedSocket()
        self.sockets.append(socket)
        return socket

    @property
    def socket(self) -> HandCrankedSocket:
        """The newest socket."""
        return self.sockets[-1]

    def __repr__(self) -> str:
        return f"<HandCrankedTransport opened={len(self.sockets)}>"
