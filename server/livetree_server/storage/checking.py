"""
A whole SQLite database, looked over and mended while no server has it open.

One topic at a time: what is in memory is bounded by the largest. Each is mended in one
transaction, so however a repair ends, every topic is as it was or mended.
"""

from __future__ import annotations

import errno
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from filelock import FileLock
from msgspec import Struct
from sqlalchemy import (
    URL,
    CheckConstraint,
    Connection,
    Engine,
    NullPool,
    Table,
    create_engine,
    event,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from .checking_rows import rows, unguarded
from .checking_topics import examine
from .files import StoreRefused, damaged, hold, inspect
from .migrate import HEAD
from .schema import metadata
from .statements import Statements

__all__ = ["Checker", "Finding", "Passed"]

_PRAGMAS: Final = (
    "busy_timeout = 5000",
    "synchronous = FULL",
    # Rows that break them are what is looked for, and they are mended in whatever order.
    "foreign_keys = OFF",
    "cache_size = -16000",  # KiB
)
_MOST_LINES: Final = 100  # of what SQLite says of a file
_KEYS: Final = 500  # read at once

# What SQLite's own check says of rows and indices. Of anything else the file itself suffers.
_MENDABLE: Final = re.compile(r"row \d+ missing from index|wrong # of entries in index|non-unique")
_UNFIT: Final = re.compile(r"CHECK constraint failed in (\w+)")
_ROOM: Final = 1024 * 1024  # bytes; with less than that on the disk, writing fails in many words


class Finding(Struct, frozen=True, kw_only=True):
    """
    A fault; ``str(finding)`` is a sentence with the old value.

    Attributes:
        topic_id: The topic; None if it is of the database as a whole.
        text: What is wrong.
        mendable: Whether a repair takes care of it.

    """

    topic_id: str | None = None
    text: str
    mendable: bool = True

    def __str__(self) -> str:
        where = "the database" if self.topic_id is None else f"topic {self.topic_id}"
        return f"{where}: {self.text}"


class Passed(Struct, frozen=True):
    """A topic has been gone through; it has so many messages."""

    messages: int


class Checker:
    """
    Looks over the database in a file, which no server may have open meanwhile.

    Made by `open`, ended by `close` or by leaving ``with``.

    Args:
        clock: Milliseconds since the epoch.
        new_id: Makes the ids of commits.

    """

    def __init__(
        self, path: Path, lock: FileLock, *, clock: Callable[[], int], new_id: Callable[[], str]
    ) -> None:
        self._path = path
        self._lock = lock
        self._clock = clock
        self._new_id = new_id
        self._engine = _engine(path)
        self._connection = self._engine.connect()
        self._statements = Statements(self._engine.dialect)

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], int], new_id: Callable[[], str]) -> Checker:
        """
        Take hold of the file.

        Raises:
            StoreRefused: If it is in use, is not ours or of another version, or can't be read;
                if the disk is full.

        """
        file = path.resolve()
        lock = hold(file)
        try:
            inspect(file)
            checker = cls(file, lock, clock=clock, new_id=new_id)
        except BaseException as error:
            lock.release()
            if _is_full(file, error.__cause__):
                raise _full(file) from error
            raise
        try:
            checker._demand_revision()
        except BaseException:
            checker.close()
            raise
        return checker

    def close(self) -> None:
        """Let go of the file; may be called again."""
        self._connection.close()
        self._engine.dispose()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def count(self) -> int:
        """Return the number of topics, deleted ones too; raises `StoreRefused` as `check`."""
        with self._readable(), self._transaction() as tx:
            return int(rows(tx, "SELECT count(*) FROM topic")[0][0])

    def check(self) -> Iterator[Finding | Passed]:
        """
        Find what is wrong, and leave all as it is.

        Raises:
            StoreRefused: If the file can't be read any further.

        """
        return self._all(mend=False)

    def repair(self) -> Iterator[Finding | Passed]:
        """
        Find what is wrong, and mend what can be mended; only another `check` proves it.

        A file that SQLite finds damaged is left as it is.

        Raises:
            StoreRefused: If the file can't be read or written any further, or the disk is full.

        """
        return self._all(mend=True)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if _is_full(self._path, error.orig):
                raise _full(self._path) from error
            raise damaged(self._path, error.orig) from error

    def _all(self, *, mend: bool) -> Iterator[Finding | Passed]:
        with self._readable():
            yield from self._found(mend)

    def _found(self, mend: bool) -> Iterator[Finding | Passed]:
        with self._transaction() as tx:
            _keep_constraints(tx, True)
            found = [*_file(tx), *_schema(tx)]
        yield from found
        if not all(each.mendable for each in found):
            return  # whatever is read, and the more so what is written, can't be relied on
        if mend and found:
            with self._transaction(keep=True) as tx:
                _rebuild(tx, late=False)
        for key in self._keys():
            with self._transaction(keep=mend) as tx:
                # A row with two faults is mended one by one; the next check sees what is left.
                _keep_constraints(tx, False)
                topic = examine(tx, key, self._statements, now=self._clock(), new_id=self._new_id)
            for text in topic.texts:
                yield Finding(topic_id=topic.topic_id, text=text)
            for text in topic.hopeless:
                yield Finding(topic_id=topic.topic_id, text=text, mendable=False)
            yield Passed(topic.messages)
        with self._transaction(keep=mend) as tx:
            lost = [*_lost(tx)]
        yield from lost
        if mend and found:
            with self._transaction(keep=True) as tx:
                _rebuild(tx, late=True)

    def _keys(self) -> Iterator[int]:
        last = -1
        while True:
            with self._transaction() as tx:
                some = rows(
                    tx,
                    'SELECT "key" FROM topic WHERE "key" > ? ORDER BY "key" LIMIT ?',
                    *(last, _KEYS),
                )
            if not some:
                return
            for (last,) in some:
                yield last

    def _demand_revision(self) -> None:
        with self._readable(), self._transaction() as tx:
            made = rows(tx, "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'")
            revision = rows(tx, "SELECT version_num FROM alembic_version") if made else []
        if [*map(tuple, revision)] != [(HEAD,)]:
            raise StoreRefused(
                f"{self._path} was not written by this version of livetree: start its server "
                "once, which brings the database up to date or says what to do"
            )

    @contextmanager
    def _transaction(self, *, keep: bool = False) -> Iterator[Connection]:
        """Do something in a transaction; without `keep` nothing of it stays."""
        transaction = self._connection.begin()
        try:
            yield self._connection
        except BaseException:
            transaction.rollback()
            raise
        if keep:
            transaction.commit()
        else:
            transaction.rollback()

    def __repr__(self) -> str:
        return f"<Checker {self._path}>"


def _readable(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


def _is_full(path: Path, error: BaseException | None) -> bool:
    """Tell whether a disk without room is the reason."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return True
    # Beside a log that can't grow, its index can't either: that is told as a failing disk.
    may_be = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
    return may_be and shutil.disk_usage(path.parent).free < _ROOM


def _full(path: Path) -> StoreRefused:
    return StoreRefused(
        f"the disk with {path} is full. Nothing is lost, each topic is as it was or mended: "
        "make space and repeat"
    )


def _engine(path: Path) -> Engine:
    engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        # Text that is not UTF-8 is told like any other fault.
        connection.text_factory = _readable
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.connection.cursor().execute("BEGIN IMMEDIATE")

    return engine


# The file and its schema ------------------------------------------------------------------


def _keep_constraints(tx: Connection, keep: bool) -> None:
    tx.exec_driver_sql(f"PRAGMA ignore_check_constraints = {'OFF' if keep else 'ON'}")


def _file(tx: Connection) -> Iterator[Finding]:
    try:
        lines = rows(tx, f"PRAGMA integrity_check({_MOST_LINES})")
    except DBAPIError as error:
        lines = [(str(error.orig),)]
    unfit: set[str] = set()
    for (line,) in lines:
        if line == "ok":
            continue
        if (failed := _UNFIT.search(line)) and failed[1] in metadata.tables:
            if failed[1] not in unfit:
                unfit.add(failed[1])
                where = [*_unfit(tx, metadata.tables[failed[1]])]
                yield from where or [Finding(text=f"SQLite's own check says: {line}")]
        elif _MENDABLE.search(line):
            yield Finding(text=f"SQLite's own check says: {line}")
        else:
            yield Finding(
                text=f"the file is damaged ({line}): restore it from a backup", mendable=False
            )


def _unfit(tx: Connection, table: Table) -> Iterator[Finding]:
    """Find the rows that a constraint forbids, with their topics."""
    keys = [column.name for column in table.primary_key if column.name != "topic_key"]
    of_topic = "topic_key" if "topic_key" in table.c else '"key"'
    columns = ", ".join(f'"{key}"' for key in keys)
    said = f"SQLite's own check says: CHECK constraint failed in {table.name}"
    checks = [each for each in table.constraints if isinstance(each, CheckConstraint)]
    for constraint in sorted(checks, key=lambda each: str(each.name)):
        for topic_id, *row in rows(
            tx,
            f'SELECT (SELECT id FROM topic WHERE "key" = unfit.{of_topic}), {columns}'
            f" FROM {table.name} AS unfit WHERE NOT ({constraint.sqltext}) LIMIT ?",
            _MOST_LINES,
        ):
            where = ", ".join(f"{key} {each!r}" for key, each in zip(keys, row, strict=True))
            yield Finding(topic_id=topic_id, text=f"{said}, {constraint.name} at {where}")


def _schema(tx: Connection) -> Iterator[Finding]:
    there = _made(tx)
    for (kind, name), sql in _expected().items():
        found = there.get((kind, name))
        if found == sql:
            continue
        what = "is missing" if found is None else "is not as livetree makes it"
        if kind == "table":
            hint = ": restore it from a backup, or export its topics and import them anew"
            yield Finding(text=f"the table {name!r} {what}{hint}", mendable=False)
        else:
            yield Finding(text=f"the {kind} {name!r} {what}")


def _rebuild(tx: Connection, *, late: bool) -> None:
    """
    Make indices and triggers as they have to be.

    Early, so that no row is hidden by an index that lacks it; late, once the rows are
    such that triggers and unique indices allow them.

    """
    there = _made(tx)
    for (kind, name), sql in _expected().items():
        is_late = kind == "trigger" or sql.startswith("CREATE UNIQUE")
        if kind == "table" or is_late != late or there.get((kind, name)) == sql:
            continue
        if (kind, name) in there:
            tx.exec_driver_sql(f"DROP {kind} {name}")
        tx.exec_driver_sql(sql)
    try:
        with tx.begin_nested():
            tx.exec_driver_sql("REINDEX")
    except IntegrityError:
        if late:
            raise


def _made(tx: Connection) -> dict[tuple[str, str], str]:
    found = rows(tx, "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {(kind, name): " ".join(sql.split()) for kind, name, sql in found}


def _expected() -> dict[tuple[str, str], str]:
    """Return what this version makes, tables first."""
    engine = create_engine("sqlite://")
    with engine.begin() as tx:
        metadata.create_all(tx)
        made = _made(tx)
    engine.dispose()
    return made


# Rows that belong to nothing --------------------------------------------------------------


def _lost(tx: Connection) -> Iterator[Finding]:
    """
    Find rows of topics that are not there, and remove them: nobody can reach them.

    What other references lead to nothing is told topic by topic.

    """
    for name, table in sorted(metadata.tables.items()):
        if "topic_key" not in table.c:
            continue
        of_none = 'topic_key NOT IN (SELECT "key" FROM topic)'
        ((count,),) = rows(tx, f"SELECT count(*) FROM {name} WHERE {of_none}")
        if not count:
            continue
        told = f"{count:,} row{'s' if count > 1 else ''} of the table {name!r}"
        yield Finding(text=f"{told} name no row of 'topic' that is there")
        with unguarded(tx):
            tx.exec_driver_sql(f"DELETE FROM {name} WHERE {of_none}")
