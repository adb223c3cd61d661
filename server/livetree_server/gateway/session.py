"""What a connection's frames mean, one after the other: states without any I/O."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec
from livetree.core import protocol as p
from livetree.core.canonical import MAX_INTEGER
from livetree.core.errors import LivetreeError, Validation
from msgspec import Struct

__all__ = ["HELLO_BYTES", "Bad", "Closing", "Frame", "Session"]

HELLO_BYTES: Final = 64 * 1024
"""The largest frame of a peer that has not said who it is."""

# A request names its id first, or nearly: enough to answer what can't be read whole.
_ID = re.compile(rb'^\s*\{[^{}\[\]]{0,200}?"id"\s*:\s*(\d{1,16})\s*[,}]')
_decode_first = msgspec.json.Decoder(p.Hello | p.Ping | p.Pong).decode
_decode_plain = msgspec.json.Decoder(p.Ping | p.Pong).decode


class Closing(Exception):
    """The connection must end: ``code`` and a reason that says why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Bad(Struct, frozen=True):
    """A request that can be answered, but not carried out."""

    re: int
    error: LivetreeError


Frame = p.Hello | p.Ping | p.Pong | p.Command | Bad


class Session:
    """
    Reads one connection's frames.

    Before ``hello`` nothing else is allowed; after it no second one is.

    """

    __slots__ = ("greeted",)

    def __init__(self) -> None:
        self.greeted = False

    def read(self, data: bytes) -> Frame:
        """
        Return what a text frame says.

        Raises:
            Closing: If the connection can't go on.

        """
        try:
            str(data, "utf-8")
        except UnicodeDecodeError:
            raise Closing(p.Close.PROTOCOL_ERROR, "a text frame is not UTF-8") from None
        return self._request(data) if self.greeted else self._hello(data)

    def _hello(self, data: bytes) -> Frame:
        if len(data) > HELLO_BYTES:
            raise Closing(p.Close.TOO_LARGE, f"hello is larger than {HELLO_BYTES} bytes")
        try:
            frame: p.Hello | p.Ping | p.Pong = _decode_first(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Closing(p.Close.PROTOCOL_ERROR, f"say hello first ({error})") from None
        if isinstance(frame, p.Hello):
            if frame.protocol != p.PROTOCOL:
                raise Closing(
                    p.Close.PROTOCOL_ERROR, f"this server speaks {p.PROTOCOL}: update the client"
                )
            self.greeted = True
        return frame

    def _request(self, data: bytes) -> Frame:
        try:
            command = p.decode_command(data)
        except (msgspec.DecodeError, RecursionError) as error:
            return self._other(data, error)
        if command.id < 0:
            raise Closing(p.Close.PROTOCOL_ERROR, "a request has no id: number it")
        nameless = isinstance(command, p.Mutation) and not command.topic
        if nameless and not isinstance(command, p.TopicCreate):
            return Bad(command.id, Validation("topic is missing: name the topic"))
        return command

    def _other(self, data: bytes, error: Exception) -> Frame:
        """Tell a ping, a request that can be refused, and what can't even be answered apart."""
        try:
            plain: p.Ping | p.Pong = _decode_plain(data)
            return plain
        except (msgspec.DecodeError, RecursionError):
            pass
        number = _request_id(data)
        if number is None:
            raise Closing(p.Close.PROTOCOL_ERROR, f"a frame is no request: {error}") from None
        if isinstance(error, RecursionError):
            return Bad(number, Validation("the request nests too deep: flatten it"))
        return Bad(number, Validation(f"the request can't be read: {error}"))


def _request_id(data: bytes) -> int | None:
    """Find the id of a request that is not of its command's form, or not even I-JSON."""
    try:
        # Integers are cut: Python refuses to read thousands of digits.
        value: Any = json.loads(data, parse_int=lambda text: int(text) if len(text) < 20 else -1)
    except RecursionError:
        found = _ID.match(data)
        return int(found[1]) if found else None
    except ValueError:
        return None
    number = value.get("id") if isinstance(value, dict) else None
    return number if type(number) is int and 0 <= number <= MAX_INTEGER else None
