"""The rules of topics: made, named, cleared, deleted, brought in."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from . import protocol as p
from .canonical import check_json
from .draft import Draft
from .errors import Conflict, InvalidOperation, Validation
from .ids import is_id
from .planning import MAX_METADATA_BYTES, Content, Context, content_node, refuse_if_live
from .view import View, off_the_wire

__all__ = [
    "CopyTopic",
    "EraseTopic",
    "ImportTopic",
    "copy_path",
    "erase",
    "import_topic",
    "persist",
    "set_active",
    "set_metadata",
    "set_metadata_namespace",
    "topic_clear",
    "topic_create",
    "topic_delete",
    "topic_restore",
    "topic_update",
]


class ImportTopic(p.Mutation, frozen=True, kw_only=True, tag="topic.import"):
    """The server's own: a whole topic in one commit; a first turn may leave its parent empty."""

    name: str
    metadata: dict[str, Any]
    nodes: list[p.Node]
    active_node_id: str | None
    last_activity_at: int


class EraseTopic(p.Mutation, frozen=True, kw_only=True, tag="topic.erase"):
    """The server's own: a temporary topic has not been used since a time (ms)."""

    unused_since: int


class CopyTopic(ImportTopic, frozen=True, kw_only=True, tag="topic.copy"):
    """The server's own: what `copy_path` made of a ``topic.duplicate``."""


def topic_create(draft: Draft, command: p.TopicCreate, context: Context) -> dict[str, Any]:
    """Make the topic, with its root and nothing in it."""
    if draft.seq:
        raise Conflict(f"topic id {draft.topic_id} is taken: choose another", id=draft.topic_id)
    if not is_id(draft.topic_id):
        raise Validation(f"topic id {draft.topic_id[:80]!r} is not [A-Za-z0-9_-]{{1,64}}")
    _set_name(draft, command.name)
    if command.metadata is not None:
        draft.set_state("metadata", _metadata(command.metadata))
    draft.set_state("lastActivityAt", context.now)
    if command.temporary:
        draft.set_state("temporary", True)
    return {"topic": draft.topic_id, "rootId": draft.root_id}


def persist(draft: Draft, _: p.TopicPersist, __: Context) -> dict[str, Any]:
    """Make a temporary topic one like any other."""
    if "temporary" not in draft.state:
        raise InvalidOperation(f"topic {draft.topic_id} is not temporary: it is kept as it is")
    draft.set_state("temporary", None)
    return {"topic": draft.topic_id}


def copy_path(view: View, command: p.TopicDuplicate, copy_id: str, context: Context) -> CopyTopic:
    """
    Decide what the copy of a path is: the command that makes it.

    Copied rows have new ids and no group, and leave out what was counted for them or
    derived from their ancestors. A pending one becomes an error: nobody writes it there.

    Raises:
        Content: If it needs data that the tree doesn't hold.

    """
    content_node(view, command.node_id)
    path = view.path(command.node_id)
    cold = [node.id for node in path if node.data is UNSET and node.id not in context.content]
    if cold:
        raise Content(cold)
    nodes: list[p.Node] = []
    parent_id = ""  # of the root that is still to be made
    for node in path:
        data = Raw(context.content[node.id]) if node.data is UNSET else node.data
        copied = replace(
            node,
            id=context.new_id(),
            parent_id=parent_id,
            siblings_group_id=0,
            data=data,
            status="error" if node.status == "pending" else node.status,
            stats=None,
            context=None,
        )
        nodes.append(copied)
        parent_id = copied.id
    return CopyTopic(
        topic=copy_id,
        mutation=command.mutation,
        name=view.state["name"] if command.name is None else command.name,
        metadata=view.state["metadata"],
        nodes=nodes,
        active_node_id=parent_id,
        last_activity_at=context.now,
    )


def import_topic(draft: Draft, command: ImportTopic, context: Context) -> dict[str, Any]:
    """Make the topic with everything that another app had in it."""
    if draft.seq:
        raise Conflict(f"topic id {draft.topic_id} is taken: choose another", id=draft.topic_id)
    _set_name(draft, command.name)
    draft.set_state("metadata", command.metadata)
    draft.set_state("lastActivityAt", command.last_activity_at)
    for node in command.nodes:
        if not node.parent_id:
            node = replace(node, parent_id=draft.root_id)
        draft.insert(off_the_wire(node))
    draft.set_active(command.active_node_id)
    made = {"topic": draft.topic_id, "rootId": draft.root_id}
    return {**made, "activeNodeId": command.active_node_id}


def _set_name(draft: Draft, name: str) -> None:
    check_json(msgspec.json.encode(name), "name", max_bytes=4000)
    draft.set_state("name", name)


def _metadata(raw: Raw) -> dict[str, Any]:
    value = check_json(raw, "metadata", max_bytes=MAX_METADATA_BYTES)
    if not isinstance(value, dict):
        raise Validation("metadata is not an object")
    return value


def topic_update(draft: Draft, command: p.TopicUpdate, _: Context) -> dict[str, Any]:
    """Rename the topic."""
    _set_name(draft, command.name)
    return {}


def set_metadata(draft: Draft, command: p.TopicSetMetadata, _: Context) -> dict[str, Any]:
    """Replace the metadata."""
    draft.set_state("metadata", _metadata(command.metadata))
    return {}


def set_metadata_namespace(
    draft: Draft, command: p.TopicSetMetadataNamespace, _: Context
) -> dict[str, Any]:
    """Set or remove one key of the metadata."""
    metadata = dict(draft.state["metadata"])
    metadata.pop(command.namespace, None)
    if command.value is not UNSET:
        metadata[command.namespace] = check_json(
            command.value, "value", max_bytes=MAX_METADATA_BYTES
        )
        check_json(msgspec.json.encode(metadata), "metadata", max_bytes=MAX_METADATA_BYTES)
    draft.set_state("metadata", metadata)
    return {}


def set_active(draft: Draft, command: p.TopicSetActive, _: Context) -> dict[str, Any]:
    """Select a content message, or nothing."""
    if command.node_id is not None:
        content_node(draft, command.node_id)
    draft.set_active(command.node_id)
    return {"activeNodeId": command.node_id}


def topic_clear(draft: Draft, _: p.TopicClear, __: Context) -> dict[str, Any]:
    """Take every message out; the root stays, and nothing is active."""
    refuse_if_live(draft)
    gone = [node.id for top in draft.children(draft.root_id) for node in draft.subtree(top)]
    draft.set_active(None)
    for message_id in reversed(gone):
        draft.remove(message_id)
    return {"deleted": gone}


def topic_delete(draft: Draft, _: p.TopicDelete, context: Context) -> dict[str, Any]:
    """Mark the topic as deleted; nothing lands on it from then on."""
    refuse_if_live(draft)
    draft.set_state("deletedAt", context.now)
    return {}


def erase(draft: Draft, command: EraseTopic, context: Context) -> dict[str, Any]:
    """Delete a temporary topic, unless it was kept or used meanwhile, or is being written."""
    unused = draft.state["lastActivityAt"] < command.unused_since
    if unused and "temporary" in draft.state and not draft.live:
        draft.set_state("deletedAt", context.now)
    return {}


def topic_restore(draft: Draft, _: p.TopicRestore, __: Context) -> dict[str, Any]:
    """Take a deletion back."""
    if "deletedAt" not in draft.state:
        raise InvalidOperation(
            f"topic {draft.topic_id} is not deleted: there is nothing to restore"
        )
    draft.set_state("deletedAt", None)
    return {"topic": draft.topic_id, "rootId": draft.root_id}
