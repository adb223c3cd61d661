"""What is read of the trash; every function takes the read transaction that it works in."""

from __future__ import annotations

from typing import Any

from livetree.core.protocol import Node
from livetree.core.trash import TrashEntry, Wanted
from msgspec import Raw
from msgspec.structs import replace
from sqlalchemy import Connection, select, tuple_

from ..topics.ports import TrashRow
from .rows import SKELETON, entry_of, node_of, trash_cursor_of, trash_position_of
from .schema import topic, trash, trash_message

__all__ = ["entry", "page"]

_skeleton = [trash_message.c[name] for name in SKELETON]
_place = trash_message.c.created_at, trash_message.c.id


def entry(tx: Connection, topic_id: str, wanted: Wanted) -> TrashEntry | None:
    """As `Store.trash`."""
    key = _key_of(tx, topic_id)
    asked = select(trash).where(trash.c.topic_key == key)
    only: str | None = None
    if wanted.seq is not None:
        asked = asked.where(trash.c.seq == wanted.seq)
    elif wanted.by is not None:
        asked = asked.where(trash.c.by == wanted.by).order_by(trash.c.seq.desc()).limit(1)
    else:
        only = None if wanted.whole else wanted.message_id
        its_own = (trash_message.c.topic_key == key) & (trash_message.c.id == wanted.message_id)
        asked = asked.where(
            trash.c.seq == select(trash_message.c.entry_seq).where(its_own).scalar_subquery()
        )
    head = tx.execute(asked).one_or_none()
    return None if head is None else entry_of(head, _nodes(tx, head.topic_key, head.seq, only))


def page(
    tx: Connection, topic_id: str, cursor: str | None, limit: int
) -> tuple[list[TrashRow], str | None]:
    """As `Store.trash_page`."""
    after = None if cursor is None else trash_position_of(cursor)
    key = _key_of(tx, topic_id)
    entries = select(trash).where(trash.c.topic_key == key)
    if after is not None:
        entries = entries.where(trash.c.seq <= after[0])
    rows: list[TrashRow] = []
    # Entry by entry, in the order of the index: none is sorted for every one of its pages.
    heads = tx.execute(entries.order_by(trash.c.seq.desc()).limit(limit + 2)).all()
    for head in heads:
        nodes = select(*_skeleton).where(
            trash_message.c.topic_key == head.topic_key, trash_message.c.entry_seq == head.seq
        )
        if after is not None and head.seq == after[0]:
            nodes = nodes.where(tuple_(*_place) > after[1:])
        rows += [
            TrashRow(seq=head.seq, op=head.op, by=head.by, at=head.at, node=node_of(row))
            for row in tx.execute(nodes.order_by(*_place).limit(limit + 1 - len(rows)))
        ]
        if len(rows) > limit:
            last = rows[limit - 1]
            return rows[:limit], trash_cursor_of(last.seq, last.node)
    return rows, None


def _key_of(tx: Connection, topic_id: str) -> int | None:
    present = topic.c.deleted_at.is_(None)
    return tx.scalar(select(topic.c.key).where(topic.c.id == topic_id, present))


def _nodes(tx: Connection, topic_key: int, seq: int, only: str | None) -> list[Node]:
    asked = select(*_skeleton, trash_message.c.data).where(
        trash_message.c.topic_key == topic_key, trash_message.c.entry_seq == seq
    )
    if only is not None:
        asked = asked.where(trash_message.c.id == only)
    return [_whole(row) for row in tx.execute(asked)]


def _whole(row: Any) -> Node:
    return replace(node_of(row), data=Raw(row.data.encode()))
