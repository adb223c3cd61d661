"""The answers to ``tree.get``, ``branch.get`` and ``message.get``, from any view of a topic."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from . import protocol as p
from .errors import InvalidOperation, NotFound, StaleCursor
from .tree import View

__all__ = ["BranchItem", "BranchPage", "branch_page", "messages", "topic_info", "tree_page"]


class BranchItem(Struct, frozen=True, kw_only=True, rename="camel"):
    """One message of a path, its place (0-based, counted from the first turn) and its siblings."""

    index: int
    node: p.Node
    siblings: list[str]


class BranchPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of a path in reading order; ``next`` is the cursor to the older part."""

    items: list[BranchItem]
    next: str | None
    node_id: str | None
    root_id: str
    active_node_id: str | None
    seq: int
    commit: str | None


class TreeNode(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message as a canvas needs it."""

    id: str
    parent_id: str
    role: str
    status: str
    has_children: bool
    awaiting_input: bool
    preview: str
    created_at: int
    version: int


class TreeGroup(Struct, frozen=True, kw_only=True, rename="camel"):
    """Two or more alternatives below one parent."""

    parent_id: str
    group: int
    nodes: list[TreeNode]


class TreePage(Struct, frozen=True, kw_only=True, rename="camel"):
    """The part of a tree that was asked for; the virtual root is never among the nodes."""

    root_id: str
    active_node_id: str | None
    nodes: list[TreeNode]
    groups: list[TreeGroup]
    seq: int
    commit: str | None


def _find(view: View, message_id: str) -> p.Node:
    node = view.get(message_id)
    if node is None:
        raise NotFound(f"there is no message {message_id} in topic {view.topic_id}", id=message_id)
    return node


def branch_page(view: View, command: p.BranchGet) -> BranchPage:
    """
    Return a page of the path to a node, the newest part before the cursor.

    Raises:
        NotFound: If the node or the cursor doesn't exist.
        StaleCursor: If the cursor is on another path.

    """
    node_id = view.active_node_id if command.node_id is None else command.node_id
    if node_id is not None:
        _find(view, node_id)
    path = view.path(node_id)
    end = len(path)
    if command.cursor is not None:
        _find(view, command.cursor)
        places = [place for place, node in enumerate(path) if node.id == command.cursor]
        if not places:
            raise StaleCursor(
                f"message {command.cursor} is no longer on this path: read it again from its end"
            )
        end = places[0]
    start = max(0, end - command.limit)
    items = [
        BranchItem(
            index=place,
            node=path[place],
            siblings=view.siblings(path[place]) if command.include_siblings else [],
        )
        for place in range(start, end)
    ]
    return BranchPage(
        items=items,
        next=items[0].node.id if items and start else None,
        node_id=node_id,
        root_id=view.root_id,
        active_node_id=view.active_node_id,
        seq=view.seq,
        commit=view.commit,
    )


def tree_page(view: View, command: p.TreeGet) -> TreePage:
    """
    Return the messages down to a depth, the active path, and its messages' children.

    ``nodeId`` names the node whose path is shown instead of the active one's; with
    ``rootId`` only what is below that message is returned, itself included.

    Raises:
        NotFound: If a named message doesn't exist.
        InvalidOperation: If ``rootId`` is the virtual root.

    """
    if command.root_id == view.root_id:
        raise InvalidOperation(
            "the virtual root is no message: leave rootId out for the whole tree"
        )
    for named in (command.root_id, command.node_id):
        if named is not None:
            _find(view, named)
    starts = [command.root_id] if command.root_id is not None else view.children(view.root_id)
    shown: dict[str, None] = {}
    level = list(starts)
    depth = 0
    while level and (command.depth < 0 or depth <= command.depth):
        shown.update(dict.fromkeys(level))
        level = [child for parent in level for child in view.children(parent)]
        depth += 1
    path = view.path(view.active_node_id if command.node_id is None else command.node_id)
    if command.root_id is not None:
        ids = [node.id for node in path]
        path = path[ids.index(command.root_id) :] if command.root_id in ids else []
    for node in path:
        shown[node.id] = None
        shown.update(dict.fromkeys(view.children(node.id)))
    return _arranged(view, shown)


def _arranged(view: View, shown: dict[str, None]) -> TreePage:
    nodes = sorted((view.node(each) for each in shown), key=lambda node: (node.created_at, node.id))
    members: dict[tuple[str, int], list[p.Node]] = {}
    for node in nodes:
        if node.siblings_group_id:
            members.setdefault((node.parent_id, node.siblings_group_id), []).append(node)
    groups = {key: group for key, group in members.items() if len(group) > 1}
    return TreePage(
        root_id=view.root_id,
        active_node_id=view.active_node_id,
        nodes=[
            _tree_node(view, node)
            for node in nodes
            if (node.parent_id, node.siblings_group_id) not in groups
        ],
        groups=[
            TreeGroup(
                parent_id=parent_id, group=group, nodes=[_tree_node(view, node) for node in found]
            )
            for (parent_id, group), found in groups.items()
        ],
        seq=view.seq,
        commit=view.commit,
    )


def _tree_node(view: View, node: p.Node) -> TreeNode:
    return TreeNode(
        id=node.id,
        parent_id=node.parent_id,
        role=node.role,
        status=node.status,
        has_children=view.has_children(node.id),
        awaiting_input=view.awaits_input(node.id),
        preview=node.preview,
        created_at=node.created_at,
        version=node.version,
    )


def messages(view: View, command: p.MessageGet) -> list[p.Node]:
    """Return the asked messages in the asked order; raises `NotFound` for a missing one."""
    return [_find(view, message_id) for message_id in command.message_ids]


def topic_info(view: View, created_at: int) -> dict[str, Any]:
    """Return a topic's own fields as `TopicInfo` has them."""
    return {
        "id": view.topic_id,
        "rootId": view.root_id,
        "name": view.state["name"],
        "seq": view.seq,
        "commit": view.commit,
        "activeNodeId": view.active_node_id,
        "metadata": view.state["metadata"],
        "createdAt": created_at,
        "lastActivityAt": view.state["lastActivityAt"],
    }
