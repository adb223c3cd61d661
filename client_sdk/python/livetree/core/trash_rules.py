"""The rules of the past: a deletion undone, a deleted message brought back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from . import protocol as p
from .draft import Draft, parents_first
from .errors import Conflict, InvalidOperation, NotFound, TopicLive
from .planning import Content, Context, content_node, fresh_group
from .trash import Revival, TrashEntry, Wanted, below
from .view import Place

__all__ = ["restore", "undo"]


def undo(draft: Draft, command: p.TopicUndo, context: Context) -> dict[str, Any]:
    """Reverse what one commit deleted, as far as what happened since leaves room for it."""
    if command.seq is not None:
        entry = _entry(Wanted(seq=command.seq), context)
        if entry is None:
            raise NotFound(
                f"nothing that commit {command.seq} deleted is in the trash: see trash.list",
                seq=command.seq,
            )
    else:
        entry = _entry(Wanted(by=context.subject or ""), context)
        if entry is None:
            raise InvalidOperation(
                f"there is nothing to undo: nothing that you deleted in topic {draft.topic_id} "
                "is in the trash"
            )
    group_of = _groups(draft, entry)
    restored = _revive(draft, entry, entry.nodes, group_of)
    back = _take_back(draft, entry, group_of)
    new_active: str | None = "UNCHANGED"
    was, became = entry.active_before, entry.active_after
    if was != became and draft.active_node_id == became and (was is None or was in draft):
        new_active = was
        draft.set_active(was)
    return {"undone": entry.seq, "restored": restored, "reparented": back, "newActive": new_active}


def restore(draft: Draft, command: p.MessageRestore, context: Context) -> dict[str, Any]:
    """Bring a deleted message back, alone or with what was deleted from below it."""
    message_id = command.message_id
    if message_id == draft.root_id or message_id in draft:
        content_node(draft, message_id)
        raise InvalidOperation(f"message {message_id} is not deleted: there is nothing to restore")
    missing = NotFound(
        f"there is no message {message_id} in the trash of topic {draft.topic_id}", id=message_id
    )
    if draft.grave(message_id) is None:
        raise missing
    entry = _entry(Wanted(message_id=message_id, whole=command.cascade), context)
    if entry is None or all(node.id != message_id for node in entry.nodes):
        raise missing
    wanted = set(below(((node.id, node.parent_id) for node in entry.nodes), message_id))
    nodes = [node for node in entry.nodes if node.id in wanted]
    restored = _revive(draft, entry, nodes, _groups(draft, entry))
    return {
        "messageId": message_id,
        "parentId": draft.node(message_id).parent_id,
        "restored": restored,
    }


def _entry(wanted: Wanted, context: Context) -> TrashEntry | None:
    if wanted not in context.trash:
        raise Content([], [wanted])
    return context.trash[wanted]


def _revive(
    draft: Draft,
    entry: TrashEntry,
    nodes: list[p.Node],
    group_of: Callable[[str, Place], int],
) -> list[str]:
    """Put rows of the trash back into the tree, parents first; returns their ids."""
    displaced: set[str] = set()
    restored: list[str] = []
    in_order = sorted(nodes, key=lambda node: (node.created_at, node.id))
    for node in parents_first({node.id: node for node in in_order}):
        if node.id in draft.base:
            raise Conflict(f"message {node.id} is in the tree and in the trash", id=node.id)
        if node.id in draft:
            continue  # another command of the batch has brought it back
        parent_id = draft.nearest_living(node.parent_id)
        changes: dict[str, Any] = {
            "parent_id": parent_id,
            "siblings_group_id": group_of(parent_id, Place(node.parent_id, node.siblings_group_id)),
        }
        if parent_id != node.parent_id or parent_id in displaced:
            # What was derived from other ancestors is not true here.
            displaced.add(node.id)
            changes["context"] = None
        if node.status == "pending":
            # Nobody writes it any more.
            changes |= {"status": "error", "updated_at": max(draft.now, node.created_at)}
        draft.insert(replace(node, **changes))
        restored.append(node.id)
    draft.revivals.append(Revival(entry.seq, restored))
    return restored


def _take_back(draft: Draft, entry: TrashEntry, group_of: Callable[[str, Place], int]) -> list[str]:
    """Move the children back that are still where the deletion put them."""
    above_live = {
        node.id: reply_id for reply_id in draft.live for node in draft.ancestors(reply_id)
    }
    families: dict[str, list[str]] = {}
    for child_id, moved in entry.moved.items():
        families.setdefault(moved.parent_id, []).append(child_id)
    back: list[str] = []
    for parent_id, children in families.items():
        if parent_id != draft.root_id and parent_id not in draft:
            continue
        # Whoever comes back to it doesn't change what it hangs below.
        above = {node.id for node in draft.ancestors(parent_id)}
        for child_id in children:
            child, moved = draft.get(child_id), entry.moved[child_id]
            if child is None or child.parent_id != moved.to_parent_id or child_id in above:
                continue
            if child_id in above_live:
                raise TopicLive(above_live[child_id])
            # In another group by now, it keeps those of its new fellows who come back too.
            now = Place(child.parent_id, child.siblings_group_id)
            was = Place(parent_id, moved.group) if now.group == moved.to_group else now
            draft.change(child_id, parent_id=parent_id, siblings_group_id=group_of(parent_id, was))
            back.append(child_id)
    return back


def _groups(draft: Draft, entry: TrashEntry) -> Callable[[str, Place], int]:
    """
    Return what tells the group number of a row that comes back below a parent.

    It is the old one, if a former fellow has it there or nobody; else a fresh one. Numbers
    are not given twice below a parent, but a client may name any: whoever has the number
    and came after the deletion is no former fellow.

    """
    known: dict[tuple[str, Place], int] = {}
    there: dict[str, dict[int, bool]] = {}

    def may_rejoin(parent_id: str, group: int) -> bool:
        if parent_id not in there:
            there[parent_id] = _numbers(draft, parent_id, entry.last_created_at)
        return there[parent_id].get(group, True)

    def group_of(parent_id: str, old: Place) -> int:
        if not old.group:
            return 0
        key = (parent_id, old)
        if key not in known:
            rejoins = parent_id == old.parent_id and may_rejoin(parent_id, old.group)
            known[key] = old.group if rejoins else fresh_group(draft, parent_id)
        return known[key]

    return group_of


def _numbers(draft: Draft, parent_id: str, last_created_at: int) -> dict[int, bool]:
    """Return the group numbers below a parent, and whether an old message has each."""
    found: dict[int, bool] = {}
    for node in map(draft.node, draft.children(parent_id)):
        group = node.siblings_group_id
        found[group] = found.get(group, False) or node.created_at <= last_created_at
    return found
