"""
What is erased whole, and for good: old trash, and topics that were deleted long ago.

A database that cascades through a long chain stops half way, or holds up whoever wants to
write. So rows go one by one, children before parents, a bounded number at each call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Dialect,
    Select,
    Table,
    bindparam,
    delete,
    exists,
    false,
    select,
    true,
    update,
)

from .schema import message, reading, topic, topic_event, trash, trash_message
from .statements import Statement

__all__ = ["TOPIC_AGE", "TRASH_AGE", "Erasing"]

_DAY: Final = 24 * 60 * 60 * 1000
TRASH_AGE: Final = 30 * _DAY
"""How long a trash entry is kept, in ms."""
TOPIC_AGE: Final = 30 * _DAY
"""How long a deleted topic is kept, in ms."""

_ROWS: Final = 1_000  # removed in one call
_SECONDS: Final = 0.1  # which may be less, where rows are large
_CHILDREN: Final = 50  # looked at together
_LOOKS: Final = 4  # that cost as much as one removal


class _Slice:
    """How much one call may still do."""

    __slots__ = ("_end", "_room", "erased")

    def __init__(self) -> None:
        self._room = _ROWS * _LOOKS
        self._end = time.monotonic() + _SECONDS
        self.erased = False

    def look(self) -> None:
        self._room -= 1

    def erase(self) -> None:
        self._room -= _LOOKS
        self.erased = True

    def has_room(self) -> bool:
        return self._room > 0 and time.monotonic() < self._end


class _Query:
    """
    One compiled query, as the driver takes it.

    Args:
        dialect: The database's.
        query: The query.
        parameters: The names of its parameters in the order in which `rows` gets them.

    """

    __slots__ = ("_limit", "_text")

    def __init__(self, dialect: Dialect, query: Select[Any], parameters: Sequence[str]) -> None:
        compiled = query.compile(dialect=dialect)
        order = list(getattr(compiled, "positiontup", None) or ())
        if order[: len(parameters)] != list(parameters):
            raise ValueError(f"{compiled} takes {order}, not {list(parameters)}")
        self._limit = [compiled.params[name] for name in order[len(parameters) :]]
        self._text = str(compiled)

    def rows(self, tx: Connection, *parameters: Any) -> list[Any]:
        with closing(tx.connection.cursor()) as cursor:
            cursor.execute(self._text, (*parameters, *self._limit))
            return list(cursor.fetchall())


class _Rows:
    """
    Rows of a table, to be erased one by one.

    Args:
        dialect: The database's.
        table: The table.
        of: The names of the columns whose values pick them out.
        each: The names of those that tell one from the other.

    """

    __slots__ = ("_delete", "_find")

    def __init__(
        self, dialect: Dialect, table: Table, of: Sequence[str], each: Sequence[str]
    ) -> None:
        def picked(names: Sequence[str]) -> list[Any]:
            return [table.c[name] == bindparam(f"this_{name}") for name in names]

        names = [*of, *each]
        parameters = [f"this_{name}" for name in names]
        found = select(*(table.c[name] for name in each)).where(*picked(of)).limit(_ROWS)
        self._find = _Query(dialect, found, parameters[: len(of)])
        self._delete = Statement(dialect, delete(table).where(*picked(names)), parameters)

    def erase(self, tx: Connection, of: tuple[Any, ...], part: _Slice) -> bool:
        """Erase as many as there is room for, and tell whether that is all of them."""
        while part.has_room():
            rows = self._find.rows(tx, *of)
            for row in rows:
                if not part.has_room():
                    return False
                self._delete.each(tx, [(*of, *row)])
                part.erase()
            if len(rows) < _ROWS:
                return True
        return False


class _Statements:
    """What is needed to erase, for one database."""

    __slots__ = (
        "buried",
        "buried_together",
        "children",
        "delete_entry",
        "delete_message",
        "delete_topic",
        "entries",
        "events",
        "orphans",
        "positions",
    )

    def __init__(self, dialect: Dialect) -> None:
        def rows(table: Table, of: Sequence[str], *each: str) -> _Rows:
            return _Rows(dialect, table, of, each)

        of_topic = ("topic_key",)
        self.events = rows(topic_event, of_topic, "seq")
        self.buried = rows(trash_message, of_topic, "id")
        self.buried_together = rows(trash_message, ("topic_key", "entry_seq"), "id")
        self.entries = rows(trash, of_topic, "seq")
        self.positions = rows(reading, of_topic, "subject")

        its_topic = message.c.topic_key == bindparam("this_topic")
        below = message.c.parent_id == bindparam("this_id")
        self.children = _Query(
            dialect,
            select(message.c.id).where(its_topic, below).limit(_CHILDREN),
            ("this_topic", "this_id"),
        )
        above = message.alias("above")
        its_parent = (above.c.topic_key == message.c.topic_key) & (
            above.c.id == message.c.parent_id
        )
        orphan = ~exists().where(its_parent)
        self.orphans = _Query(
            dialect, select(message.c.id).where(its_topic, orphan).limit(1), ("this_topic",)
        )
        this_message = its_topic & (message.c.id == bindparam("this_id"))
        self.delete_message = Statement(
            dialect, delete(message).where(this_message), ("this_topic", "this_id")
        )
        this_entry = (trash.c.topic_key == bindparam("this_topic")) & (
            trash.c.seq == bindparam("this_seq")
        )
        self.delete_entry = Statement(
            dialect, delete(trash).where(this_entry), ("this_topic", "this_seq")
        )
        this_topic = topic.c.key == bindparam("this_key")
        self.delete_topic = Statement(dialect, delete(topic).where(this_topic), ("this_key",))


class Erasing:
    """
    Erases what is old in one database; a call is one transaction's part of it.

    It remembers how far it is down in a topic. What it forgets, it finds again: each call
    leaves a sound tree.

    """

    __slots__ = ("_above", "_statements", "_topic_key")

    def __init__(self) -> None:
        self._topic_key: int | None = None
        self._above: list[str] = []
        self._statements: _Statements | None = None

    def __call__(self, tx: Connection, now: int) -> tuple[bool, bool]:
        """Erase up to a bound, and tell whether anything was erased and whether to go on."""
        if self._statements is None:
            self._statements = _Statements(tx.dialect)
        part = _Slice()
        more = self._erase_trash(tx, self._statements, part, now)
        more = more or self._erase_topics(tx, self._statements, part, now)
        return part.erased, more

    def _erase_trash(self, tx: Connection, statements: _Statements, part: _Slice, now: int) -> bool:
        while part.has_room():
            old = select(trash.c.topic_key, trash.c.seq).where(trash.c.at < now - TRASH_AGE)
            entry = tx.execute(old.order_by(trash.c.at).limit(1)).one_or_none()
            if entry is None:
                return False
            if statements.buried_together.erase(tx, tuple(entry), part):
                statements.delete_entry.each(tx, [tuple(entry)])
                part.erase()
        return True

    def _erase_topics(
        self, tx: Connection, statements: _Statements, part: _Slice, now: int
    ) -> bool:
        while part.has_room():
            key = self._next_topic(tx, now)
            if key is None:
                return False
            if self._erase_topic(tx, statements, part, key):
                self._topic_key = None
        return True

    def _next_topic(self, tx: Connection, now: int) -> int | None:
        if self._topic_key is not None:
            # What marked it may have been rolled back, and the topic be restored since.
            this = select(topic.c.key).where(topic.c.key == self._topic_key)
            marked = this.where(topic.c.temporary == true(), topic.c.deleted_at.is_not(None))
            if tx.scalar(marked) is not None:
                return self._topic_key
            self._topic_key = None
        first = select(topic.c.key, topic.c.root_id).order_by(topic.c.deleted_at).limit(1)
        # A time is never below 0; said like this, it is looked up in an index.
        unwanted = first.where(topic.c.temporary == true(), topic.c.deleted_at >= 0)
        found = tx.execute(unwanted).one_or_none()
        if found is None:
            kept = topic.c.temporary == false()
            old = first.where(kept, topic.c.deleted_at < now - TOPIC_AGE)
            found = tx.execute(old).one_or_none()
            if found is None:
                return None
            # From its first row on it can't be restored, and has to go whole.
            tx.execute(update(topic).where(topic.c.key == found.key).values(temporary=True))
        self._topic_key = found.key
        self._above = [found.root_id]
        return self._topic_key

    def _erase_topic(self, tx: Connection, statements: _Statements, part: _Slice, key: int) -> bool:
        """Erase as much of a topic as there is room for, and tell whether it is gone."""
        done = (
            statements.events.erase(tx, (key,), part)
            and statements.buried.erase(tx, (key,), part)
            and statements.entries.erase(tx, (key,), part)
            and statements.positions.erase(tx, (key,), part)
            and self._erase_messages(tx, statements, part, key)
        )
        if done:
            statements.delete_topic.each(tx, [(key,)])
            part.erase()
        return done

    def _erase_messages(
        self, tx: Connection, statements: _Statements, part: _Slice, key: int
    ) -> bool:
        """Walk down to leaves, and take each that is met."""
        while part.has_room():
            if not self._above:
                # What hangs off nothing is not met from the root; there is nothing, nearly always.
                self._above = [row[0] for row in statements.orphans.rows(tx, key)]
                if not self._above:
                    return True
            message_id = self._above[-1]
            part.look()
            if below := statements.children.rows(tx, key, message_id):
                self._above += [row[0] for row in below]
                continue
            # It may be gone where a transaction failed, or a root was missing.
            statements.delete_message.any(tx, [(key, message_id)])
            part.erase()
            self._above.pop()
        return False
