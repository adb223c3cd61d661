"""What is read of the trash; every function takes the read transaction that it works in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from livetree.core.errors import TooLarge
from livetree.core.protocol import Node
from livetree.core.trash import TrashEntry, Wanted, below
from msgspec import UNSET, Raw
from msgspec.structs import replace
from sqlalchemy import Connection, select, tuple_

from ..topics.ports import TRASH_BYTES, TrashRow
from .rows import SKELETON, entry_of, node_of, trash_cursor_of, trash_position_of
from .schema import topic, trash, trash_message

__all__ = ["entry", "page", "refuse_much"]

_AT_ONCE: Final = 500  # ids in one statement

_skeleton = [trash_message.c[name] for name in SKELETON]
_place = trash_message.c.created_at, trash_message.c.id


def entry(tx: Connection, topic_id: str, wanted: Wanted) -> TrashEntry | None:
    """As `Store.trash`."""
    key = _key_of(tx, topic_id)
    asked = select(trash).where(trash.c.topic_key == key)
    if wanted.seq is not None:
        asked = asked.where(trash.c.seq == wanted.seq)
    elif wanted.by is not None:
        asked = asked.where(trash.c.by == wanted.by).order_by(trash.c.seq.desc()).limit(1)
    else:
        its_own = (trash_message.c.topic_key == key) & (trash_message.c.id == wanted.message_id)
        asked = asked.where(
            trash.c.seq == select(trash_message.c.entry_seq).where(its_own).scalar_subquery()
        )
    head = tx.execute(asked).one_or_none()
    return None if head is None else entry_of(head, _nodes(tx, head.topic_key, head.seq, wanted))


def refuse_much(size: int, seq: int) -> None:
    """Refuse to bring back so many bytes of content together."""
    if size > TRASH_BYTES:
        raise TooLarge(
            f"what commit {seq} deleted has more than {TRASH_BYTES} bytes of content: bring it "
            "back in parts, with message.restore",
            limit=TRASH_BYTES,
        )


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


def _nodes(tx: Connection, topic_key: int, seq: int, wanted: Wanted) -> list[Node]:
    of_entry = (trash_message.c.topic_key == topic_key) & (trash_message.c.entry_seq == seq)
    asked = select(*_skeleton, trash_message.c.data)
    if wanted.message_id is None:
        return _read(tx.execute(asked.where(of_entry)), seq)
    ids = [wanted.message_id]
    if wanted.whole:
        places = select(trash_message.c.id, trash_message.c.parent_id).where(of_entry)
        ids = below(((row[0], row[1]) for row in tx.execute(places)), wanted.message_id)
    nodes: list[Node] = []
    for start in range(0, len(ids), _AT_ONCE):
        some = trash_message.c.id.in_(ids[start : start + _AT_ONCE])
        nodes += _read(tx.execute(asked.where(of_entry, some)), seq, nodes)
    return nodes


def _read(rows: Iterable[Any], seq: int, before: Sequence[Node] = ()) -> list[Node]:
    size = sum(len(memoryview(node.data)) for node in before if node.data is not UNSET)
    nodes: list[Node] = []
    for row in rows:
        node = _whole(row)
        assert node.data is not UNSET
        size += len(memoryview(node.data))
        refuse_much(size, seq)
        nodes.append(node)
    return nodes


def _whole(row: Any) -> Node:
    return replace(node_of(row), data=Raw(row.data.encode()))
