"""
The tables, and what the database refuses whoever asks.

Inside the database a topic is an integer: its public id stands once, beside it. ``data``
comes last in a message's row, so that reading the rest of the row never reads it.

What constraints can't say is said by triggers, in the words of each database:
`livetree_server.storage.triggers`.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    event,
    false,
    text,
    true,
)

from .triggers import SQLITE

__all__ = [
    "live",
    "message",
    "metadata",
    "mutation",
    "reading",
    "topic",
    "topic_event",
    "trash",
    "trash_message",
]

metadata: Final = MetaData()

# Compared by code point everywhere: SQLite does so, PostgreSQL has to be told.
_text = Text().with_variant(Text(collation="C"), "postgresql")
# SQLite has one integer, and numbers only a column of exactly this type.
_whole = BigInteger().with_variant(Integer(), "sqlite")
_flag = Boolean().with_variant(Integer(), "sqlite")

topic: Final = Table(
    "topic",
    metadata,
    Column("key", _whole, autoincrement=True),
    Column("id", _text, nullable=False),
    Column("root_id", _text, nullable=False),
    Column("seq", _whole, nullable=False),
    Column("commit_id", _text, nullable=False),
    Column("digest", _text, nullable=False),
    Column("active_node_id", _text),
    Column("last_activity_at", _whole, nullable=False),
    Column("last_created_at", _whole, nullable=False),
    Column("created_at", _whole, nullable=False),
    Column("deleted_at", _whole),
    Column("name", _text, nullable=False),
    Column("name_folded", _text, nullable=False),  # what a filter is compared with
    Column("metadata", _text, nullable=False),
    Column("other_state", _text, nullable=False),  # the keys that no column and no table has
    Column("temporary", _flag, nullable=False, server_default=text("0")),
    Column("used_at", _whole, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("key", name="topic_pk"),
    UniqueConstraint("id", name="topic_id"),
    CheckConstraint("seq >= 0", name="topic_seq"),
    sqlite_autoincrement=True,  # the key of a topic that is gone names no other
    sqlite_strict=True,
)
Index(
    "topic_activity",
    topic.c.last_activity_at,
    topic.c.key,
    sqlite_where=topic.c.deleted_at.is_(None) & (topic.c.temporary == false()),
    postgresql_where=topic.c.deleted_at.is_(None) & (topic.c.temporary == false()),
)
Index(
    "topic_deleted",
    topic.c.deleted_at,
    sqlite_where=topic.c.deleted_at.is_not(None) & (topic.c.temporary == false()),
    postgresql_where=topic.c.deleted_at.is_not(None) & (topic.c.temporary == false()),
)
Index(
    "topic_temporary",
    topic.c.deleted_at,
    topic.c.used_at,
    sqlite_where=topic.c.temporary == true(),
    postgresql_where=topic.c.temporary == true(),
)


def _what_it_is() -> list[Column[Any]]:
    """Return the columns that a message has wherever it is; ``data`` is the last."""
    return [
        Column("role", _text, nullable=False),
        Column("status", _text, nullable=False),
        Column("siblings_group_id", _whole, nullable=False),
        Column("preview", _text, nullable=False),
        Column("empty", _flag, nullable=False),
        Column("decisions", _text),
        Column("model_id", _text),
        Column("author", _text),
        Column("stats", _text),
        Column("timing", _text),
        Column("context", _text),
        Column("version", _whole, nullable=False),
        Column("created_at", _whole, nullable=False),
        Column("updated_at", _whole, nullable=False),
        Column("data", _text, nullable=False),
    ]


message: Final = Table(
    "message",
    metadata,
    Column("topic_key", _whole, nullable=False),
    Column("id", _text, nullable=False),
    Column("parent_id", _text),
    *_what_it_is(),
    PrimaryKeyConstraint("topic_key", "id", name="message_pk"),
    ForeignKeyConstraint(["topic_key"], ["topic.key"], name="message_topic", ondelete="CASCADE"),
    ForeignKeyConstraint(
        ["topic_key", "parent_id"],
        ["message.topic_key", "message.id"],
        name="message_parent",
        ondelete="CASCADE",
    ),
    CheckConstraint("role IN ('root', 'user', 'assistant', 'system', 'tool')", name="message_role"),
    CheckConstraint("status IN ('pending', 'success', 'error', 'paused')", name="message_status"),
    CheckConstraint("(role = 'root') = (parent_id IS NULL)", name="message_root_role"),
    CheckConstraint(
        "siblings_group_id >= 0 AND (siblings_group_id = 0 OR role <> 'root')",
        name="message_group",
    ),
    sqlite_strict=True,
)
Index("message_children", message.c.topic_key, message.c.parent_id)
Index("message_version", message.c.topic_key, message.c.version)  # what a reader has not seen
Index(
    "message_one_root",
    message.c.topic_key,
    unique=True,
    sqlite_where=message.c.parent_id.is_(None),
    postgresql_where=message.c.parent_id.is_(None),
)
_unwritten = text("role = 'assistant' AND status = 'pending'")
Index(
    "message_pending",
    message.c.updated_at,
    sqlite_where=_unwritten,
    postgresql_where=_unwritten,
)

# What one commit deleted. It has rows, or it isn't there.
trash: Final = Table(
    "trash",
    metadata,
    Column("topic_key", _whole, nullable=False),
    Column("seq", _whole, nullable=False),
    Column("op", _text, nullable=False),
    Column("by", _text),
    Column("at", _whole, nullable=False),
    Column("active_before", _text),
    Column("active_after", _text),
    Column("last_created_at", _whole, nullable=False),
    Column("moved", _text, nullable=False),
    PrimaryKeyConstraint("topic_key", "seq", name="trash_pk"),
    ForeignKeyConstraint(["topic_key"], ["topic.key"], name="trash_topic", ondelete="CASCADE"),
    CheckConstraint("seq > 0", name="trash_seq"),
    sqlite_strict=True,
)
Index("trash_by", trash.c.topic_key, trash.c.by, trash.c.seq)
Index("trash_at", trash.c.at)

# As in `message`, with the parent and the group that each had; a parent may be anywhere.
trash_message: Final = Table(
    "trash_message",
    metadata,
    Column("topic_key", _whole, nullable=False),
    Column("id", _text, nullable=False),
    Column("entry_seq", _whole, nullable=False),
    Column("parent_id", _text, nullable=False),
    *_what_it_is(),
    PrimaryKeyConstraint("topic_key", "id", name="trash_message_pk"),
    ForeignKeyConstraint(
        ["topic_key", "entry_seq"],
        ["trash.topic_key", "trash.seq"],
        name="trash_message_entry",
        ondelete="CASCADE",
    ),
    CheckConstraint("role IN ('user', 'assistant', 'system', 'tool')", name="trash_message_role"),
    CheckConstraint(
        "status IN ('pending', 'success', 'error', 'paused')", name="trash_message_status"
    ),
    CheckConstraint("siblings_group_id >= 0", name="trash_message_group"),
    sqlite_strict=True,
)
Index(
    "trash_message_entries",
    trash_message.c.topic_key,
    trash_message.c.entry_seq,
    trash_message.c.created_at,
    trash_message.c.id,
)

# How far each subject has read.
reading: Final = Table(
    "reading",
    metadata,
    Column("subject", _text, nullable=False),
    Column("topic_key", _whole, nullable=False),
    Column("seq", _whole, nullable=False),
    PrimaryKeyConstraint("subject", "topic_key", name="reading_pk"),
    ForeignKeyConstraint(["topic_key"], ["topic.key"], name="reading_topic", ondelete="CASCADE"),
    CheckConstraint("seq >= 0", name="reading_seq"),
    sqlite_strict=True,
)
Index("reading_topics", reading.c.topic_key)

topic_event: Final = Table(
    "event",
    metadata,
    Column("topic_key", _whole, nullable=False),
    Column("seq", _whole, nullable=False),
    Column("commit_id", _text, nullable=False),
    Column("prev", _text),
    Column("digest", _text, nullable=False),
    Column("created_at", _whole, nullable=False),
    Column("frame", LargeBinary, nullable=False),
    PrimaryKeyConstraint("topic_key", "seq", name="event_pk"),
    ForeignKeyConstraint(["topic_key"], ["topic.key"], name="event_topic", ondelete="CASCADE"),
    sqlite_strict=True,
)

# Of no topic: a command is done once even where its topic is long gone.
mutation: Final = Table(
    "mutation",
    metadata,
    Column("subject", _text, nullable=False),
    Column("mutation", _text, nullable=False),
    Column("request_hash", LargeBinary, nullable=False),
    Column("created_at", _whole, nullable=False),
    Column("result", LargeBinary, nullable=False),
    PrimaryKeyConstraint("subject", "mutation", name="mutation_pk"),
    sqlite_strict=True,
)

live: Final = Table(
    "live",
    metadata,
    Column("topic_key", _whole, nullable=False),
    Column("message_id", _text, nullable=False),
    Column("epoch", _whole, nullable=False),
    Column("lease_until", _whole),
    Column("offered_at", _whole),
    PrimaryKeyConstraint("topic_key", "message_id", name="live_pk"),
    ForeignKeyConstraint(
        ["topic_key", "message_id"],
        ["message.topic_key", "message.id"],
        name="live_message",
        ondelete="CASCADE",
    ),
    CheckConstraint("epoch >= 0", name="live_epoch"),
    CheckConstraint("(epoch > 0) = (lease_until IS NOT NULL)", name="live_lease"),
    CheckConstraint("(epoch = 0) = (offered_at IS NOT NULL)", name="live_offer"),
    sqlite_strict=True,
)
Index("live_lease_until", live.c.lease_until)
Index("live_offered_at", live.c.offered_at)

for statement in SQLITE:
    trigger = DDL(statement)  # type: ignore[no-untyped-call]
    event.listen(metadata, "after_create", trigger.execute_if(dialect="sqlite"))
