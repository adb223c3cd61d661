"""What was deleted, how far each subject has read, and topics that are temporary."""

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    Text,
    text,
)

revision = "0002"
down_revision = "0001"

TEXT = Text().with_variant(Text(collation="C"), "postgresql")
WHOLE = BigInteger().with_variant(Integer(), "sqlite")
FLAG = Boolean().with_variant(Integer(), "sqlite")

UNWRITTEN = text("role = 'assistant' AND status = 'pending'")


def upgrade() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    no = text("0" if sqlite else "false")
    op.add_column("topic", Column("temporary", FLAG, nullable=False, server_default=no))
    op.add_column("topic", Column("used_at", WHOLE, nullable=False, server_default=text("0")))
    op.drop_index("topic_activity", "topic")
    op.create_index(
        "topic_activity",
        "topic",
        ["last_activity_at", "key"],
        sqlite_where=text('deleted_at IS NULL AND "temporary" = 0'),
        postgresql_where=text('deleted_at IS NULL AND "temporary" = false'),
    )
    op.create_index(
        "topic_deleted",
        "topic",
        ["deleted_at"],
        sqlite_where=text('deleted_at IS NOT NULL AND "temporary" = 0'),
        postgresql_where=text('deleted_at IS NOT NULL AND "temporary" = false'),
    )
    op.create_index(
        "topic_temporary",
        "topic",
        ["deleted_at", "used_at"],
        sqlite_where=text('"temporary" = 1'),
        postgresql_where=text('"temporary" = true'),
    )
    op.create_index("message_version", "message", ["topic_key", "version"])
    op.create_index(
        "message_pending",
        "message",
        ["updated_at"],
        sqlite_where=UNWRITTEN,
        postgresql_where=UNWRITTEN,
    )
    op.create_table(
        "trash",
        Column("topic_key", WHOLE, nullable=False),
        Column("seq", WHOLE, nullable=False),
        Column("op", TEXT, nullable=False),
        Column("by", TEXT),
        Column("at", WHOLE, nullable=False),
        Column("active_before", TEXT),
        Column("active_after", TEXT),
        Column("last_created_at", WHOLE, nullable=False),
        Column("moved", TEXT, nullable=False),
        PrimaryKeyConstraint("topic_key", "seq", name="trash_pk"),
        ForeignKeyConstraint(["topic_key"], ["topic.key"], name="trash_topic", ondelete="CASCADE"),
        CheckConstraint("seq > 0", name="trash_seq"),
        sqlite_strict=True,
    )
    op.create_index("trash_by", "trash", ["topic_key", "by", "seq"])
    op.create_index("trash_at", "trash", ["at"])
    op.create_table(
        "trash_message",
        Column("topic_key", WHOLE, nullable=False),
        Column("id", TEXT, nullable=False),
        Column("entry_seq", WHOLE, nullable=False),
        Column("parent_id", TEXT, nullable=False),
        Column("role", TEXT, nullable=False),
        Column("status", TEXT, nullable=False),
        Column("siblings_group_id", WHOLE, nullable=False),
        Column("preview", TEXT, nullable=False),
        Column("empty", FLAG, nullable=False),
        Column("decisions", TEXT),
        Column("model_id", TEXT),
        Column("author", TEXT),
        Column("stats", TEXT),
        Column("timing", TEXT),
        Column("context", TEXT),
        Column("version", WHOLE, nullable=False),
        Column("created_at", WHOLE, nullable=False),
        Column("updated_at", WHOLE, nullable=False),
        Column("data", TEXT, nullable=False),
        PrimaryKeyConstraint("topic_key", "id", name="trash_message_pk"),
        ForeignKeyConstraint(
            ["topic_key", "entry_seq"],
            ["trash.topic_key", "trash.seq"],
            name="trash_message_entry",
            ondelete="CASCADE",
        ),
        CheckConstraint(
            "role IN ('user', 'assistant', 'system', 'tool')", name="trash_message_role"
        ),
        CheckConstraint(
            "status IN ('pending', 'success', 'error', 'paused')", name="trash_message_status"
        ),
        CheckConstraint("siblings_group_id >= 0", name="trash_message_group"),
        sqlite_strict=True,
    )
    op.create_index(
        "trash_message_entries", "trash_message", ["topic_key", "entry_seq", "created_at", "id"]
    )
    op.create_table(
        "reading",
        Column("subject", TEXT, nullable=False),
        Column("topic_key", WHOLE, nullable=False),
        Column("seq", WHOLE, nullable=False),
        PrimaryKeyConstraint("subject", "topic_key", name="reading_pk"),
        ForeignKeyConstraint(
            ["topic_key"], ["topic.key"], name="reading_topic", ondelete="CASCADE"
        ),
        CheckConstraint("seq >= 0", name="reading_seq"),
        sqlite_strict=True,
    )
    op.create_index("reading_topics", "reading", ["topic_key"])
