"""May this server open this file? What is refused here says what to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from ..topics.ports import StoreError

__all__ = ["APPLICATION", "StoreInUse", "StoreRefused", "damaged", "hold", "inspect"]

APPLICATION: Final = 0x6C747265  # "ltre"
"""What an SQLite file of ours says of itself in its header."""

_MAGIC: Final = b"SQLite format 3\0"


class StoreRefused(StoreError):
    """The database can't be used; the sentence says why, and what to do."""


class StoreInUse(StoreRefused):
    """Another server has the database open."""


def hold(path: Path) -> FileLock:
    """
    Lock a database file for this process, by a lock file beside it.

    The folder is made if it is missing. The operating system lets go of the lock when
    the process ends, however it ends.

    Raises:
        StoreInUse: If another server holds it.
        StoreRefused: If nothing can be written there.

    """
    # Acquired in one thread and released in another.
    lock = FileLock(f"{path}.lock", thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise StoreInUse(
            f"{path} is in use by another livetree server: stop that one, or name another file"
        ) from None
    except OSError as error:
        raise StoreRefused(
            f"{path.parent} can't be written to ({error.strerror or error}): name a file "
            "in a folder that this user may write to"
        ) from error
    return lock


def inspect(path: Path) -> None:
    """
    Look at a file before anything is done with it, and leave it as it is.

    Raises:
        StoreRefused: If there is something in it that is not ours, or can't be read.

    """
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreRefused(
            f"{path} can't be read ({error.strerror or error}): name another file"
        ) from error
    if start and start != _MAGIC:
        raise StoreRefused(f"{path} is not an SQLite database: name another file")
    try:
        with closing(sqlite3.connect(path)) as sql:
            (application,) = sql.execute("PRAGMA application_id").fetchone()
            (tables,) = sql.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    # One of ours whose making was cut short is empty.
    if application != APPLICATION and (application or tables):
        raise StoreRefused(f"{path} is a database of another program: name another file")


def damaged(path: Path, why: object) -> StoreRefused:
    """Return the refusal of a database that can't be read or written."""
    return StoreRefused(
        f"{path} can't be used as a database ({why}): restore it from a backup, or name "
        "another file"
    )
