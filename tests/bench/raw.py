"""What is measured with and against: a client of prebuilt frames, and the bare statements."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from livetree.core.protocol import Node

HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: livetree.v1\r\n\r\n"
)
HELLO = b'{"type":"hello","protocol":"livetree.v1"}'


def masked(text: bytes) -> bytes:
    """Frame text as a client does, with a mask of zeros: legal, and free."""
    size = len(text)
    if size < 126:
        return b"\x81" + bytes([0x80 | size]) + b"\0\0\0\0" + text
    if size < 65536:
        return b"\x81\xfe" + size.to_bytes(2, "big") + b"\0\0\0\0" + text
    return b"\x81\xff" + size.to_bytes(8, "big") + b"\0\0\0\0" + text


class RawClient(asyncio.Protocol):
    """
    One connection.

    Args:
        heard: Called with each text frame after ``welcome``; without it frames are only
            counted.

    """

    def __init__(self, heard: Callable[[RawClient, bytes], None] | None = None) -> None:
        self.heard = heard
        self.frames = 0
        self.bytes = 0
        self.ready = asyncio.get_running_loop().create_future()
        self._buffer = b""
        self._shaken = False
        self._waiters: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0

    @classmethod
    async def connect(
        cls, port: int, heard: Callable[[RawClient, bytes], None] | None = None
    ) -> RawClient:
        """Connect, say hello, and wait for the welcome."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(heard), "127.0.0.1", port)
        await client.ready
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(HANDSHAKE)

    def connection_lost(self, exc: Exception | None) -> None:
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(ConnectionError("the server closed"))

    def send(self, text: bytes) -> None:
        """Send a frame."""
        self.transport.write(masked(text))

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        if not self._shaken:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = data
                return
            self._shaken = True
            data = data[end + 4 :]
            self.send(HELLO)
        offset, end = 0, len(data)
        while end - offset >= 2:
            size, head = data[offset + 1], 2
            if size == 126:
                if end - offset < 4:
                    break
                size, head = int.from_bytes(data[offset + 2 : offset + 4], "big"), 4
            elif size == 127:
                if end - offset < 10:
                    break
                size, head = int.from_bytes(data[offset + 2 : offset + 10], "big"), 10
            if end - offset < head + size:
                break
            if data[offset] == 0x81:
                self._frame(data[offset + head : offset + head + size])
            offset += head + size
        self._buffer = data[offset:]

    def _frame(self, text: bytes) -> None:
        self.frames += 1
        self.bytes += len(text)
        if not self.ready.done():
            self.ready.set_result(None)
        elif self._waiters and text.startswith((b'{"type":"result"', b'{"type":"error"')):
            answer = msgspec.json.decode(text)
            waiter = self._waiters.pop(answer["re"], None)
            if waiter is not None:
                waiter.set_result(answer)
                return
        if self.heard is not None:
            self.heard(self, text)

    async def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return its result; raises RuntimeError on a refusal."""
        self._last_id += 1
        waiter = self._waiters[self._last_id] = asyncio.get_running_loop().create_future()
        self.send(msgspec.json.encode({"id": self._last_id, **request}))
        answer = await waiter
        if answer["type"] == "error":
            raise RuntimeError(answer)
        return answer["result"]

    def close(self) -> None:
        """Close without ceremony."""
        self.transport.abort()


def raw_snapshot(database: Path, topic: str) -> tuple[float, float, int]:
    """Return the seconds of SELECT + Struct + encode, of encode alone, and the messages."""
    db = sqlite3.connect(database)
    select = (
        "SELECT id, parent_id, role, status, version, created_at, preview FROM message"
        " WHERE topic_key = (SELECT key FROM topic WHERE id = ?) AND parent_id IS NOT NULL"
    )
    whole, encoding = [], []
    for _ in range(5):
        begun = time.perf_counter()
        nodes = [
            Node(
                id=a,
                parent_id=b,
                role=c,
                status=d,
                version=e,
                created_at=f,
                updated_at=f,
                preview=g,
            )
            for a, b, c, d, e, f, g in db.execute(select, (topic,))
        ]
        middle = time.perf_counter()
        msgspec.json.encode(nodes)
        encoding.append(time.perf_counter() - middle)
        whole.append(time.perf_counter() - begun)
    db.close()
    return statistics.median(whole), statistics.median(encoding), len(nodes)
