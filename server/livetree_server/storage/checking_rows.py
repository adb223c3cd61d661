"""What the checks of a topic's rows have in common, and the values that its rows may have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import Connection

__all__ = ["Examined", "Messages", "check_values", "clipped", "name_of", "rows", "unguarded"]

Messages = Literal["message", "trash_message"]
"""The tables that hold messages."""

_ROLES: Final = "'user', 'assistant', 'system', 'tool'"
_STATUSES: Final = "'pending', 'success', 'error', 'paused'"
_LONGEST: Final = 60  # characters of an old value

# The triggers that refuse what a repair has to do to rows.
_GUARDS: Final = (
    "message_goes",
    "message_keeps_id",
    "message_moves",
    "message_needs_parent",
    "message_root_stays",
)


@dataclass(slots=True)
class Examined:
    """
    What was found of a topic.

    Attributes:
        topic_id: The topic.
        texts: What is wrong and can be mended, in sentences.
        hopeless: What is wrong and can't.
        messages: How many it has.

    """

    topic_id: str
    texts: list[str] = field(default_factory=list)
    hopeless: list[str] = field(default_factory=list)
    messages: int = 0


def rows(tx: Connection, sql: str, *values: Any) -> list[Any]:
    """Run a statement and return all that it gives."""
    return [*tx.exec_driver_sql(sql, values)]


@contextmanager
def unguarded(tx: Connection) -> Iterator[None]:
    """Do without the triggers that keep messages in order; in the end they are there again."""
    names = ", ".join(f"'{name}'" for name in _GUARDS)
    made = rows(
        tx, f"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name IN ({names})"
    )
    for name, _ in made:
        tx.exec_driver_sql(f"DROP TRIGGER {name}")
    yield
    for _, sql in made:
        tx.exec_driver_sql(sql)


def clipped(value: object) -> str:
    """Return an old value as a literal, cut where it is long."""
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]!r}…"
    return repr(value)


def name_of(table: Messages, message_id: str) -> str:
    """Name a message as sentences do."""
    return f"message {message_id!r}" if table == "message" else f"deleted message {message_id!r}"


def check_values(tx: Connection, key: int, table: Messages, found: Examined) -> None:
    """Look at the roles, statuses and groups of messages."""
    of_topic = "topic_key = ? AND parent_id IS NOT NULL"
    for column, unsound, instead in (
        ("role", f"role NOT IN ({_ROLES})", "'system'"),
        ("status", f"status NOT IN ({_STATUSES})", "'error'"),
        ("siblings_group_id", "siblings_group_id < 0", "0"),
    ):
        wrong = rows(
            tx,
            f"SELECT id, {column} FROM {table} WHERE {of_topic} AND {unsound} ORDER BY id",
            key,
        )
        name = "group" if column == "siblings_group_id" else column
        found.texts += [
            f"{name_of(table, each)} has the {name} {clipped(value)}" for each, value in wrong
        ]
        if wrong:
            tx.exec_driver_sql(
                f"UPDATE {table} SET {column} = {instead} WHERE {of_topic} AND {unsound}", (key,)
            )
