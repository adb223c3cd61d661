"""The frame that every importer fills: a format's name and sign, and how a file is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from .faults import FormatError
from .json_stream import Element, decode, split
from .neutral import Conversation, validate

__all__ = ["Format", "Head", "Record", "read_json"]


class Record(Struct, frozen=True):
    """One conversation of a file, whole, or why it was refused: never a part of it."""

    index: int
    offset: int
    """The byte where the record begins."""
    outcome: Conversation | FormatError

    @property
    def conversation(self) -> Conversation | None:
        """The conversation, if it was not refused."""
        return self.outcome if isinstance(self.outcome, Conversation) else None

    @property
    def error(self) -> FormatError | None:
        """Why it was refused, if it was."""
        return self.outcome if isinstance(self.outcome, FormatError) else None


class Head(Struct, frozen=True):
    """What is known of a file before it is read."""

    name: str
    text: bytes
    """Its first bytes."""
    keys: frozenset[str]
    """The keys of its records, as far as they stand in those bytes; none if it isn't JSON."""


class Format(Struct, frozen=True):
    """
    A format of chat files.

    ``read`` takes the file's bytes and the most that one record may have. It yields a
    `Record` for each conversation, in the file's order, and raises nothing for what is
    wrong with the file.

    """

    name: str
    title: str
    recognises: Callable[[Head], bool]
    read: Callable[[Iterable[bytes], int], Iterator[Record]]


def read_json(
    chunks: Iterable[bytes], max_record_bytes: int, convert: Callable[[Any], Conversation]
) -> Iterator[Record]:
    """
    Read a JSON file of conversations.

    Args:
        chunks: The file's bytes.
        max_record_bytes: The most that one conversation may have.
        convert: Makes a conversation of a decoded record, or raises FormatError.

    """
    try:
        for element in split(chunks, max_bytes=max_record_bytes):
            record = Record(element.index, element.offset, _outcome(element, convert))
            # Let go of both, or they stay in memory while the next one is read.
            del element
            yield record
            del record
    except FormatError as fault:
        yield Record(fault.record or 0, fault.offset or 0, fault)


def _outcome(
    element: Element, convert: Callable[[Any], Conversation]
) -> Conversation | FormatError:
    try:
        conversation = convert(decode(element))
        validate(conversation)
    except FormatError as fault:
        fault.record = element.index
        if fault.offset is None:
            fault.offset = element.offset
        return fault
    return conversation
