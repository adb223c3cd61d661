"""A client made of bytes: it says what it likes, and reads only when it wants to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from typing import Any, TypeVar

import msgspec
from livetree.core import protocol as p
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from tests.faults.process import SECONDS

T = TypeVar("T")

CHUNK = 64 * 1024


class Ended(Exception):
    """The server has ended the connection; ``code`` is the close code, None if it gave none."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class Raw:
    """
    One connection; nothing is read from it that isn't asked for.

    Args:
        port: Where the server listens.
        receive_bytes: How much the kernel takes in for a reader that doesn't read.

    """

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self.port = port
        self.socket = socket.socket()
        self.socket.setblocking(False)
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._loop = asyncio.get_running_loop()
        self._protocol = ClientProtocol(
            parse_uri(f"ws://127.0.0.1:{port}/v1/ws"),
            subprotocols=[p.PROTOCOL],  # type: ignore[list-item]
            max_size=None,
        )
        self._sending = asyncio.Lock()  # a frame is not to begin in another
        self._texts: deque[bytes] = deque()
        self._fragments: list[bytes] = []

    async def __aenter__(self) -> Raw:
        """Connect and shake hands."""
        await self.connect()
        self._protocol.send_request(self._protocol.connect())
        await self.flush()
        while self._protocol.state is not State.OPEN:
            await self._receive()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()

    async def connect(self) -> None:
        """Open the TCP connection alone."""
        async with asyncio.timeout(SECONDS):
            await self._loop.sock_connect(self.socket, ("127.0.0.1", self.port))

    async def greet(self, **fields: Any) -> p.Welcome:
        """Say hello; returns the welcome."""
        await self.send(p.Hello(protocol=p.PROTOCOL, **fields))
        welcome = await self.frame()
        assert isinstance(welcome, p.Welcome)
        return welcome

    async def send(self, *frames: msgspec.Struct) -> None:
        """Send frames, all in one go; waits while the server doesn't take them."""
        await self.send_bytes(self.framed(*frames))

    def framed(self, *frames: msgspec.Struct) -> bytes:
        """Return the bytes in which frames cross the wire."""
        for frame in frames:
            self._protocol.send_text(p.encode(frame))
        return b"".join(self._protocol.data_to_send())

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        async with asyncio.timeout(SECONDS), self._sending:
            await self._loop.sock_sendall(self.socket, data)

    async def flush(self) -> None:
        """Send what the library wants to say: pongs and its side of the close."""
        await self.send_bytes(b"".join(self._protocol.data_to_send()))

    async def frame(self) -> p.ServerFrame:
        """
        Return the next frame.

        Raises:
            Ended: If the connection is over, after all frames that came before.

        """
        while not self._texts:
            await self._receive()
        frame: p.ServerFrame = p.decode_frame(self._texts.popleft())
        return frame

    async def answers(self, count: int) -> list[p.ResultFrame | p.ErrorFrame]:
        """Read on until so many requests have been answered."""
        found: list[p.ResultFrame | p.ErrorFrame] = []
        while len(found) < count:
            frame = await self.frame()
            if isinstance(frame, p.ResultFrame | p.ErrorFrame):
                found.append(frame)
        return found

    async def ask(self, command: p.Command, kind: type[T] = dict) -> T:  # type: ignore[assignment]
        """Send a request and return its result as a `kind`, and nothing that comes before it."""
        await self.send(command)
        while True:
            frame = await self.frame()
            if isinstance(frame, p.ResultFrame | p.ErrorFrame) and frame.re == command.id:
                assert isinstance(frame, p.ResultFrame), frame
                return msgspec.json.decode(frame.result, type=kind)

    async def close_code(self) -> int | None:
        """Read on to the end of the connection; returns the close code."""
        try:
            while True:
                await self._receive()
        except Ended as ended:
            self.socket.close()
            return ended.code

    def reset(self) -> None:
        """End it with a reset, as a program that crashes with unread data does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    async def _receive(self) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                data = await self._loop.sock_recv(self.socket, CHUNK)
        except ConnectionError:
            data = b""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        if self._protocol.handshake_exc is not None:
            raise self._protocol.handshake_exc
        if not data:
            closing = self._protocol.close_rcvd
            raise Ended(None if closing is None else closing.code)
        # What the server has sent before it went can be read all the same.
        with contextlib.suppress(ConnectionError):
            await self.flush()

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                self._texts.append(b"".join(self._fragments))
                self._fragments.clear()
