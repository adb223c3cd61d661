"""
What the constraints of a database can't say.

The active node is a content message of its topic: it is set only to one, and a message
that goes takes it along. A message keeps its id and its topic.

SQLite keeps foreign keys only on connections that ask for it, and forgets triggers when
``REPLACE`` removes a row. So here it also says itself that a parent is in the same topic,
that no child is left behind and that a root is not replaced. A database that keeps
foreign keys for everyone needs none of these.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SQLITE"]

SQLITE: Final = (
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
"""For SQLite, in the order in which they are made."""
