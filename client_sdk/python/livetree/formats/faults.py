"""What is wrong with a file, and where: the one error of this package."""

from __future__ import annotations

__all__ = ["FormatError", "kind_of", "quoted"]

_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


class FormatError(ValueError):
    """
    A file, or one conversation in it, that can't be imported.

    Attributes:
        reason: A sentence that says what is wrong.
        record: The record's number in the file, counted from 0.
        line: The line's number, counted from 1, in formats of one record a line.
        offset: The byte at which the fault lies, or else at which the record begins.
        source_id: The conversation's id in the source, where it could be read.
        title: The conversation's title, likewise.
        rest_unread: Whether nothing after this place could be read.

    """

    def __init__(
        self,
        reason: str,
        *,
        record: int | None = None,
        line: int | None = None,
        offset: int | None = None,
        rest_unread: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.record = record
        self.line = line
        self.offset = offset
        self.source_id: str | None = None
        self.title: str | None = None
        self.rest_unread = rest_unread

    def __str__(self) -> str:
        places = (("record", self.record), ("line", self.line), ("byte", self.offset))
        where = ", ".join(f"{unit} {number}" for unit, number in places if number is not None)
        if self.title is not None:
            where = f"{where} {quoted(self.title)}".lstrip()
        rest = "; nothing after it was read" if self.rest_unread else ""
        return f"{where}: {self.reason}{rest}" if where else f"{self.reason}{rest}"


def quoted(text: str) -> str:
    """Quote a text out of a file for a sentence: printable, and never long."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def kind_of(value: object) -> str:
    """Name the kind of a JSON value, for a sentence."""
    return _KINDS.get(type(value), f"a Python {type(value).__name__}")
