"""Who somebody is, and which topics a token opens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from livetree.core.errors import Forbidden, Unauthenticated
from msgspec import Struct

from .globs import matches

__all__ = ["ADMIN", "LOCAL", "READ", "WRITE", "Authenticator", "Grant", "issue"]

READ: Final = 1
WRITE: Final = 2
ADMIN: Final = 3

_LEVELS: Final = {"read": READ, "write": WRITE, "admin": ADMIN}
_WORDS: Final = {level: word for word, level in _LEVELS.items()}

MIN_SECRET_BYTES: Final = 32
"""HS256 keys shorter than the hash can be guessed (RFC 7518 §3.2)."""


class Grant(Struct, frozen=True):
    """
    What a connection may do.

    Attributes:
        subject: Who it is.
        patterns: Topic patterns (``*`` is any run of characters) with their level.
        expires_at: When it ends, in seconds since the epoch; None for never.

    """

    subject: str
    patterns: tuple[tuple[str, int], ...]
    expires_at: float | None = None

    def level(self, topic_id: str) -> int:
        """Return the highest level that any pattern gives on a topic, 0 for none."""
        return max(
            (level for pattern, level in self.patterns if matches(pattern, topic_id)), default=0
        )

    def require(self, topic_id: str, level: int) -> None:
        """Raise `Forbidden` unless the topic may be used at this level."""
        if self.level(topic_id) < level:
            raise Forbidden(
                f"your token doesn't allow you to {_WORDS[level]} topic {topic_id}: "
                "ask for one that does"
            )


LOCAL: Final = Grant("local", (("*", ADMIN),))
"""The one local user of a server without a secret."""


class Authenticator:
    """
    Turns tokens into grants.

    Args:
        secret: The HS256 secret; None signs everyone in as the local user.

    Raises:
        ValueError: If the secret is too short; the sentence says how long it must be.

    """

    def __init__(self, secret: str | None) -> None:
        if secret is not None and len(secret.encode()) < MIN_SECRET_BYTES:
            raise ValueError(
                f"LIVETREE_SECRET has {len(secret.encode())} bytes; "
                f"it needs at least {MIN_SECRET_BYTES} random ones"
            )
        if secret is not None:
            # It takes its time to be imported, and without a secret there is no need of it.
            import jwt  # noqa: F401
        self._secret = secret

    @property
    def open(self) -> bool:
        """Whether there is no secret, so that everyone is the local user."""
        return self._secret is None

    def grant(self, token: str | None) -> Grant:
        """Return what a token allows; raises `Unauthenticated` with what is wrong with it."""
        if self._secret is None:
            return LOCAL
        if not token:
            raise Unauthenticated("this server needs a token: send one in hello")
        import jwt

        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._secret,
                algorithms=["HS256"],
                options={"require": ["sub", "exp"], "verify_aud": False},
            )
            expires_at = float(claims["exp"])
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired: fetch a new one") from None
        except (jwt.PyJWTError, ValueError, OverflowError) as error:
            raise Unauthenticated(f"the token is not valid ({error}): fetch a new one") from None
        topics = claims.get("livetree.topics", {})
        if not isinstance(topics, dict) or not all(
            isinstance(word, str) and word in _LEVELS for word in topics.values()
        ):
            raise Unauthenticated(
                "the token's livetree.topics is not an object of pattern: read, write or admin"
            )
        patterns = tuple((pattern, _LEVELS[word]) for pattern, word in topics.items())
        return Grant(str(claims["sub"]), patterns, expires_at)


def issue(
    secret: str,
    subject: str,
    topics: Sequence[tuple[str, str]],
    *,
    seconds: int,
    now: Callable[[], float] = time.time,
) -> str:
    """Make a token for a subject: ``topics`` are patterns with read, write or admin."""
    import jwt

    claims = {"sub": subject, "exp": int(now()) + seconds, "livetree.topics": dict(topics)}
    return jwt.encode(claims, secret, algorithm="HS256")
