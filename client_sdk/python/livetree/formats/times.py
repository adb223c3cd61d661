"""Times as chat files write them, as milliseconds since the epoch."""

from __future__ import annotations

from typing import Final

__all__ = ["ms_of_seconds"]

_LAST_SECOND: Final = 253_402_300_799  # of the year 9999; what is later was not meant as seconds


def ms_of_seconds(value: object) -> int | None:
    """Read seconds since the epoch; what is no such time gives None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Not a number compares as false, so it is no time either.
    return round(value * 1000) if 0 <= value <= _LAST_SECOND else None
