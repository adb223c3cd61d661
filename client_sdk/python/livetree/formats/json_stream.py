"""
A JSON file of records, cut into the records' own texts while it is being read.

The file is a list of records, or one record alone. Only brackets and strings are looked at,
so a record comes out as bytes, and a file of any size takes the memory of its largest record.
What is inside a record is for `decode` to judge, and does not stop the ones behind it; what
is wrong between records does, as from there on nobody knows where one begins.

White space, and at most one byte order mark in it, may stand before the first record.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from ..core.canonical import MAX_DEPTH
from .faults import FormatError

__all__ = ["BOM", "MAX_RECORD_BYTES", "Element", "decode", "masked", "split"]

MAX_RECORD_BYTES: Final = 128 * 1024 * 1024
"""The largest record that is read; a larger one is passed over and refused."""

WINDOW: Final = 64 * 1024
"""How many bytes are looked at in one go."""

BOM: Final = b"\xef\xbb\xbf"

_BLANK = re.compile(rb"[ \t\r\n]*")
# Whole strings and what is between them, up to a bracket or a quote without a partner.
_SKIPPED = re.compile(rb'[^"\[\]{}]*(?:"[^"]*"[^"\[\]{}]*)*')
_STRING = re.compile(rb'"[^"]*"')
_PLAIN = re.compile(rb'[^ \t\r\n,\[\]{}"]*')
_QUOTE, _OPENING, _CLOSING = ord('"'), frozenset(b"[{"), frozenset(b"]}")
_NO_RECORD = frozenset(b",]}")
_BYTE_NUMBER = re.compile(r" \(byte (\d+)\)$")

_decode = msgspec.json.Decoder().decode


class Element(msgspec.Struct, frozen=True):
    """One record's text: its number, the byte where it begins, how deep it nests."""

    index: int
    offset: int
    size: int
    depth: int
    raw: bytes | None
    """None if it was too large to keep."""


def split(
    chunks: Iterable[bytes], *, max_bytes: int = MAX_RECORD_BYTES, window: int = WINDOW
) -> Iterator[Element]:
    """
    Cut a file into its records' texts, in order.

    Raises:
        FormatError: If the file is empty, is cut off, or is no list of records nor one alone.
            What was yielded before it is sound.

    """
    splitter = _Splitter(max_bytes)
    for offset, text in _windows(chunks, window):
        yield from splitter.feed(offset, text)
    splitter.finish()


def decode(element: Element) -> Any:
    """
    Decode one record.

    Raises:
        FormatError: If it is too large, nests too deep, or is no JSON in UTF-8.

    """
    if element.raw is None:
        raise FormatError(f"it has {element.size} bytes, more than are read of one record")
    # Refused by number and not by the parser's own limit, which differs from host to host.
    if element.depth > MAX_DEPTH:
        raise FormatError(f"it nests {element.depth} levels deep; the limit is {MAX_DEPTH}")
    try:
        return _decode(element.raw)
    except (ValueError, RecursionError) as error:
        raise _fault_of(element.raw, element.offset, error) from None


def masked(text: bytes) -> bytes:
    """Blank out escaped backslashes and quotes, so that each quote left is a string's end."""
    if rb"\"" not in text:
        return text
    # Two plain passes take half the time and none of the memory of one with a pattern.
    return text.replace(rb"\\", b"__").replace(rb"\"", b"__")


def _fault_of(raw: bytes, offset: int, error: Exception) -> FormatError:
    """Say what the parser found, and at which byte of the file."""
    # Of bad UTF-8 parsers tell no place, or one within the string.
    try:
        raw.decode()
    except UnicodeDecodeError as bad:
        byte = raw[bad.start]
        return FormatError(f"byte 0x{byte:02x} is not UTF-8", offset=offset + bad.start)
    reason = str(error).removeprefix("JSON is malformed: ")
    if (place := _BYTE_NUMBER.search(reason)) is None:
        return FormatError(f"it is not valid JSON: {reason}")
    at = offset + int(place[1])
    return FormatError(f"it is not valid JSON: {reason[: place.start()]}", offset=at)


def _windows(chunks: Iterable[bytes], size: int) -> Iterator[tuple[int, bytes]]:
    """Give chunks of any size as windows of about one, none of which cuts an escape or a BOM."""
    offset = 0
    buffer = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), size):
            buffer += view[start : start + size]
            if len(buffer) < size:
                continue
            if whole := len(buffer) - _unfinished(buffer):
                yield offset, bytes(buffer[:whole])
                del buffer[:whole]
                offset += whole
    if buffer:
        yield offset, bytes(buffer)


def _unfinished(text: bytearray) -> int:
    """Count the bytes at the end that mean nothing without the next one."""
    if text.endswith(b"\\"):
        # In a row of backslashes each second one is escaped; the odd one escapes what follows.
        return (len(text) - len(text.rstrip(b"\\"))) % 2
    if text.endswith(BOM[:2]):
        return 2
    return 1 if text.endswith(BOM[:1]) else 0


class _Expect(enum.Enum):
    """What may come next, white space aside."""

    FILE = enum.auto()  # a list or a record
    FIRST = enum.auto()  # a record or the list's end
    RECORD = enum.auto()  # a record, after a comma
    COMMA = enum.auto()  # a comma or the list's end, after a record
    INSIDE = enum.auto()  # the rest of a record
    NOTHING = enum.auto()  # all was read


class _Splitter:
    """Finds where records begin and end, one window after the other."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._expect = _Expect.FILE
        self._bom_seen = False
        self._alone = False
        self._index = 0
        # Of the record being read:
        self._offset = 0
        self._size = 0
        self._pieces: list[bytes] = []
        self._plain = False
        self._in_string = False
        self._depth = 0
        self._deepest = 0

    def feed(self, offset: int, window: bytes) -> Iterator[Element]:
        """Read the next window and yield the records that end in it."""
        text = masked(window)
        at = 0
        while at < len(text):
            if self._expect is _Expect.INSIDE:
                end = self._find_end(text, at)
                self._keep(window[at:end])
                if end is None:
                    return
                at = end
                yield self._take()
            else:
                blank = _BLANK.match(text, at)
                at = blank.end() if blank else at
                if at < len(text):
                    at = self._between(text, at, offset)

    def finish(self) -> None:
        """
        Hear that the file has ended.

        Raises:
            FormatError: If it ought not to end here.

        """
        if self._expect is _Expect.FILE:
            raise FormatError("the file is empty", record=0, offset=0, rest_unread=True)
        if self._expect is _Expect.INSIDE:
            raise self._fault("the file is cut off inside of it", self._offset)
        if self._expect is not _Expect.NOTHING:
            raise self._fault("the file is cut off before the list's end", None)

    def _between(self, text: bytes, at: int, offset: int) -> int:
        """Take one mark between records, or see a record begin; return where to go on."""
        byte = text[at]
        place = offset + at
        match self._expect:
            case _Expect.FILE:
                if not self._bom_seen and text.startswith(BOM, at):
                    self._bom_seen = True
                    return at + len(BOM)
                if byte == ord("["):
                    self._expect = _Expect.FIRST
                    return at + 1
                if byte != ord("{"):
                    raise self._fault("the file is neither a list of records nor one alone", place)
                self._alone = True
            case _Expect.COMMA if byte == ord(","):
                self._expect = _Expect.RECORD
                return at + 1
            case _Expect.COMMA | _Expect.FIRST if byte == ord("]"):
                self._expect = _Expect.NOTHING
                return at + 1
            case _Expect.COMMA:
                raise self._fault("a comma or the list's end is missing before it", place)
            case _Expect.NOTHING:
                raise self._fault("something follows the end of the records", place)
        if byte in _NO_RECORD:
            raise self._fault(f"there is {chr(byte)!r} where a record should begin", place)
        self._offset = place
        self._size = 0
        self._plain = byte != _QUOTE and byte not in _OPENING
        self._in_string = False
        self._depth = self._deepest = 0
        self._expect = _Expect.INSIDE
        return at

    def _find_end(self, text: bytes, at: int) -> int | None:
        """Find where the record ends; None if that is in a later window."""
        if self._plain:
            plain = _PLAIN.match(text, at)
            end = plain.end() if plain else at
            return end if end < len(text) else None
        depth = self._depth
        if self._in_string:
            if (quote := text.find(b'"', at)) < 0:
                return None
            self._in_string = False
            at = quote + 1
            if not depth:
                return at
        elif not depth and (string := _STRING.match(text, at)):
            return string.end()  # a record that is a string ends with it
        # It matches anything, if need be nothing; only the type checker can't know.
        while skipped := _SKIPPED.match(text, at):
            if (at := skipped.end()) == len(text):
                break
            byte = text[at]
            at += 1
            if byte in _CLOSING:
                depth -= 1
                if not depth:
                    return at
            elif byte in _OPENING:
                depth += 1
                if depth > self._deepest:
                    self._deepest = depth
            else:
                self._in_string = True
                break
        self._depth = depth
        return None

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._max_bytes:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def _take(self) -> Element:
        raw = None if self._size > self._max_bytes else b"".join(self._pieces)
        self._pieces.clear()
        element = Element(self._index, self._offset, self._size, self._deepest, raw)
        self._index += 1
        self._expect = _Expect.NOTHING if self._alone else _Expect.COMMA
        return element

    def _fault(self, reason: str, place: int | None) -> FormatError:
        return FormatError(reason, record=self._index, offset=place, rest_unread=True)
