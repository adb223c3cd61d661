"""
What is read of topics; every function takes the read transaction that it works in.

A deleted topic is absent here, but for who asks for a deleted one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from livetree.core.errors import Internal
from livetree.core.protocol import Node
from livetree.core.view import Place
from sqlalchemy import (
    Connection,
    Row,
    bindparam,
    exists,
    false,
    func,
    literal_column,
    select,
    true,
    tuple_,
    union_all,
)

from ..topics.ports import (
    MOST_UNREAD,
    Due,
    LoadedTopic,
    MutationKey,
    OfferRow,
    Seen,
    StoredMutation,
    TopicRow,
)
from .rows import SKELETON, cursor_of, folded, node_of, position_of, state_of
from .schema import live, message, mutation, reading, topic, topic_event, trash_message

__all__ = [
    "MOST_DUE",
    "MOST_UNUSED",
    "commit_at",
    "contents",
    "deltas",
    "due",
    "listed",
    "load",
    "lost_root",
    "mutations",
    "offers",
    "seen",
    "topics",
    "unused",
]

log = logging.getLogger("livetree.storage")

MOST_DUE: Final = 1_000
"""The most that `due` returns."""
MOST_UNUSED: Final = 1_000
"""The most that `unused` returns."""

_ROWS: Final = 1_000  # fetched together, so that they are not all there twice
_AT_ONCE: Final = 500  # ids in one statement; a database has a limit, and it is higher
_Item = TypeVar("_Item")
_present = topic.c.deleted_at.is_(None)
_listed = _present & (topic.c.temporary == false())
_temporary = topic.c.temporary == true()
_skeleton = [message.c[name] for name in SKELETON]


def load(tx: Connection, topic_id: str, deleted: bool = False) -> LoadedTopic | None:
    """As `Store.load`."""
    asked = topic.c.deleted_at.is_not(None) & ~_temporary if deleted else _present
    head = tx.execute(select(topic).where(topic.c.id == topic_id, asked)).one_or_none()
    if head is None:
        return None
    nodes: list[Node] = []
    rooted = False
    # What rows have in common is kept once: a message's parent, most of all.
    share: dict[str, str] = {}
    rows = tx.execute(select(*_skeleton).where(message.c.topic_key == head.key))
    for some in rows.partitions(_ROWS):
        for row in some:
            if row[1] is None:
                rooted |= row[0] == head.root_id
            else:
                nodes.append(node_of(row, share.setdefault))
    if not rooted:
        raise lost_root(topic_id)
    epochs: dict[str, int] = {}
    leases: dict[str, int] = {}
    columns = live.c.message_id, live.c.epoch, live.c.lease_until
    for message_id, epoch, until in tx.execute(
        select(*columns).where(live.c.topic_key == head.key)
    ):
        epochs[message_id] = epoch
        if epoch:
            leases[message_id] = until
    return LoadedTopic(
        topic_id=topic_id,
        root_id=head.root_id,
        seq=head.seq,
        commit=head.commit_id,
        digest=head.digest,
        active_node_id=head.active_node_id,
        state=state_of(head, epochs),
        last_created_at=head.last_created_at,
        created_at=head.created_at,
        nodes=nodes,
        leases=leases,
        graves=_graves(tx, head.key),
    )


def _graves(tx: Connection, topic_key: int) -> dict[str, Place]:
    columns = trash_message.c.id, trash_message.c.parent_id, trash_message.c.siblings_group_id
    rows = tx.execute(select(*columns).where(trash_message.c.topic_key == topic_key))
    return {message_id: Place(parent_id, group) for message_id, parent_id, group in rows}


def lost_root(topic_id: str) -> Internal:
    """Return the error of a topic without its virtual root."""
    return Internal(
        f"topic {topic_id} has lost its virtual root: nothing of it is shown until "
        "`livetree check --repair` has made one",
        topic=topic_id,
    )


def contents(tx: Connection, topic_id: str, ids: Sequence[str]) -> dict[str, tuple[int, bytes]]:
    """As `Store.contents`."""
    found: dict[str, tuple[int, bytes]] = {}
    of_topic = (
        select(message.c.id, message.c.version, message.c.data)
        .join(topic, topic.c.key == message.c.topic_key)
        .where(topic.c.id == topic_id, _present, message.c.parent_id.is_not(None))
    )
    for some in _slices(ids):
        for message_id, version, data in tx.execute(of_topic.where(message.c.id.in_(some))):
            found[message_id] = (version, data.encode())
    return found


def deltas(tx: Connection, topic_id: str, after_seq: int, limit: int) -> list[bytes]:
    """As `Store.deltas`."""
    rows = tx.execute(
        select(topic_event.c.seq, topic_event.c.frame)
        .join(topic, topic.c.key == topic_event.c.topic_key)
        .where(topic.c.id == topic_id, _present, topic_event.c.seq > after_seq)
        .order_by(topic_event.c.seq)
        .limit(limit)
    )
    found: list[bytes] = []
    for seq, frame in rows:
        if seq != after_seq + len(found) + 1:
            break
        found.append(frame)
    return found


def commit_at(tx: Connection, topic_id: str, seq: int) -> str | None:
    """As `Store.commit_at`."""
    found: str | None = tx.scalar(
        select(topic_event.c.commit_id)
        .join(topic, topic.c.key == topic_event.c.topic_key)
        .where(topic.c.id == topic_id, _present, topic_event.c.seq == seq)
    )
    return found


def mutations(tx: Connection, keys: Sequence[MutationKey]) -> dict[MutationKey, StoredMutation]:
    """As `Store.mutations`."""
    found: dict[MutationKey, StoredMutation] = {}
    by_subject: dict[str, list[str]] = {}
    for key in keys:
        by_subject.setdefault(key.subject, []).append(key.mutation)
    # Subject by subject: for pairs SQLite would go through the whole table.
    columns = mutation.c.mutation, mutation.c.request_hash, mutation.c.result
    for subject, names in by_subject.items():
        of_subject = select(*columns).where(mutation.c.subject == subject)
        for some in _slices(names):
            rows = tx.execute(of_subject.where(mutation.c.mutation.in_(some)))
            for name, request_hash, result in rows:
                found[MutationKey(subject, name)] = StoredMutation(request_hash, result)
    return found


def topics(
    tx: Connection, cursor: str | None, limit: int, name: str
) -> tuple[list[TopicRow], str | None]:
    """As `Store.topics`."""
    place = topic.c.last_activity_at, topic.c.key
    asked = select(topic).where(_listed)
    if cursor is not None:
        asked = asked.where(tuple_(*place) < position_of(cursor))
    if name:
        asked = asked.where(func.instr(topic.c.name_folded, folded(name)) > 0)
    latest_first = (column.desc() for column in place)
    rows = tx.execute(asked.order_by(*latest_first).limit(limit + 1)).all()
    shown = rows[:limit]
    more = len(rows) > limit
    return (
        _topic_rows(shown),
        cursor_of(shown[-1].last_activity_at, shown[-1].key) if more else None,
    )


def listed(tx: Connection, topic_ids: Sequence[str]) -> list[TopicRow]:
    """As `Store.listed`."""
    asked = select(topic).where(_listed)
    found: list[TopicRow] = []
    for some in _slices(topic_ids):
        found += _topic_rows(tx.execute(asked.where(topic.c.id.in_(some))))
    return found


def _topic_rows(rows: Iterable[Row[Any]]) -> list[TopicRow]:
    """Read rows of the list; one that can't be read hides no other."""
    found: list[TopicRow] = []
    for row in rows:
        try:
            found.append(_topic_row(row))
        except (msgspec.MsgspecError, UnicodeError):
            log.error("topic %s is left out of the list: run `livetree check`", row.id)
    return found


def _topic_row(row: Row[Any]) -> TopicRow:
    state = state_of(row, {})
    return TopicRow(
        topic_id=row.id,
        root_id=row.root_id,
        seq=row.seq,
        commit=row.commit_id,
        active_node_id=row.active_node_id,
        name=row.name,
        metadata=state["metadata"],
        created_at=row.created_at,
        last_activity_at=row.last_activity_at,
    )


_unread = (
    select(literal_column("1"))
    .where(message.c.topic_key == bindparam("of_topic"))
    .where(message.c.version > bindparam("after"))
    .where(message.c.parent_id.is_not(None))
    .where(message.c.author.is_distinct_from(bindparam("by")))
    .limit(MOST_UNREAD)
    .subquery("unread")
)
_count_unread = select(func.count()).select_from(_unread)


def seen(tx: Connection, subject: str, topic_ids: Sequence[str]) -> dict[str, Seen]:
    """As `Store.seen`."""
    its_own = (reading.c.topic_key == topic.c.key) & (reading.c.subject == subject)
    asked = (
        select(topic.c.id, topic.c.key, topic.c.seq, reading.c.seq)
        .join(reading, its_own, isouter=True)
        .where(_present)
    )
    found: dict[str, Seen] = {}
    for some in _slices(topic_ids):
        for topic_id, key, seq, read in tx.execute(asked.where(topic.c.id.in_(some))).all():
            read_seq = read or 0
            unread = 0
            if seq > read_seq:  # else nothing is newer, and nothing has to be looked at
                of_topic = {"of_topic": key, "after": read_seq, "by": subject}
                unread = tx.scalar(_count_unread, of_topic) or 0
            found[topic_id] = Seen(read_seq, unread)
    return found


def offers(tx: Connection) -> list[OfferRow]:
    """As `Store.offers`."""
    rows = tx.execute(
        select(topic.c.id, live.c.message_id, message.c.model_id)
        .join(topic, topic.c.key == live.c.topic_key)
        .join(message, _its_message)
        .where(live.c.offered_at.is_not(None))
        .order_by(live.c.offered_at, live.c.topic_key, message.c.created_at, message.c.id)
    )
    return [OfferRow(topic_id, message_id, model) for topic_id, message_id, model in rows]


# In these very words, or the index of such rows isn't used.
_pending = (
    message.c.role == literal_column("'assistant'"),
    message.c.status == literal_column("'pending'"),
)
_its_message = (message.c.topic_key == live.c.topic_key) & (message.c.id == live.c.message_id)


def due(tx: Connection, lease_before: int, offered_before: int) -> list[Due]:
    """As `Store.due`."""
    columns = live.c.topic_key, live.c.message_id, live.c.epoch
    neither = ~exists().where(_its_message)
    late = union_all(
        select(*columns, live.c.lease_until.label("at")).where(live.c.lease_until < lease_before),
        select(*columns, live.c.offered_at.label("at")).where(live.c.offered_at < offered_before),
        select(
            message.c.topic_key,
            message.c.id.label("message_id"),
            literal_column("0").label("epoch"),
            message.c.updated_at.label("at"),
        ).where(*_pending, message.c.updated_at < offered_before, neither),
    ).subquery("late")
    rows = tx.execute(
        select(topic.c.id, late.c.message_id, late.c.epoch)
        .join(topic, (topic.c.key == late.c.topic_key) & _present)
        .order_by(late.c.at, late.c.topic_key, late.c.message_id)
        .limit(MOST_DUE)
    )
    return [Due(topic_id, message_id, epoch) for topic_id, message_id, epoch in rows]


def unused(tx: Connection, before: int) -> list[str]:
    """As `Store.unused`."""
    rows = tx.execute(
        select(topic.c.id)
        .where(_temporary, _present, topic.c.used_at < before)
        .order_by(topic.c.used_at)
        .limit(MOST_UNUSED)
    )
    return [topic_id for (topic_id,) in rows]


def _slices(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]
