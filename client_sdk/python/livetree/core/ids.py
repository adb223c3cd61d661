"""What an id may look like, and the ids that livetree makes when the caller brings none."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["ID_PATTERN", "is_id", "uuid7"]

ID_PATTERN: Final = "[A-Za-z0-9_-]{1,64}"
_ID = re.compile(ID_PATTERN)

_WORDS: Final = {"AUTO", "ROOT", "UNCHANGED"}
"""Words that stand where an id could."""


def is_id(text: str) -> bool:
    """Tell whether a caller may bring this id."""
    return _ID.fullmatch(text) is not None and text not in _WORDS


def uuid7(now_ms: int, entropy: bytes) -> str:
    """
    Make a time-ordered UUID (RFC 9562 §5.7).

    Args:
        now_ms: Milliseconds since the epoch, UTC.
        entropy: 10 random bytes.

    """
    value = (now_ms & 0xFFFFFFFFFFFF) << 80 | int.from_bytes(entropy[:10], "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
