"""
The one thread that writes, and how what waits for it shares its transactions.

What waits when a transaction ends is the next group: the group's size regulates itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, TypeAlias

from livetree.core.errors import Busy, Internal
from sqlalchemy import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError

from ..topics.ports import Run, StoreError
from .checkpoints import Checkpoints
from .statements import Statements
from .writing import Note, note, write_runs

__all__ = ["Chore", "Writer", "reason"]

logger = logging.getLogger("livetree.storage")

Chore: TypeAlias = Callable[[Connection], Any]
"""Something else to do in a transaction of its own, when no run waits before it."""

_GROUP_BYTES: Final = 8 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Waiting:
    work: Run | Note | Chore
    answer: asyncio.Future[Any]

    @property
    def size(self) -> int:
        if not isinstance(self.work, Run):
            return 0
        return sum(len(entry.frame) for entry in self.work.entries)


_Outcome: TypeAlias = Any  # what the caller gets: raised if it is an exception, else returned


class Writer:
    """
    Writes runs, all that wait in one transaction.

    Args:
        engine: Gives the connection; its transactions begin by taking the write lock.
        max_waiting: How much may wait; then callers get `Busy`.
        max_group: The most that share one transaction.

    A run that the database refuses is refused alone: the rest of its group is written.

    """

    def __init__(self, engine: Engine, *, max_waiting: int, max_group: int) -> None:
        self._engine = engine
        self._statements = Statements(engine.dialect)
        self._max_waiting = max_waiting
        self._max_group = max_group
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._connection: Connection | None = None
        self._closed = False
        self._groups = 0
        self._commits = 0
        self._failures = 0
        self._checkpoints = Checkpoints(engine)
        self._thread = Thread(target=self._work, name="livetree-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Run | Note | Chore) -> Any:
        """
        Have it written, and wait until it is durable.

        Cancelling gives up the waiting, not the writing.

        Raises:
            SeqTaken, MutationTaken: As `Store.commit`; nothing was written.
            Busy: If too much waits already; nothing was written.
            Internal: If the database refuses it; nothing was written.
            StoreError: If the outcome is unknown, or the writer is closed.

        """
        if self._closed:
            raise StoreError("the store is closed")
        if self._queue.qsize() >= self._max_waiting:
            raise Busy(f"{self._max_waiting} commits wait for the database: try again")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.put(_Waiting(work, answer))
        return await answer

    def close_nowait(self) -> None:
        """Take nothing more; what waits is still written. May be called again."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)

    def wait_closed(self) -> None:
        """Block until all is written and the threads have ended, once it was told to close."""
        self._thread.join()
        self._checkpoints.close()

    def statistics(self) -> dict[str, int]:
        """Return what waits, and what was done since the start."""
        return {
            "waiting": self._queue.qsize(),
            "groups": self._groups,
            "commits": self._commits,
            "failures": self._failures,
        }

    def __repr__(self) -> str:
        return f"<Writer {self.statistics()}>"

    def _work(self) -> None:
        more = True
        while more:
            group, more = self._next_group()
            runs = [each for each in group if isinstance(each.work, Run | Note)]
            chores = [each for each in group if not isinstance(each.work, Run | Note)]
            for together in (runs, *([chore] for chore in chores)):
                self._attend(together)
        self._disconnect()

    def _next_group(self) -> tuple[list[_Waiting], bool]:
        """Return what waits, and whether anything may come after it."""
        first = self._queue.get()
        group: list[_Waiting] = []
        size = 0
        while first is not None:
            group.append(first)
            size += first.size
            if len(group) >= self._max_group or size >= _GROUP_BYTES:
                return group, True
            try:
                first = self._queue.get_nowait()
            except Empty:
                return group, True
        return group, False

    def _attend(self, group: Sequence[_Waiting]) -> None:
        if not group:
            return
        try:
            self._write(group)
        except Exception as error:
            # A fault of this module: nobody may wait for ever for it.
            logger.exception("the writer failed")
            _answer(group, [StoreError(f"the writer failed: {error}") for _ in group])

    def _write(self, group: Sequence[_Waiting]) -> None:
        """Write a group and answer each; alone, if together they fail."""
        try:
            outcomes = self._transact(group)
        except _Unwritten as failure:
            if len(group) > 1:
                logger.warning("a group of %d is tried one by one: %s", len(group), failure)
                for each in group:
                    self._write([each])
                return
            self._failures += 1
            outcomes = [self._refusal(failure)]
        self._groups += 1
        _answer(group, outcomes)
        commits = sum(
            isinstance(each.work, Run) and outcome is None
            for each, outcome in zip(group, outcomes, strict=True)
        )
        self._commits += commits
        if commits:
            self._checkpoints.wrote(commits)

    def _transact(self, group: Sequence[_Waiting]) -> list[_Outcome]:
        """
        Do it all in one transaction.

        Raises:
            _Unwritten: If that is impossible; nothing was written.

        """
        try:
            connection = self._connect()
            transaction = connection.begin()
        except Exception as error:
            # No fault of any run: alone each would only wait as long again.
            return self._failed(group, "the database can't be written", error)
        try:
            outcomes = self._do(connection, group)
        except Exception as error:
            self._roll_back(transaction)
            raise _Unwritten(reason(error)) from error
        try:
            transaction.commit()
        except Exception as error:
            return self._failed(group, "nobody knows what became of a commit", error)
        return outcomes

    def _failed(self, group: Sequence[_Waiting], what: str, error: Exception) -> list[_Outcome]:
        logger.error("%s: %s", what, reason(error))
        self._failures += 1
        self._disconnect()
        return [StoreError(f"{what}: {reason(error)}") for _ in group]

    def _refusal(self, failure: _Unwritten) -> Exception:
        cause = failure.__cause__
        said = cause.orig if isinstance(cause, DBAPIError) else cause
        if isinstance(said, self._engine.dialect.loaded_dbapi.OperationalError):
            return StoreError(f"the database can't be written: {failure}")
        logger.error("the database refused a change", exc_info=cause)
        return Internal("the database refused the change, and nothing of it was kept: report this")

    def _do(self, tx: Connection, group: Sequence[_Waiting]) -> list[_Outcome]:
        runs = [each.work for each in group if isinstance(each.work, Run)]
        written = iter(write_runs(tx, self._statements, runs) if runs else ())
        outcomes: list[_Outcome] = []
        for each in group:
            if isinstance(each.work, Run):
                outcomes.append(next(written))
            elif isinstance(each.work, Note):
                outcomes.append(note(tx, each.work))
            else:
                outcomes.append(each.work(tx))
        return outcomes

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def _roll_back(self, transaction: RootTransaction) -> None:
        try:
            transaction.rollback()
        except Exception:
            logger.exception("a transaction could not be rolled back: it goes with its connection")
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.invalidate()
            connection.close()
        except Exception:
            logger.exception("a connection could not be closed")


class _Unwritten(Exception):
    """A transaction failed before its commit; the cause is what the database said."""


def reason(error: Exception) -> str:
    """Return what the database said, without the statement that it said it of."""
    return str(error.orig if isinstance(error, DBAPIError) else error)


def _answer(group: Sequence[_Waiting], outcomes: Sequence[_Outcome]) -> None:
    """Wake the callers: one call into each event loop, however many wait there."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], _Outcome]]] = {}
    for each, outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(each.answer.get_loop(), []).append((each.answer, outcome))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, answers)
        except RuntimeError:
            logger.debug("%d callers have gone with their event loop", len(answers))


def _settle(answers: Sequence[tuple[asyncio.Future[Any], _Outcome]]) -> None:
    for answer, outcome in answers:
        if answer.done():
            continue  # its caller was cancelled
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
