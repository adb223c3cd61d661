"""Patterns in which ``*`` stands for any run of characters, matched in linear time."""

from __future__ import annotations

__all__ = ["matches"]


def matches(pattern: str, text: str) -> bool:
    """
    Tell whether the whole text is what the pattern describes.

    The first place where a piece fits is always good enough, so nothing is tried twice:
    patterns come from strangers, and a regular expression could be made to hang.

    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first):
        return False
    at, end = len(first), len(text) - len(last)
    if not text.endswith(last):
        return False
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
