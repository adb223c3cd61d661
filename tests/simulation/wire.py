"""The server's end of a socket that is cranked by hand: real frames, no network."""

from __future__ import annotations

import asyncio
from typing import Any

from livetree_server.gateway.endpoint import Endpoint, Gateway
from websockets.frames import Close, Frame, Opcode

HANDSHAKE = (
    b"GET {path} HTTP/1.1\r\n"
    b"Host: 127.0.0.1:8400\r\n"
    b"Upgrade: websocket\r\n"
    b"Connection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: livetree.v1\r\n"
)


class HandTransport(asyncio.Transport):
    """What the server writes gathers here until somebody takes it out."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.reading = True
        self.eof = False
        self.closed = False
        self.high = 1 << 30
        self.paused = False
        self.protocol: Endpoint | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is not None:
            self.high = high

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            return
        self.written += data
        if len(self.written) > self.high and not self.paused and self.protocol is not None:
            self.paused = True
            self.protocol.pause_writing()

    def take(self, limit: int | None = None) -> bytes:
        """Read what the server wrote, as its peer would."""
        end = len(self.written) if limit is None else limit
        data = bytes(self.written[:end])
        del self.written[:end]
        if self.paused and len(self.written) <= self.high // 4 and self.protocol is not None:
            self.paused = False
            self.protocol.resume_writing()
        return data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def write_eof(self) -> None:
        self.eof = True

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            if self.protocol is not None:
                self.protocol.connection_lost(None)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol


class Wire:
    """
    One connection to an endpoint, after its handshake.

    What is sent while the server doesn't read waits, as it would in the kernel.

    """

    def __init__(self, gateway: Gateway, *, path: bytes = b"/v1/ws", headers: bytes = b"") -> None:
        self.transport = HandTransport()
        self.open_endpoints: set[Any] = set()
        self.endpoint = Endpoint(gateway, self.open_endpoints)
        self.transport.protocol = self.endpoint
        self._waiting = bytearray()
        self._received = bytearray()
        self.endpoint.connection_made(self.transport)
        self.endpoint.data_received(HANDSHAKE.replace(b"{path}", path) + headers + b"\r\n")
        head, _, rest = self.transport.take().partition(b"\r\n\r\n")
        self.status = int(head.split(b" ", 2)[1])
        self.response = head + b"\r\n\r\n" + rest
        self._received += rest

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        self._waiting += data
        self.crank()

    def send(self, text: str | bytes, opcode: Opcode = Opcode.TEXT) -> None:
        """Send a masked frame."""
        data = text.encode() if isinstance(text, str) else text
        self.send_bytes(masked(data, opcode))

    def crank(self) -> None:
        """Let the server have what waits, if it reads."""
        while self._waiting and self.transport.reading and not self.transport.closed:
            chunk = bytes(self._waiting[: 64 * 1024])
            del self._waiting[: len(chunk)]
            self.endpoint.data_received(chunk)

    def frames(self, limit: int | None = None) -> list[Frame]:
        """Take out the whole frames that the server sent."""
        self._received += self.transport.take(limit)
        found: list[Frame] = []
        while (parsed := _parse(self._received)) is not None:
            frame, size = parsed
            del self._received[:size]
            found.append(frame)
        self.crank()
        return found

    def texts(self) -> list[bytes]:
        """Take out the text frames that the server sent."""
        return [bytes(frame.data) for frame in self.frames() if frame.opcode is Opcode.TEXT]

    def close_code(self) -> int | None:
        """Take everything out; return the close code, if there is one."""
        closes = [frame for frame in self.frames() if frame.opcode is Opcode.CLOSE]
        return Close.parse(bytes(closes[0].data)).code if closes else None

    def cut(self) -> None:
        """Lose the connection, with all that is under way."""
        self._waiting.clear()
        self.transport.written.clear()
        self.transport.abort()


def masked(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    """Put data into a client's frame; the masking key is zero, which is legal and cheap."""
    head = bytearray([opcode | (0x80 if fin else 0)])
    if len(data) < 126:
        head.append(0x80 | len(data))
    elif len(data) < 65536:
        head.append(0x80 | 126)
        head += len(data).to_bytes(2, "big")
    else:
        head.append(0x80 | 127)
        head += len(data).to_bytes(8, "big")
    return bytes(head) + b"\0\0\0\0" + data


def _parse(data: bytearray) -> tuple[Frame, int] | None:
    if len(data) < 2:
        return None
    length, start = data[1] & 127, 2
    if length == 126:
        length, start = int.from_bytes(data[2:4], "big"), 4
    elif length == 127:
        length, start = int.from_bytes(data[2:10], "big"), 10
    if len(data) < start + length:
        return None
    frame = Frame(Opcode(data[0] & 15), bytes(data[start : start + length]), bool(data[0] & 128))
    return frame, start + length
