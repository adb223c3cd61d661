"""The data directory: the database in it, and where the server that has it open is found."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from ..storage.sqlite import SqliteStore

__all__ = ["DATABASE", "announced", "announced_url", "open_store", "option", "prepare"]

DATABASE: Final = "livetree.db"
_ADDRESS: Final = "server.url"

option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The data directory.  [env: LIVETREE_DATA; default: a folder of this user's own]",
)


def prepare(folder: Path) -> None:
    """Make the directory, for this user's eyes only, unless it is there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
        reason = "Permission denied"
    except FileExistsError:
        usable, reason = False, "it is a file"
    except OSError as error:
        usable, reason = False, error.strerror or str(error)
    if not usable:
        raise click.ClickException(
            f"the data directory {folder} can't be used ({reason}): name another with --data"
        )


async def open_store(folder: Path) -> SqliteStore:
    """Open the database; raises what the storage refuses it with."""
    from ..storage.sqlite import SqliteStore

    return await SqliteStore.open(folder / DATABASE)


@contextlib.contextmanager
def announced(folder: Path, url: str) -> Iterator[None]:
    """Note where this server is found, for commands that need its database, while it runs."""
    path = folder / _ADDRESS
    with contextlib.suppress(OSError):
        path.write_text(f"{url}\n", "utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def announced_url(folder: Path) -> str | None:
    """Return where the server is found that has the database open, if it says so."""
    try:
        return (folder / _ADDRESS).read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
