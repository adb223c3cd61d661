"""Brings a database to the schema that this version knows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError

from .files import APPLICATION, StoreRefused, damaged

__all__ = ["HEAD", "migrate"]

HEAD: Final = "0002"
"""The newest revision that this version knows; `migrations` has them all."""


def migrate(engine: Engine, path: Path) -> None:
    """
    Make the schema, or bring it up to date: all in one transaction, or nothing.

    Raises:
        StoreRefused: If the database is of a newer livetree, or can't be read or written.

    """
    try:
        with engine.begin() as tx:
            # Alembic takes its time to be imported, and most starts have no need of it.
            if (current := _revision(tx)) != HEAD:
                _upgrade(tx, path, current)
    except DBAPIError as error:
        raise damaged(path, error.orig) from error


def _revision(tx: Connection) -> str | None:
    if not inspect(tx).has_table("alembic_version"):
        return None
    revision: str | None = tx.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return revision


def _upgrade(tx: Connection, path: Path, current: str | None) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "livetree_server.storage:migrations")
    config.attributes["connection"] = tx
    known = {each.revision for each in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise StoreRefused(
            f"{path} was written by a newer livetree (revision {current}; this one knows "
            f"up to {HEAD}): install that version, or name another file"
        )
    tx.exec_driver_sql(f"PRAGMA application_id = {APPLICATION}")
    command.upgrade(config, "head")
