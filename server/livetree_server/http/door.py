"""HTTP as uvicorn speaks it, with bounds for those who have not yet said what they want."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["HEAD_BYTES", "HEAD_SECONDS", "Door"]

HEAD_BYTES: Final = 64 * 1024
"""How much of a request's head is taken in while its end is still to come."""

HEAD_SECONDS: Final = 10.0
"""How long a peer has for its first request's head, and for each other from its first byte on."""


class Door(HttpToolsProtocol):
    """
    One HTTP connection, until it ends or becomes a websocket.

    A peer that is too slow with the head of a request is cut, without a word, since it may
    not speak HTTP at all. One that sends too much of it is told so.

    """

    _bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        super().data_received(data)
        if self._deadline is not None and self._bytes > HEAD_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._deadline is None:
            self._bytes = 0
            loop: Any = asyncio.get_running_loop()
            self._deadline = loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
                b"content-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()
