"""Topics, messages, events, mutations and what is live."""

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
    text,
)

revision = "0001"
down_revision = None

TEXT = Text().with_variant(Text(collation="C"), "postgresql")
WHOLE = BigInteger().with_variant(Integer(), "sqlite")
FLAG = Boolean().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "topic",
        Column("key", WHOLE, autoincrement=True),
        Column("id", TEXT, nullable=False),
        Column("root_id", TEXT, nullable=False),
        Column("seq", WHOLE, nullable=False),
        Column("commit_id", TEXT, nullable=False),
        Column("digest", TEXT, nullable=False),
        Column("active_node_id", TEXT),
        Column("last_activity_at", WHOLE, nullable=False),
        Column("last_created_at", WHOLE, nullable=False),
        Column("created_at", WHOLE, nullable=False),
        Column("deleted_at", WHOLE),
        Column("name", TEXT, nullable=False),
        Column("name_folded", TEXT, nullable=False),
        Column("metadata", TEXT, nullable=False),
        Column("other_state", TEXT, nullable=False),
        PrimaryKeyConstraint("key", name="topic_pk"),
        UniqueConstraint("id", name="topic_id"),
        CheckConstraint("seq >= 0", name="topic_seq"),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index(
        "topic_activity",
        "topic",
        ["last_activity_at", "key"],
        sqlite_where=text("deleted_at IS NULL"),
        postgresql_where=text("deleted_at IS NULL"),
    )
    op.create_table(
        "message",
        Column("topic_key", WHOLE, nullable=False),
        Column("id", TEXT, nullable=False),
        Column("parent_id", TEXT),
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
        PrimaryKeyConstraint("topic_key", "id", name="message_pk"),
        ForeignKeyConstraint(
            ["topic_key"], ["topic.key"], name="message_topic", ondelete="CASCADE"
        ),
        ForeignKeyConstraint(
            ["topic_key", "parent_id"],
            ["message.topic_key", "message.id"],
            name="message_parent",
            ondelete="CASCADE",
        ),
        CheckConstraint(
            "role IN ('root', 'user', 'assistant', 'system', 'tool')", name="message_role"
        ),
        CheckConstraint(
            "status IN ('pending', 'success', 'error', 'paused')", name="message_status"
        ),
        CheckConstraint("(role = 'root') = (parent_id IS NULL)", name="message_root_role"),
        CheckConstraint(
            "siblings_group_id >= 0 AND (siblings_group_id = 0 OR role <> 'root')",
            name="message_group",
        ),
        sqlite_strict=True,
    )
    op.create_index("message_children", "message", ["topic_key", "parent_id"])
    op.create_index(
        "message_one_root",
        "message",
        ["topic_key"],
        unique=True,
        sqlite_where=text("parent_id IS NULL"),
        postgresql_where=text("parent_id IS NULL"),
    )
    op.create_table(
        "event",
        Column("topic_key", WHOLE, nullable=False),
        Column("seq", WHOLE, nullable=False),
        Column("commit_id", TEXT, nullable=False),
        Column("prev", TEXT),
        Column("digest", TEXT, nullable=False),
        Column("created_at", WHOLE, nullable=False),
        Column("frame", LargeBinary, nullable=False),
        PrimaryKeyConstraint("topic_key", "seq", name="event_pk"),
        ForeignKeyConstraint(["topic_key"], ["topic.key"], name="event_topic", ondelete="CASCADE"),
        sqlite_strict=True,
    )
    op.create_table(
        "mutation",
        Column("subject", TEXT, nullable=False),
        Column("mutation", TEXT, nullable=False),
        Column("request_hash", LargeBinary, nullable=False),
        Column("created_at", WHOLE, nullable=False),
        Column("result", LargeBinary, nullable=False),
        PrimaryKeyConstraint("subject", "mutation", name="mutation_pk"),
        sqlite_strict=True,
    )
    op.create_table(
        "live",
        Column("topic_key", WHOLE, nullable=False),
        Column("message_id", TEXT, nullable=False),
        Column("epoch", WHOLE, nullable=False),
        Column("lease_until", WHOLE),
        Column("offered_at", WHOLE),
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
    op.create_index("live_lease_until", "live", ["lease_until"])
    op.create_index("live_offered_at", "live", ["offered_at"])
    if op.get_context().dialect.name == "sqlite":
        for statement in TRIGGERS:
            op.execute(statement)


TRIGGERS = (
    """\
CREATE TRIGGER message_needs_parent BEFORE INSERT ON message
WHEN NEW.parent_id IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM message WHERE topic_key = NEW.topic_key AND id = NEW.parent_id
)
BEGIN
    SELECT RAISE(ABORT, 'the parent is no message of this topic');
END""",
    """\
CREATE TRIGGER message_root_stays BEFORE INSERT ON message
WHEN NEW.parent_id IS NULL AND EXISTS (
    SELECT 1 FROM message WHERE topic_key = NEW.topic_key AND parent_id IS NULL
)
BEGIN
    SELECT RAISE(ABORT, 'this topic has its root');
END""",
    """\
CREATE TRIGGER message_moves BEFORE UPDATE OF parent_id ON message
WHEN NEW.parent_id IS NOT OLD.parent_id AND (
    NEW.parent_id IS NULL OR OLD.parent_id IS NULL OR NOT EXISTS (
        SELECT 1 FROM message WHERE topic_key = NEW.topic_key AND id = NEW.parent_id
    )
)
BEGIN
    SELECT RAISE(ABORT, 'the parent is no message of this topic');
END""",
    """\
CREATE TRIGGER message_keeps_id BEFORE UPDATE OF topic_key, id ON message
WHEN NEW.topic_key <> OLD.topic_key OR NEW.id <> OLD.id
BEGIN
    SELECT RAISE(ABORT, 'a message keeps its id and its topic');
END""",
    """\
CREATE TRIGGER message_goes AFTER DELETE ON message
BEGIN
    UPDATE topic SET active_node_id = NULL
        WHERE "key" = OLD.topic_key AND active_node_id = OLD.id;
    SELECT RAISE(ABORT, 'the message has children') WHERE EXISTS (
        SELECT 1 FROM message WHERE topic_key = OLD.topic_key AND parent_id = OLD.id
    );
END""",
    """\
CREATE TRIGGER topic_begins BEFORE INSERT ON topic
WHEN NEW.active_node_id IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'a new topic has no message that could be active');
END""",
    """\
CREATE TRIGGER topic_activates BEFORE UPDATE OF active_node_id ON topic
WHEN NEW.active_node_id IS NOT OLD.active_node_id
    AND NEW.active_node_id IS NOT NULL
    AND NOT EXISTS (
        SELECT 1 FROM message
        WHERE topic_key = NEW."key" AND id = NEW.active_node_id AND parent_id IS NOT NULL
    )
BEGIN
    SELECT RAISE(ABORT, 'the active node is no content message of this topic');
END""",
    """\
CREATE TRIGGER topic_keeps_id BEFORE UPDATE OF "key", id, root_id ON topic
WHEN NEW."key" <> OLD."key" OR NEW.id <> OLD.id OR NEW.root_id <> OLD.root_id
BEGIN
    SELECT RAISE(ABORT, 'a topic keeps its id and its root');
END""",
)
