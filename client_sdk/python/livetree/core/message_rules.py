"""The rules of messages: created, edited, moved, reserved."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw

from . import protocol as p
from .content import EMPTY_DATA, check_data, data_of_text, merge_data
from .draft import Draft
from .errors import Conflict, InvalidOperation, Validation
from .planning import (
    Content,
    Context,
    content_node,
    data_of,
    fresh_group,
    fresh_id,
    insert,
    object_of,
    parent_of,
    refuse_if_above_live,
    touch,
)

__all__ = ["create_sibling", "message_create", "message_update", "reserve"]


def message_create(draft: Draft, command: p.MessageCreate, context: Context) -> dict[str, Any]:
    """Add a message below a parent."""
    parent_id = parent_of(draft, command.parent)
    node = insert(
        draft,
        id=fresh_id(draft, command.message_id, context),
        parent_id=parent_id,
        role=command.role,
        status=command.status,
        siblings_group_id=command.group,
        data=data_of(command.text, command.data),
        model_id=command.model,
        author=context.subject,
        stats=object_of(command.stats, "stats"),
    )
    if command.set_active:
        draft.set_active(node.id)
    return {"messageId": node.id}


def create_sibling(
    draft: Draft, command: p.MessageCreateSibling, context: Context
) -> dict[str, Any]:
    """Add an alternative beside a message; an ungrouped source starts a group with it."""
    source = content_node(draft, command.source_id)
    message_id = fresh_id(draft, command.message_id, context)
    data = data_of(command.text, command.data)
    group = source.siblings_group_id
    if not group:
        group = fresh_group(draft, source.parent_id)
        draft.change(source.id, siblings_group_id=group)
    node = insert(
        draft,
        id=message_id,
        parent_id=source.parent_id,
        role=source.role,
        status="pending" if source.role == "assistant" else "success",
        siblings_group_id=group,
        data=data,
        model_id=source.model_id if command.model is None else command.model,
        author=context.subject,
    )
    draft.set_active(node.id)
    return {"messageId": node.id, "group": group}


def message_update(draft: Draft, command: p.MessageUpdate, context: Context) -> dict[str, Any]:
    """Change a message in place, or move it with all that is below it."""
    if command.message_id == draft.root_id:
        raise InvalidOperation("the virtual root cannot be changed")
    node = content_node(draft, command.message_id)
    if command.if_version is not None and command.if_version != node.version:
        raise Conflict(
            f"message {node.id} has version {node.version}, not {command.if_version}: "
            "look at it and decide again",
            version=node.version,
        )
    refuse_if_above_live(draft, node.id)
    changes: dict[str, Any] = {}
    if command.parent is not UNSET:
        changes |= _move(draft, node, command.parent)
    if command.group is not UNSET:
        changes["siblings_group_id"] = command.group
    if command.text is not UNSET or command.data is not UNSET:
        changes["data"] = Raw(_merged(node, command, context))
    if command.status is not UNSET:
        changes["status"] = command.status
    if command.model is not UNSET:
        changes["model_id"] = command.model
    if command.stats is not UNSET:
        changes["stats"] = object_of(command.stats, "stats")
    if command.context is not UNSET:
        changes["context"] = object_of(command.context, "context")
    ended = node.status == "pending" and changes.get("status", "pending") != "pending"
    draft.change(node.id, **changes)
    if ended and node.role == "assistant":
        touch(draft, context.now)
    return {"messageId": node.id}


def _merged(node: p.Node, command: p.MessageUpdate, context: Context) -> bytes:
    if command.text is not UNSET and command.data is not UNSET:
        raise Validation("text and data are both given: send one")
    if command.text is not UNSET:
        patch = data_of_text(command.text)
    else:
        assert command.data is not UNSET
        patch = check_data(command.data, partial=True)
    old = context.content.get(node.id) if node.data is UNSET else bytes(node.data)
    if old is None:
        raise Content([node.id])
    return check_data(merge_data(old, patch))


def _move(draft: Draft, node: p.Node, parent: str | None) -> dict[str, Any]:
    if parent is None:
        raise InvalidOperation("a message cannot be moved to null: name the root's id instead")
    parent_id = parent_of(draft, parent)
    if parent_id == node.parent_id:
        return {}
    if draft.is_within(parent_id, node.id):
        raise InvalidOperation(f"message {node.id} cannot be moved below itself")
    changes: dict[str, Any] = {"parent_id": parent_id}
    # Group numbers mean something below one parent only: never join a strange group.
    if node.siblings_group_id:
        changes["siblings_group_id"] = fresh_group(draft, parent_id)
    return changes


def reserve(draft: Draft, command: p.BranchReserve, context: Context) -> dict[str, Any]:
    """Put empty prompts below a reply: two below a leaf, so that the fork shows, else one."""
    anchor = content_node(draft, command.anchor_id, "anchor")
    if anchor.role != "assistant":
        raise InvalidOperation(
            f"message {anchor.id} is of role {anchor.role}: a branch is reserved below a reply"
        )
    count = 1 if draft.has_children(anchor.id) else 2
    asked: list[str | None] = [*command.message_ids, None, None][:count]
    reserved = [
        insert(
            draft,
            id=fresh_id(draft, message_id, context),
            parent_id=anchor.id,
            role="user",
            status="success",
            data=Raw(EMPTY_DATA),
            author=context.subject,
        ).id
        for message_id in asked
    ]
    if command.activate:
        draft.set_active(reserved[0])
    return {"messageId": reserved[0], "reserved": reserved}
