"""What happens to mirrors, as values, and the bounded queues that carry it to readers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Generic, Self, TypeAlias, TypeVar

from msgspec import Struct

from .core.errors import LivetreeError
from .core.protocol import Delta, Op, TopicEntry

__all__ = [
    "Change",
    "Changes",
    "Committed",
    "Gone",
    "ListChange",
    "ListChanges",
    "Listed",
    "Loaded",
    "Marked",
    "Offline",
    "Relisted",
    "Reset",
    "Skipped",
    "Streamed",
    "Synced",
]

QUEUE_LENGTH: Final = 1000
"""How many changes may wait for one reader."""


class Committed(Struct, frozen=True):
    """A commit was applied: the tree is now at ``delta.seq``."""

    delta: Delta


class Streamed(Struct, frozen=True):
    """
    A reply being written has grown up to op ``n``.

    With ``reset`` the ops make the whole reply; what was shown of it is void.

    """

    message_id: str
    epoch: int
    n: int
    ops: list[Op]
    reset: bool


class Loaded(Struct, frozen=True):
    """Content that was cold has arrived."""

    message_ids: list[str]


class Synced(Struct, frozen=True):
    """Nothing is missing: the mirror was equal to the server's tree at ``seq``."""

    seq: int
    commit: str


class Reset(Struct, frozen=True):
    """
    The whole tree was replaced by a snapshot: draw everything anew.

    With ``history`` the server's history is another than before, as after a restored
    backup: what was seen may never have happened.

    """

    history: bool


class Offline(Struct, frozen=True):
    """The connection is lost; the mirror stays as it is until it is `Synced` again."""


class Skipped(Struct, frozen=True):
    """The reader was too slow for this many changes: the mirror has them, draw it anew."""

    count: int


class Gone(Struct, frozen=True):
    """The topic is no longer there for this client; it is the last change."""

    reason: str


Change: TypeAlias = Committed | Streamed | Loaded | Synced | Reset | Offline | Skipped | Gone


class Listed(Struct, frozen=True):
    """Topics have come or have changed, and others are no longer in the list."""

    topics: list[TopicEntry]
    gone: list[str]


class Marked(Struct, frozen=True):
    """A topic was read up to ``read_seq``, here or on another device."""

    topic_id: str
    read_seq: int
    unread: int


class Relisted(Struct, frozen=True):
    """The whole list was replaced, as after a new connection: draw it anew."""


ListChange: TypeAlias = Listed | Marked | Relisted | Offline | Skipped

ChangeT = TypeVar("ChangeT", Change, ListChange)


class _Queue(Generic[ChangeT]):
    """What waits for one reader; the promises stand at `Changes`."""

    __slots__ = ("__weakref__", "_ended", "_error", "_limit", "_queue", "_wake")

    def __init__(self, limit: int = QUEUE_LENGTH) -> None:
        self._queue: deque[ChangeT | Skipped] = deque()
        self._limit = limit
        self._ended = False
        self._error: LivetreeError | None = None
        self._wake = asyncio.Event()

    def put(self, change: ChangeT | Skipped) -> None:
        """Queue a change, or have it skipped."""
        if self._ended:
            return
        if len(self._queue) >= self._limit and not isinstance(change, Gone):
            skipped = [each.count if isinstance(each, Skipped) else 1 for each in self._queue]
            self._queue.clear()
            change = Skipped(sum(skipped) + 1)
        self._queue.append(change)
        self._wake.set()

    def end(self, error: LivetreeError | None = None) -> None:
        """Let the reader have what waits, and no more."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._wake.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChangeT | Skipped:
        while not self._queue:
            if self._ended:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()

    def __len__(self) -> int:
        return len(self._queue)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} waiting={len(self._queue)}{' ended' if self._ended else ''}>"


class Changes(_Queue[Change]):
    """
    The changes of one open topic from now on: ``async for change in changes``.

    At most `QUEUE_LENGTH` wait. A reader that is slower gets one `Skipped` in their
    place; the mirror itself is always exact. It ends after `Gone` and when the mirror is
    closed, and raises the error that ended the client, if one did. Cancelling a wait
    loses nothing.

    """

    __slots__ = ()


class ListChanges(_Queue[ListChange]):
    """
    The changes of the list of topics from now on: ``async for change in changes``.

    Bounded as `Changes` are. It ends when the list is left, and raises the error that
    ended the client, if one did.

    """

    __slots__ = ()
