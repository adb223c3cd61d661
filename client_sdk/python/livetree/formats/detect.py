"""Which format a file is of, and the way in: `read`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from .chatgpt import CHATGPT
from .faults import FormatError
from .json_stream import BOM, MAX_RECORD_BYTES, masked
from .reading import Format, Head, Record

__all__ = ["FORMATS", "detect", "read"]

FORMATS: Final[tuple[Format, ...]] = (CHATGPT,)
"""Every format that can be read, asked in this order."""

HEAD_BYTES: Final = 64 * 1024
"""How much of a file is looked at to tell its format."""

_TOKEN = re.compile(rb'("[^"]*")([ \t\r\n]*:)?|[\[\]{}]')
_ZIP = b"PK\x03\x04"


def detect(head: bytes, name: str = "") -> Format:
    """
    Tell a file's format.

    Args:
        head: The file's first bytes, `HEAD_BYTES` of them or the whole file.
        name: The file's name, for formats that are told by it.

    Raises:
        FormatError: If it is of no known format; the sentence names those that are.

    """
    seen = Head(name, head, _record_keys(head))
    for known in FORMATS:
        if known.recognises(seen):
            return known
    titles = ", ".join(known.title for known in FORMATS)
    if not head:
        raise FormatError("the file is empty", offset=0)
    if head.startswith(_ZIP):
        raise FormatError(f"this is a zip archive; unpack it and give what is in it: {titles}")
    raise FormatError(f"the file is of no format that can be read; those are: {titles}")


def read(
    chunks: Iterable[bytes],
    *,
    name: str = "",
    format: Format | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Iterator[Record]:
    """
    Read a file's conversations, one at a time.

    Each is whole or refused, in the file's order. A file that breaks off gives what stands
    before the break, then one refusal with `rest_unread`. Memory holds one conversation.

    Args:
        chunks: The file's bytes, in pieces of any size.
        name: The file's name.
        format: The format, if it need not be told from the file.
        max_record_bytes: The most that one conversation may have; a larger one is refused.

    Raises:
        FormatError: If the file is of no known format; before anything is yielded.

    """
    chunks = iter(chunks)
    if format is None:
        head = bytearray()
        taken: list[bytes] = []
        for chunk in chunks:
            taken.append(chunk)
            head += memoryview(chunk)[: HEAD_BYTES - len(head)]
            if len(head) == HEAD_BYTES:
                break
        format = detect(bytes(head), name)
        chunks = itertools.chain(taken, chunks)
    return format.read(chunks, max_record_bytes)


def _record_keys(head: bytes) -> frozenset[str]:
    """Collect the keys of the records in a file's first bytes, which may end anywhere."""
    text = masked(head)
    start = len(text) - len(text.lstrip(b" \t\r\n").removeprefix(BOM).lstrip(b" \t\r\n"))
    # In a list the records are one level down.
    level = 2 if text[start : start + 1] == b"[" else 1
    depth = 0
    keys: set[str] = set()
    for token in _TOKEN.finditer(text, start):
        if token[1] is None:
            depth += 1 if token[0] in b"[{" else -1
        elif token[2] is not None and depth == level:
            raw = head[token.start(1) : token.end(1)]
            try:
                keys.add(msgspec.json.decode(raw, type=str))
            except ValueError:
                continue  # not JSON: the reader will say where
    return frozenset(keys)
