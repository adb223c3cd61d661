"""The seam between the client and the network: sockets that carry text frames."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from .core.protocol import PROTOCOL

__all__ = ["Socket", "SocketClosed", "Transport", "WebSocketTransport", "endpoint_of"]

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""The largest frame taken from a server; snapshots come in chunks far below it."""

CLOSE_SECONDS: Final = 2.0
"""How long a peer may take to say good-bye."""

_SCHEMES: Final = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


class SocketClosed(Exception):
    """The connection is over; ``code`` is the close code, 1006 if there was none."""

    def __init__(self, code: int = 1006, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"closed with {self.code}" + (f" ({self.reason})" if self.reason else "")


class Socket(Protocol):
    """One open connection. Of each method at most one call waits at a time."""

    async def send(self, text: str) -> None:
        """Send a frame, waiting while the network is full. Raises `SocketClosed`."""

    async def recv(self) -> str:
        """Return the next frame. Cancelling loses none. Raises `SocketClosed`."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close it, within seconds whatever the peer does; a closed one may be closed again."""


class Transport(Protocol):
    """What opens sockets."""

    async def open(self, url: str) -> Socket:
        """Connect. Any exception counts as a failed try, after which the client tries again."""


class WebSocketTransport:
    """
    WebSockets over the network.

    Args:
        proxy: A proxy's URL; True takes the environment's, None connects directly.

    """

    def __init__(self, *, proxy: str | Literal[True] | None = None) -> None:
        self._proxy = proxy

    async def open(self, url: str) -> Socket:
        """Connect to a livetree endpoint; raises `ConnectionError` or another `OSError`."""
        try:
            connection = await connect(
                url,
                subprotocols=[PROTOCOL],  # type: ignore[list-item]
                # It costs more memory and time than it saves for frames of this size.
                compression=None,
                max_size=MAX_FRAME_BYTES,
                max_queue=64,
                # The client has a heartbeat of its own, which a test can turn by hand.
                ping_interval=None,
                close_timeout=CLOSE_SECONDS,
                proxy=self._proxy,
            )
        except WebSocketException as error:
            raise ConnectionError(f"{url} is no livetree endpoint: {error}") from error
        return _WebSocket(connection)

    def __repr__(self) -> str:
        return f"WebSocketTransport(proxy={self._proxy!r})"


class _WebSocket:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, text: str) -> None:
        try:
            await self._connection.send(text)
        except ConnectionClosed as closed:
            raise _closed(closed) from None

    async def recv(self) -> str:
        try:
            frame = await self._connection.recv()
        except ConnectionClosed as closed:
            raise _closed(closed) from None
        if isinstance(frame, bytes):
            raise SocketClosed(1003, "the server sent a binary frame")
        return frame

    async def close(self, code: int = 1000, reason: str = "") -> None:
        try:
            # A peer whose network is gone takes no closing frame either.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * CLOSE_SECONDS):
                    await self._connection.close(code, reason)
        finally:
            self._connection.transport.abort()


def _closed(error: ConnectionClosed) -> SocketClosed:
    frame = error.rcvd
    return SocketClosed() if frame is None else SocketClosed(frame.code, frame.reason)


def endpoint_of(url: str) -> str:
    """
    Return the websocket URL that a user means.

    ``http`` becomes ``ws``, ``https`` ``wss``, and without a path it is ``/v1/ws``.

    Raises:
        ValueError: If it is no URL of these schemes, or has a user name or a fragment.

    """
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise ValueError(f"{url!r} is no server's URL: write ws://HOST:PORT or wss://HOST")
    if parts.fragment or "@" in parts.netloc:
        raise ValueError("the URL has a fragment or a user name: pass secrets as token")
    path = parts.path if parts.path not in ("", "/") else "/v1/ws"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))
