"""May this server open this file? What is refused here says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from ..topics.ports import StoreError

__all__ = ["StoreInUse", "StoreRefused", "hold", "inspect"]

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
    Look at a file before SQLite does.

    Raises:
        StoreRefused: If it is there, is not empty and is no SQLite database.

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
