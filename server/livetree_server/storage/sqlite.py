"""The store in one SQLite file: one thread writes, a few read, and one server owns the file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from filelock import FileLock
from livetree.core.errors import Busy
from livetree.core.trash import TrashEntry, Wanted
from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.exc import SQLAlchemyError

from ..topics.ports import (
    Due,
    LoadedTopic,
    MutationKey,
    OfferRow,
    Run,
    Seen,
    StoredMutation,
    StoreError,
    TopicRow,
    TrashRow,
)
from . import reading, trash
from .checkpoints import empty_log
from .files import StoreRefused, hold, inspect
from .migrate import migrate
from .pruning import Pruning
from .writer import Writer, reason
from .writing import Mark, Renewal, Use

__all__ = ["SqliteStore"]

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

_OLDEST: Final = (3, 37)  # STRICT tables
_MAX_READING: Final = 1_000
_PRAGMAS: Final = (
    "busy_timeout = 5000",
    "journal_mode = WAL",
    "synchronous = FULL",  # a commit that was answered survives a power cut
    "foreign_keys = ON",
    "secure_delete = ON",  # what is deleted is overwritten
    "cache_size = -16000",  # KiB
    "wal_autocheckpoint = 4000",  # pages; a bound: `Checkpoints` comes before it
)


class SqliteStore:
    """
    The store in one SQLite file; see `Store` for what each method promises.

    Made by `open`, ended by `close` or by leaving ``async with``.

    """

    def __init__(self, path: Path, lock: FileLock, readers: int, waiting: int, group: int) -> None:
        self._path = path
        self._lock = lock
        self._writing = _engine(path, "BEGIN IMMEDIATE", poolclass=NullPool)
        migrate(self._writing, path)
        self._writer = Writer(self._writing, max_waiting=waiting, max_group=group)
        self._reading = _engine(
            path, "BEGIN", poolclass=QueuePool, pool_size=readers, max_overflow=0
        )
        self._readers = ThreadPoolExecutor(readers, "livetree-reader")
        self._reads = 0
        self._pruning = Pruning()
        self._erased_from_log = -1  # a server that was killed may have left something there

    @staticmethod
    async def open(
        path: str | PathLike[str],
        *,
        readers: int = 4,
        max_waiting: int = 4_096,
        max_group: int = 512,
    ) -> SqliteStore:
        """
        Open the file, or make it, and bring its schema up to date.

        Args:
            path: The file; its folder is made if it is missing.
            readers: How many threads read.
            max_waiting: How many commits may wait; then they are `Busy`.
            max_group: How many commits may share a transaction.

        Raises:
            StoreRefused: If the file is in use, is not ours, is of a newer version, or
                can't be written.

        """

        def opened() -> SqliteStore:
            # One file has one lock, by whatever path it is named.
            file = Path(path).resolve()
            if sqlite3.sqlite_version_info < _OLDEST:
                raise StoreRefused(
                    f"this Python has SQLite {sqlite3.sqlite_version}, and livetree needs "
                    f"{'.'.join(map(str, _OLDEST))}: use a newer Python"
                )
            lock = hold(file)
            try:
                inspect(file)
                return SqliteStore(file, lock, readers, max_waiting, max_group)
            except BaseException:
                lock.release()
                raise

        opening = asyncio.get_running_loop().run_in_executor(None, opened)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on, and must not keep the file for nobody.
            opening.add_done_callback(_close_unwanted)
            raise

    async def commit(self, run: Run) -> None:
        """As `Store.commit`."""
        await self._writer.write(run)

    async def load(self, topic_id: str, *, deleted: bool = False) -> LoadedTopic | None:
        """As `Store.load`."""
        return await self._read(reading.load, topic_id, deleted)

    async def contents(self, topic_id: str, ids: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        """As `Store.contents`."""
        return await self._read(reading.contents, topic_id, ids)

    async def deltas(self, topic_id: str, after_seq: int, limit: int) -> list[bytes]:
        """As `Store.deltas`."""
        return await self._read(reading.deltas, topic_id, after_seq, limit)

    async def commit_at(self, topic_id: str, seq: int) -> str | None:
        """As `Store.commit_at`."""
        return await self._read(reading.commit_at, topic_id, seq)

    async def mutations(self, keys: Sequence[MutationKey]) -> dict[MutationKey, StoredMutation]:
        """As `Store.mutations`."""
        return await self._read(reading.mutations, keys)

    async def topics(
        self, *, cursor: str | None, limit: int, name: str
    ) -> tuple[list[TopicRow], str | None]:
        """As `Store.topics`."""
        return await self._read(reading.topics, cursor, limit, name)

    async def listed(self, topic_ids: Sequence[str]) -> list[TopicRow]:
        """As `Store.listed`."""
        return await self._read(reading.listed, topic_ids)

    async def seen(self, subject: str, topic_ids: Sequence[str]) -> dict[str, Seen]:
        """As `Store.seen`."""
        return await self._read(reading.seen, subject, topic_ids)

    async def mark_read(self, subject: str, topic_id: str, seq: int) -> Seen | None:
        """As `Store.mark_read`."""
        if await self._writer.write(Mark(subject, topic_id, seq)) is None:
            return None
        # Counted beside the writer: it may take a look at the whole topic.
        return (await self.seen(subject, [topic_id])).get(topic_id)

    async def trash(self, topic_id: str, wanted: Wanted) -> TrashEntry | None:
        """As `Store.trash`."""
        return await self._read(trash.entry, topic_id, wanted)

    async def trash_page(
        self, topic_id: str, *, cursor: str | None, limit: int
    ) -> tuple[list[TrashRow], str | None]:
        """As `Store.trash_page`."""
        return await self._read(trash.page, topic_id, cursor, limit)

    async def offers(self) -> list[OfferRow]:
        """As `Store.offers`."""
        return await self._read(reading.offers)

    async def due(self, *, lease_before: int, offered_before: int) -> list[Due]:
        """As `Store.due`."""
        return await self._read(reading.due, lease_before, offered_before)

    async def renew(self, topic_id: str, message_id: str, epoch: int, until: int) -> None:
        """As `Store.renew`."""
        await self._writer.write(Renewal(topic_id, message_id, epoch, until))

    async def unused(self, before: int) -> list[str]:
        """As `Store.unused`."""
        return await self._read(reading.unused, before)

    async def used(self, topic_ids: Sequence[str], now: int) -> None:
        """As `Store.used`."""
        await self._writer.write(Use(list(topic_ids), now))

    async def prune(self, now: int) -> bool:
        """As `Store.prune`."""
        more: bool = await self._writer.write(lambda tx: self._pruning(tx, now))
        erased = self._pruning.erased
        if more or erased == self._erased_from_log:
            return more
        # What is overwritten in the file stands in its log as it was.
        try:
            emptied = await self._in_a_thread(lambda: empty_log(self._writing))
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise StoreError(f"the log can't be emptied: {reason(error)}") from error
        if emptied:
            self._erased_from_log = erased
        return not emptied

    async def close(self) -> None:
        """As `Store.close`; may be called again."""
        self._writer.close_nowait()
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def statistics(self) -> dict[str, int]:
        """Return what waits and what was done, for logs and metrics."""
        return {**self._writer.statistics(), "reading": self._reads}

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path} {self.statistics()}>"

    async def _read(
        self,
        function: Callable[Concatenate[Connection, Arguments], Answer],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Answer:
        if self._reads >= _MAX_READING:
            raise Busy(f"{_MAX_READING} reads wait for the database: try again")

        def read() -> Answer:
            with self._reading.connect() as tx:
                return function(tx, *args, **kwargs)

        try:
            return await self._in_a_thread(read)
        except SQLAlchemyError as error:
            raise StoreError(f"the database can't be read: {reason(error)}") from error

    async def _in_a_thread(self, function: Callable[[], Answer]) -> Answer:
        try:
            answer = asyncio.get_running_loop().run_in_executor(self._readers, function)
        except RuntimeError:
            raise StoreError("the store is closed") from None
        # Counted until the thread is done, whether or not its caller still waits.
        self._reads += 1
        answer.add_done_callback(self._read_is_done)
        return await answer

    def _read_is_done(self, _: object) -> None:
        self._reads -= 1

    def _close(self) -> None:
        self._writer.close_nowait()
        self._writer.wait_closed()
        self._readers.shutdown()
        self._reading.dispose()
        self._writing.dispose()
        self._lock.release()


def _close_unwanted(opening: asyncio.Future[SqliteStore]) -> None:
    if opening.exception() is None:
        opening.result()._close()


def _engine(path: Path, begin: str, **options: Any) -> Engine:
    """Make connections that keep what they promise to keep."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"check_same_thread": False},
        **options,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: object) -> None:
        # The driver must not begin transactions by its own lights: it leaves reads outside.
        connection.isolation_level = None
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.connection.cursor().execute(begin)

    return engine
