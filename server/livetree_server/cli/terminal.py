"""What is shown: texts of strangers made harmless, times, and a log."""

from __future__ import annotations

import logging
import re
import shutil
from datetime import datetime
from typing import Final

__all__ = ["clipped", "harmless", "local_time", "log_at", "one_line", "width"]

# All control characters but line feed and tab, and those that turn the direction of writing.
_HARMFUL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Take out of a text what would command the terminal; line feeds and tabs stay."""
    return _HARMFUL.sub("", text)


def one_line(text: str) -> str:
    """Return a text as one harmless line."""
    return " ".join(harmless(text).split())


def clipped(text: str, length: int) -> str:
    """Return a text as one harmless line of at most `length` characters."""
    line = one_line(text)
    return line if len(line) <= length else f"{line[: length - 1]}…"


def local_time(ms: int) -> str:
    """Return a time as this machine's people write it, to the minute."""
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "?"


def width() -> int:
    """Return how many characters a line of the terminal has; 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def log_at(level: str) -> None:
    """Log to standard error, from this level on."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    # They tell of their own starts and requests, which says nothing to our users.
    for name in ("alembic", "uvicorn", "websockets", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
