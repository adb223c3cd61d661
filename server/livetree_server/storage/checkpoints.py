"""Copies the write-ahead log into the database file, in a thread that no commit waits for."""

from __future__ import annotations

import logging
from threading import Condition, Thread
from typing import Final

from sqlalchemy import Engine

__all__ = ["Checkpoints", "empty_log"]

logger = logging.getLogger("livetree.storage")

_MANY: Final = 1_000  # commits
_LULL: Final = 1.0  # seconds without a commit
_PATIENCE: Final = 100  # ms


class Checkpoints:
    """
    Makes a checkpoint after many commits, and in every lull.

    Under constant load a commit may be in the log before the last one has been copied, and
    the log begins anew only when all is. So the writer's connection still makes a
    checkpoint itself when the log is long; it then finds little left to copy.

    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._news = Condition()
        self._commits = 0
        self._closed = False
        self._thread = Thread(target=self._work, name="livetree-checkpoints", daemon=True)
        self._thread.start()

    def wrote(self, commits: int) -> None:
        """Note that there are more commits in the log."""
        with self._news:
            first = not self._commits
            self._commits += commits
            if first or self._commits >= _MANY:
                self._news.notify()

    def close(self) -> None:
        """End the thread, after the checkpoint that it is making; may be called again."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()

    def _work(self) -> None:
        while self._wait_until_due():
            try:
                with self._engine.connect() as connection:
                    cursor = connection.connection.cursor()
                    cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
                    cursor.close()
            except Exception:
                logger.exception("a checkpoint failed")

    def _wait_until_due(self) -> bool:
        with self._news:
            while not self._closed and self._commits < _MANY:
                before = self._commits
                self._news.wait(_LULL if before else None)
                if before and before == self._commits:
                    break
            self._commits = 0
            return not self._closed

    def __repr__(self) -> str:
        return f"<Checkpoints commits={self._commits}>"


def empty_log(engine: Engine) -> bool:
    """
    Copy the log into the database file and cut it off: what stood in it is gone.

    Returns whether that was possible: not while somebody reads what is still in the log.

    """
    with engine.connect() as connection:
        cursor = connection.connection.cursor()
        try:
            # Who writes waits for the second one: it must find little to do, and not wait long.
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            cursor.execute(f"PRAGMA busy_timeout = {_PATIENCE}")
            (busy, _, _) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            cursor.close()
    return not busy
