"""The rules of messages: created, edited, moved, deleted (the seeds' delete semantics)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Raw

from . import protocol as p
from .content import EMPTY_DATA, check_data, data_of_text, merge_data
from .draft import Draft
from .errors import Conflict, InvalidOperation, Validation
from .planning import (
    Content,
    Context,
    clear_context_below,
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
from .view import Place, View

__all__ = [
    "create_sibling",
    "delete_group",
    "group_of",
    "message_create",
    "message_delete",
    "message_update",
    "reserve",
]


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


def message_delete(draft: Draft, command: p.MessageDelete, _: Context) -> dict[str, Any]:
    """Take a message out: with its subtree, or handing its children on."""
    if command.message_id == draft.root_id:
        raise InvalidOperation("the virtual root cannot be deleted; topic.clear empties a topic")
    node = content_node(draft, command.message_id)
    if command.awaiting_input_only and not draft.awaits_input(node.id):
        raise InvalidOperation(f"message {node.id} no longer awaits input: it is kept")
    refuse_if_above_live(draft, node.id)
    if command.cascade:
        return _cascade(draft, node, command)
    return _splice(draft, node, command)


def _fallback(draft: Draft, node: p.Node, strategy: str) -> str | None:
    if strategy == "clear" or node.parent_id == draft.root_id:
        return None
    return node.parent_id


def _cascade(draft: Draft, node: p.Node, command: p.MessageDelete) -> dict[str, Any]:
    gone = [below.id for below in draft.subtree(node.id)]
    new_active: str | None = "UNCHANGED"
    if draft.active_node_id in set(gone):
        new_active = _fallback(draft, node, command.strategy)
        draft.set_active(new_active)
    for message_id in reversed(gone):
        draft.remove(message_id)
    return {"deleted": gone, "reparented": [], "newActive": new_active}


def _splice(draft: Draft, node: p.Node, command: p.MessageDelete) -> dict[str, Any]:
    children = list(draft.children(node.id))
    heir_id = node.parent_id
    handed_over = (
        command.strategy == "parent"
        and node.role == "assistant"
        and node.siblings_group_id != 0
        and draft.active_node_id is not None
        and draft.is_within(draft.active_node_id, node.id)
    )
    successor = _successor(draft, node) if handed_over else None
    if handed_over:
        clear_context_below(draft, node.id)
        heir_id = successor or heir_id
    _hand_over(draft, children, heir_id)
    new_active: str | None = "UNCHANGED"
    if draft.active_node_id == node.id:
        new_active = successor or _fallback(draft, node, command.strategy)
        draft.set_active(new_active)
    draft.remove(node.id)
    return {"deleted": [node.id], "reparented": children, "newActive": new_active}


def _hand_over(draft: Draft, children: Sequence[str], heir_id: str) -> None:
    """Move the children of a message that goes; each of their groups gets a number of its own."""
    groups: dict[int, int] = {0: 0}
    for child_id in children:
        group = draft.node(child_id).siblings_group_id
        if group not in groups:
            groups[group] = fresh_group(draft, heir_id)
        draft.hand_over(child_id, Place(heir_id, groups[group]))


def _successor(draft: Draft, node: p.Node) -> str | None:
    """Return the group's next reply by ``(createdAt, id)``, else the one before."""
    before: str | None = None
    passed = False
    for other_id in draft.children(node.parent_id):
        if other_id == node.id:
            passed = True
            continue
        other = draft.node(other_id)
        if other.role != "assistant" or other.siblings_group_id != node.siblings_group_id:
            continue
        if passed:
            return other_id
        before = other_id
    return before


def group_of(view: View, reply: p.Node) -> list[p.Node]:
    """Return the replies that a reply's group has, itself included; of no group, it alone."""
    if not reply.siblings_group_id:
        return [reply]
    return [
        node
        for node in map(view.node, view.children(reply.parent_id))
        if node.role == "assistant" and node.siblings_group_id == reply.siblings_group_id
    ]


def delete_group(draft: Draft, command: p.MessageDeleteGroup, _: Context) -> dict[str, Any]:
    """Take a reply and its alternatives out; what was said below any of them moves up."""
    reply = content_node(draft, command.message_id)
    if reply.role != "assistant":
        raise InvalidOperation(
            f"message {reply.id} is of role {reply.role}: only a reply names a group of replies"
        )
    members = group_of(draft, reply)
    refuse_if_above_live(draft, *(member.id for member in members))
    for member in members:
        if member.status == "pending":
            raise InvalidOperation(
                f"reply {member.id} of the group is pending: wait for it, or delete the others "
                "one by one"
            )
    path: set[str] = set()
    if reply.siblings_group_id and draft.active_node_id is not None:
        path = {node.id for node in draft.ancestors(draft.active_node_id)}
    children: list[str] = []
    for member in members:
        if member.id in path:
            clear_context_below(draft, member.id)
        handed_over = list(draft.children(member.id))
        _hand_over(draft, handed_over, reply.parent_id)
        children += handed_over
    gone = [member.id for member in members]
    new_active: str | None = "UNCHANGED"
    if draft.active_node_id in gone:
        new_active = _fallback(draft, reply, "parent")
        draft.set_active(new_active)
    for message_id in gone:
        draft.remove(message_id)
    return {"deleted": gone, "reparented": children, "newActive": new_active}


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
