"""
The statements of the commit path, as the text that the driver takes.

They are written once, in SQLAlchemy's words, and compiled once for a database: with
lists of plain tuples they then cost little more than the driver itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Delete,
    Dialect,
    Insert,
    Update,
    bindparam,
    delete,
    insert,
    update,
)
from sqlalchemy.dialects import sqlite

from .schema import live, message, mutation, topic, topic_event

__all__ = ["Statement", "Statements"]


class Statement:
    """
    One compiled statement and the order of its parameters.

    Args:
        dialect: The database's.
        what: The statement.
        parameters: The names of its parameters in the order in which `each` gets them.

    """

    __slots__ = ("_text",)

    def __init__(
        self, dialect: Dialect, what: Insert | Update | Delete, parameters: Sequence[str]
    ) -> None:
        compiled = what.compile(dialect=dialect)
        order = list(getattr(compiled, "positiontup", None) or ())
        if order != list(parameters):
            raise ValueError(f"{compiled} takes {order}, not {list(parameters)}")
        self._text = str(compiled)

    def count(self, tx: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run it once for each of the rows, and tell how many rows of the database that touched."""
        if not rows:
            return 0
        return tx.exec_driver_sql(self._text, list(rows)).rowcount

    def each(self, tx: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """
        Run it once for each of the rows.

        Raises:
            RuntimeError: If not every row has touched one of the database.

        """
        if (touched := self.count(tx, rows)) != len(rows):
            raise RuntimeError(f"{len(rows)} rows were there to touch, not {touched}: {self._text}")

    def __repr__(self) -> str:
        return f"<Statement {self._text}>"


_TOPIC_STATE: Final = ("deleted_at", "name", "name_folded", "metadata", "other_state")


class Statements:
    """Every statement of the commit path, for one database."""

    def __init__(self, dialect: Dialect) -> None:
        def made(what: Insert | Update | Delete, *parameters: str) -> Statement:
            return Statement(dialect, what, parameters)

        def values(*names: str) -> dict[str, Any]:
            return {name: bindparam(name) for name in names}

        times = ("last_activity_at", "last_created_at")
        born = ("id", "root_id", "seq", "commit_id", "digest", *times, "created_at", *_TOPIC_STATE)
        self.insert_topic = made(insert(topic).values(**values(*born)), *born)

        moves = ("seq", "commit_id", "digest", "active_node_id", *times)
        at_base = (topic.c.key == bindparam("topic_key")) & (topic.c.seq == bindparam("base"))
        self.advance_topic = made(
            update(topic).where(at_base).values(**values(*moves)), *moves, "topic_key", "base"
        )
        this_topic = topic.c.key == bindparam("topic_key")
        self.restate_topic = made(
            update(topic).where(this_topic).values(**values(*_TOPIC_STATE)),
            *_TOPIC_STATE,
            "topic_key",
        )

        self.insert_message = made(insert(message), *message.c.keys())
        this_message = (message.c.topic_key == bindparam("of_topic")) & (
            message.c.id == bindparam("this_id")
        )

        def changing(*names: str) -> Statement:
            changed = update(message).where(this_message).values(**values(*names))
            return made(changed, *names, "of_topic", "this_id")

        self.move_message = changing("parent_id")
        self.change_message = changing(
            "status",
            "siblings_group_id",
            "decisions",
            "model_id",
            "stats",
            "timing",
            "context",
            "version",
            "updated_at",
        )
        self.rewrite_message = changing("preview", "empty", "data")
        self.delete_message = made(delete(message).where(this_message), "of_topic", "this_id")

        self.insert_event = made(insert(topic_event), *topic_event.c.keys())
        # One that is stored already is left as it is, and shows in the count.
        claimed = sqlite.insert(mutation).on_conflict_do_nothing()
        self.claim_mutation = made(claimed, *mutation.c.keys())

        self.insert_live = made(insert(live), *live.c.keys())
        this_live = (live.c.topic_key == bindparam("of_topic")) & (
            live.c.message_id == bindparam("this_id")
        )
        self.delete_live = made(delete(live).where(this_live), "of_topic", "this_id")
