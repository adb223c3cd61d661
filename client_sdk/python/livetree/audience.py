"""Those who follow something that is live: readers of its changes, and who waits for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from .core.errors import LivetreeError

__all__ = ["Audience", "Reader"]

ShownT = TypeVar("ShownT")
ReaderT = TypeVar("ReaderT", bound="Reader")


class Reader(Protocol):
    """Who reads changes one after the other."""

    def put(self, change: Any) -> None:
        """Queue a change; never waits."""

    def end(self, error: LivetreeError | None = None) -> None:
        """Let it have what waits, and no more."""


class Audience(Generic[ShownT]):
    """
    The readers and waiters of one live thing.

    Args:
        shown: The thing: what predicates are asked about.
        over: Returns the error of who waits for it after its end.

    """

    def __init__(self, shown: ShownT, over: Callable[[], LivetreeError]) -> None:
        self._shown = shown
        self._over = over
        self._readers: WeakSet[Reader] = WeakSet()
        self._waiters: list[tuple[Callable[[ShownT], bool], asyncio.Future[None]]] = []
        self._error: LivetreeError | None = None
        self._ended = False

    def join(self, reader: ReaderT) -> ReaderT:
        """Let a reader hear what is told from now on, as long as somebody holds it."""
        if self._ended:
            reader.end(self._error)
        else:
            self._readers.add(reader)
        return reader

    async def wait_for(self, predicate: Callable[[ShownT], bool]) -> None:
        """
        Return once a predicate holds; it is asked now and whenever something is told.

        An exception of the predicate is raised here.

        Raises:
            LivetreeError: If it ends before.

        """
        if predicate(self._shown):
            return
        if self._ended:
            raise self._last_error()
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (predicate, held)
        self._waiters.append(waiter)
        try:
            await held
        finally:
            self._waiters.remove(waiter)

    def tell(self, changes: Iterable[Any]) -> None:
        """Tell the readers, and ask for those who wait."""
        for change in changes:
            for reader in list(self._readers):
                reader.put(change)
        for predicate, held in self._waiters:
            if held.done():
                continue
            try:
                if predicate(self._shown):
                    held.set_result(None)
            except Exception as error:
                held.set_exception(error)

    def end(self, error: LivetreeError | None, *, in_peace: bool = False) -> None:
        """
        End all reading and waiting, with an error or without.

        ``in_peace`` spares the readers the error: they have heard why.

        """
        if self._ended:
            return
        self._ended = True
        self._error = error
        for reader in list(self._readers):
            reader.end(None if in_peace else error)
        for _, held in self._waiters:
            if not held.done():
                held.set_exception(self._last_error())

    def _last_error(self) -> LivetreeError:
        return self._over() if self._error is None else self._error.with_traceback(None)

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {"readers": len(self._readers), "waiters": len(self._waiters)}

    def __repr__(self) -> str:
        return f"<Audience of {self._shown!r} {self.statistics()}>"
