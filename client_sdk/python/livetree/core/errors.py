"""The one set of errors, shared by the server, both SDKs and the conformance cases."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "Busy",
    "Conflict",
    "Forbidden",
    "Internal",
    "InvalidOperation",
    "LivetreeError",
    "NotFound",
    "RateLimited",
    "StaleCursor",
    "StaleStream",
    "TooLarge",
    "TopicLive",
    "Unauthenticated",
    "Unavailable",
    "Validation",
    "error_of",
]


class LivetreeError(Exception):
    """
    Base of every error that crosses the wire.

    Attributes:
        code: The machine-readable code, one of the small set of these classes.
        details: Facts for programs (ids, limits), JSON values only.

    ``str(error)`` is a sentence for people that says what to do.

    """

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details: dict[str, Any] = details


class Validation(LivetreeError):
    """The request is not of the form that its command asks for."""

    code = "VALIDATION"


class NotFound(LivetreeError):
    """A topic or message that the request names does not exist."""

    code = "NOT_FOUND"


class InvalidOperation(LivetreeError):
    """The request is well formed, but the tree's rules refuse it."""

    code = "INVALID_OPERATION"


class Conflict(LivetreeError):
    """An id is taken, or something changed since the caller looked."""

    code = "CONFLICT"


class TopicLive(LivetreeError):
    """Raised when a command would disturb a reply that is still being written."""

    code = "TOPIC_LIVE"

    def __init__(self, reply_id: str) -> None:
        super().__init__(
            f"reply {reply_id} is still being written: wait for it, or abort it",
            messageId=reply_id,
        )


class StaleCursor(LivetreeError):
    """A cursor names a message that is no longer on the path being read."""

    code = "STALE_CURSOR"


class StaleStream(LivetreeError):
    """A writer that was replaced, or whose reply has ended, tried to write."""

    code = "STALE_STREAM"


class Unauthenticated(LivetreeError):
    """There is no valid token: sign in and connect again."""

    code = "UNAUTHENTICATED"


class Forbidden(LivetreeError):
    """The token is valid, but does not allow this."""

    code = "FORBIDDEN"


class TooLarge(LivetreeError):
    """A value is over a limit; the details name the limit."""

    code = "TOO_LARGE"


class RateLimited(LivetreeError):
    """Too many requests in too short a time: slow down and repeat."""

    code = "RATE_LIMITED"


class Busy(LivetreeError):
    """A bounded queue is full; nothing happened: repeat after a moment."""

    code = "BUSY"


class Unavailable(LivetreeError):
    """The outcome is unknown: repeat the request with the same mutation id."""

    code = "UNAVAILABLE"


class Internal(LivetreeError):
    """A fault of the server; nothing happened."""

    code = "INTERNAL"


_BY_CODE: dict[str, type[LivetreeError]] = {
    kind.code: kind
    for kind in (
        Validation,
        NotFound,
        InvalidOperation,
        Conflict,
        StaleCursor,
        StaleStream,
        Unauthenticated,
        Forbidden,
        TooLarge,
        RateLimited,
        Busy,
        Unavailable,
        Internal,
    )
}


def error_of(code: str, message: str, details: dict[str, Any]) -> LivetreeError:
    """Make the error that an ``error`` frame describes; an unknown code becomes `Internal`."""
    if code == TopicLive.code and isinstance(details.get("messageId"), str):
        live = TopicLive(details["messageId"])
        live.details = dict(details)
        return live
    error = _BY_CODE.get(code, Internal)(message)
    error.details = dict(details)
    return error
