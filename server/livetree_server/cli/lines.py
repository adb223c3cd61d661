"""Lines of an HTTP answer, as they come."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Final

__all__ = ["MAX_LINE_BYTES", "LineTooLong", "lines"]

MAX_LINE_BYTES: Final = 8 * 1024 * 1024


class LineTooLong(Exception):
    """A line has more than `MAX_LINE_BYTES`."""


async def lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """
    Yield the lines without their ends, and without those that are empty.

    Only line feeds and carriage returns end one: JSON may hold every other character
    that counts as a line's end elsewhere.

    """
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk.replace(b"\r", b"\n")
        *whole, rest = waiting.split(b"\n")
        waiting = bytearray(rest)
        if len(waiting) > MAX_LINE_BYTES:
            raise LineTooLong(f"a line has more than {MAX_LINE_BYTES} bytes")
        for line in whole:
            if line:
                yield bytes(line)
    if waiting:
        yield bytes(waiting)
