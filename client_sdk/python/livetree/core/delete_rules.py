"""The rules of deleting: one message, its subtree, a group of replies; and who inherits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import protocol as p
from .draft import Draft
from .errors import InvalidOperation
from .planning import (
    Context,
    clear_context_below,
    content_node,
    fresh_group,
    refuse_if_above_live,
)
from .view import Place, View

__all__ = ["delete_group", "group_of", "message_delete"]


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
