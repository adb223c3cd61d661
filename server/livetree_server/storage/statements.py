"""
The statements of the commit path, as the text that the driver takes.

They are written once, in SQLAlchemy's words, and compiled once for a database. What then
runs is the driver's own cursor with plain tuples: for one small commit, what SQLAlchemy does
around each statement takes longer than the statement. So errors are the driver's own, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Delete,
    Dialect,
    Insert,
    Select,
    Text,
    Update,
    bindparam,
    column,
    delete,
    exists,
    func,
    insert,
    select,
    update,
    values,
)

from .rows import TOPIC_STATE
from .schema import live, message, mutation, topic, topic_event, trash, trash_message

__all__ = ["BURIED_AT_ONCE", "Lookup", "Statement", "Statements"]


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

    def each(
        self, tx: Connection, rows: Sequence[tuple[Any, ...]], *, touching: int | None = None
    ) -> None:
        """
        Run it once for each of the rows.

        Args:
            tx: The transaction.
            rows: The parameters of each time.
            touching: How many rows of the database it touches in all; by default as many.

        Raises:
            RuntimeError: If it has touched more or fewer.

        """
        if not rows:
            return
        touched, wanted = self.any(tx, rows), len(rows) if touching is None else touching
        if touched != wanted:
            raise RuntimeError(f"{wanted} rows were there to touch, not {touched}: {self._text}")

    def any(self, tx: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run it once for each of the rows, and return how many rows of the database it touched."""
        with closing(tx.connection.cursor()) as cursor:
            cursor.executemany(self._text, rows)
            touched: int = cursor.rowcount
        return touched

    def __repr__(self) -> str:
        return f"<Statement {self._text}>"


class Lookup:
    """
    A query for a list of keys, compiled once for each power of two of them.

    Args:
        dialect: The database's.
        query: Makes the query for some keys; it has no parameters but them, in their order.

    """

    __slots__ = ("_dialect", "_query", "_texts")

    def __init__(
        self, dialect: Dialect, query: Callable[[Sequence[tuple[str, ...]]], Select[Any]]
    ) -> None:
        self._dialect = dialect
        self._query = query
        self._texts: dict[int, str] = {}

    def rows(self, tx: Connection, keys: Sequence[tuple[str, ...]]) -> list[Any]:
        """Return what is found; the same row may come twice."""
        found: list[Any] = []
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            size = 1 << (len(some) - 1).bit_length()
            filled = [*some, *[some[-1]] * (size - len(some))]
            with closing(tx.connection.cursor()) as cursor:
                cursor.execute(self._text(filled), tuple(chain(*filled)))
                found += cursor.fetchall()
        return found

    def _text(self, keys: Sequence[tuple[str, ...]]) -> str:
        text = self._texts.get(len(keys))
        if text is None:
            query = self._query(keys).compile(
                dialect=self._dialect, compile_kwargs={"render_postcompile": True}
            )
            text = self._texts[len(keys)] = str(query)
        return text

    def __repr__(self) -> str:
        return f"<Lookup {self._query.__name__}>"


_AT_ONCE: Final = 512
BURIED_AT_ONCE: Final = 200
"""How many messages go into the trash by one statement, where there are so many."""


class Statements:
    """Every statement of the commit path, for one database."""

    def __init__(self, dialect: Dialect) -> None:
        def made(what: Insert | Update | Delete, *parameters: str) -> Statement:
            return Statement(dialect, what, parameters)

        def named(*names: str) -> dict[str, Any]:
            return {name: bindparam(name) for name in names}

        self.lock_topics = Lookup(dialect, _topics_to_lock)
        self.find_mutations = Lookup(dialect, _stored_mutations)

        times = ("last_activity_at", "last_created_at")
        born = ("id", "root_id", "seq", "commit_id", "digest", *times, "created_at", *TOPIC_STATE)
        self.insert_topic = made(insert(topic).values(**named(*born)), *born)

        moves = ("seq", "commit_id", "digest", "active_node_id", *times)
        at_base = (topic.c.key == bindparam("topic_key")) & (topic.c.seq == bindparam("base"))
        used_at = func.max(topic.c.used_at, bindparam("now"))
        self.advance_topic = made(
            update(topic).where(at_base).values(**named(*moves), used_at=used_at),
            *moves,
            "now",
            "topic_key",
            "base",
        )
        this_topic = topic.c.key == bindparam("topic_key")
        self.restate_topic = made(
            update(topic).where(this_topic).values(**named(*TOPIC_STATE)),
            *TOPIC_STATE,
            "topic_key",
        )

        self.insert_message = made(insert(message), *message.c.keys())
        this_message = (message.c.topic_key == bindparam("of_topic")) & (
            message.c.id == bindparam("this_id")
        )

        def changing(*names: str) -> Statement:
            changed = update(message).where(this_message).values(**named(*names))
            return made(changed, *names, "of_topic", "this_id")

        self.move_message = changing("parent_id")
        self.change_message = changing(
            "status",
            "siblings_group_id",
            "decisions",
            "model_id",
            "author",
            "stats",
            "timing",
            "context",
            "version",
            "updated_at",
        )
        self.rewrite_message = changing("preview", "empty", "data")
        self.delete_message = made(delete(message).where(this_message), "of_topic", "this_id")

        self.insert_trash = made(insert(trash), *trash.c.keys())
        # What the database has, it moves itself: content takes no way round.
        buried = {
            each.name: bindparam(each.name) if each.name == "entry_seq" else message.c[each.name]
            for each in trash_message.c
        }

        def burying(*ids: str) -> Statement:
            these = message.c.id.in_([bindparam(each) for each in ids])
            rows = select(*buried.values()).where(message.c.topic_key == bindparam("of_topic"))
            moved = insert(trash_message).from_select(list(buried), rows.where(these))
            return made(moved, "entry_seq", "of_topic", *ids)

        self.bury_message = burying("this_id")
        self.bury_many = burying(*(f"id_{place}" for place in range(BURIED_AT_ONCE)))
        self.revive_message = made(
            delete(trash_message)
            .where(trash_message.c.topic_key == bindparam("of_topic"))
            .where(trash_message.c.id == bindparam("this_id"))
            .where(trash_message.c.entry_seq == bindparam("of_entry")),
            "of_topic",
            "this_id",
            "of_entry",
        )
        its_rows = (trash_message.c.topic_key == trash.c.topic_key) & (
            trash_message.c.entry_seq == trash.c.seq
        )
        self.delete_empty_trash = made(
            delete(trash)
            .where(trash.c.topic_key == bindparam("of_topic"))
            .where(trash.c.seq == bindparam("this_seq"))
            .where(~exists().where(its_rows)),
            "of_topic",
            "this_seq",
        )

        self.insert_event = made(insert(topic_event), *topic_event.c.keys())
        self.insert_mutation = made(insert(mutation), *mutation.c.keys())

        self.insert_live = made(insert(live), *live.c.keys())
        this_live = (live.c.topic_key == bindparam("of_topic")) & (
            live.c.message_id == bindparam("this_id")
        )
        self.delete_live = made(delete(live).where(this_live), "of_topic", "this_id")


def _topics_to_lock(keys: Sequence[tuple[str, ...]]) -> Select[Any]:
    return (
        select(topic.c.id, topic.c.key, topic.c.seq, topic.c.deleted_at, topic.c.temporary)
        .where(topic.c.id.in_([topic_id for (topic_id,) in keys]))
        .order_by(topic.c.key)
        .with_for_update()
    )


def _stored_mutations(keys: Sequence[tuple[str, ...]]) -> Select[Any]:
    # Joined, because for `(subject, mutation) IN (...)` SQLite goes through the whole table.
    asked = values(column("subject", Text), column("mutation", Text), name="asked")
    these = asked.data(keys).cte("asked")
    return select(mutation.c.subject, mutation.c.mutation).join_from(
        these,
        mutation,
        (mutation.c.subject == these.c.subject) & (mutation.c.mutation == these.c.mutation),
    )
