"""When a lost connection is tried again, and when it is not (protocol, section C)."""

from __future__ import annotations

from typing import Final

from .core.errors import Forbidden, LivetreeError, TooLarge, Unauthenticated, Validation
from .core.protocol import Close

__all__ = ["Backoff", "final_error"]

FIRST_SECONDS: Final = 0.1
MOST_SECONDS: Final = 10.0
RESTART_SECONDS: Final = 1.0
"""Over how long the clients of a restarting server spread their return."""

LATER_SECONDS: Final = 5.0
"""How long a server that has too much to do is left alone, at least."""

_LATER: Final = (Close.RATE_LIMITED, Close.OVERLOADED)


class Backoff:
    """
    Delays that double from `FIRST_SECONDS` to `MOST_SECONDS`, each with jitter.

    Only a connection that stood for `MOST_SECONDS` starts them over: a server that
    accepts and closes at once is not hammered.

    """

    def __init__(self) -> None:
        self.attempts = 0

    def stood(self, seconds: float) -> None:
        """Note how long a connection was up."""
        if seconds >= MOST_SECONDS:
            self.attempts = 0

    def delay(self, code: int | None, chance: float) -> float:
        """
        Return the seconds to wait.

        Args:
            code: The code that the connection closed with; None if it was never open.
            chance: A random number from 0 up to 1.

        """
        if code == Close.RESTARTING:
            return RESTART_SECONDS * chance
        top = min(MOST_SECONDS, FIRST_SECONDS * 2.0**self.attempts)
        self.attempts = min(self.attempts + 1, 16)
        if code in _LATER:
            top = max(top, 2 * LATER_SECONDS)
        return top * (1 + chance) / 2

    def __repr__(self) -> str:
        return f"<Backoff attempts={self.attempts}>"


def final_error(code: int, reason: str) -> LivetreeError | None:
    """Return the error after which coming back unchanged is no use; None for any other close."""
    said = f": {reason}" if reason else ""
    if code == Close.PROTOCOL_ERROR:
        return Validation(f"the server ended the connection as a protocol error{said}", close=code)
    if code == Close.UNAUTHENTICATED:
        return Unauthenticated(f"the server wants a valid token{said}", close=code)
    if code == Close.FORBIDDEN:
        return Forbidden(f"the server refused the connection{said}", close=code)
    if code == Close.TOO_LARGE:
        return TooLarge(f"a frame was larger than the server takes{said}", close=code)
    return None
