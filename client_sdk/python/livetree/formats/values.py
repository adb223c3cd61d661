"""What a JSON value must be to be read the same everywhere (I-JSON, RFC 7493)."""

from __future__ import annotations

import math
from typing import Any

from ..core.canonical import MAX_DEPTH, MAX_INTEGER
from .faults import FormatError, kind_of, quoted

__all__ = ["check_text", "check_value"]


def check_text(text: str, what: str) -> None:
    """
    Prove that a text can be written as UTF-8.

    Raises:
        FormatError: If it holds half of a surrogate pair.

    """
    # Asked first, as it is free and nearly always true.
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise FormatError(f"{what} holds half of a surrogate pair") from None


def check_value(value: Any, what: str) -> None:
    """
    Prove that a value is JSON which every client can read.

    Raises:
        FormatError: If it holds something that JSON has not, a number that isn't finite, an
            integer beyond ±(2^53−1) or a lone surrogate, or nests deeper than `MAX_DEPTH`.

    """
    # Level by level instead of recursively: the depth is what is being checked.
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise FormatError(f"{what} nests deeper than {MAX_DEPTH} levels")
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                if not item.isascii():
                    check_text(item, what)
            elif kind is dict:
                for key in item:
                    if type(key) is not str:
                        raise FormatError(f"{what} has {kind_of(key)} as a key")
                    check_text(key, what)
                below.extend(item.values())
            elif kind is list:
                below.extend(item)
            elif kind is int:
                if not -MAX_INTEGER <= item <= MAX_INTEGER:
                    raise FormatError(f"{what} holds an integer beyond ±(2^53-1)")
            elif kind is float:
                if not math.isfinite(item):
                    raise FormatError(f"{what} holds {quoted(str(item))}, which is no JSON number")
            elif item is not None and kind is not bool:
                raise FormatError(f"{what} holds {kind_of(item)}, which JSON has not")
        level = below
