"""The answers to ``tree.get``, ``branch.get`` and ``message.get``, from any view of a topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from . import protocol as p
from .errors import InvalidOperation, NotFound, StaleCursor
from .view import View

__all__ = [
    "BranchItem",
    "BranchPage",
    "PathPage",
    "TreeGroup",
    "TreeNode",
    "TreePage",
    "arranged",
    "branch_page",
    "messages",
    "path_page",
    "topic_info",
    "tree_node",
    "tree_page",
]


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


class PathPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """
    A whole path in reading order, without the virtual root.

    Its last nodes are whole, as many as one answer may carry; those before them are
    skeletons.

    """

    ids: list[str]
    nodes: list[p.Node]
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
    line = view.line(node_id)
    end = line.length
    if command.cursor is not None:
        _find(view, command.cursor)
        place = line.place(command.cursor)
        if place is None:
            raise StaleCursor(
                f"message {command.cursor} is no longer on this path: read it again from its end"
            )
        end = place
    start = max(0, end - command.limit)
    items = []
    for index in range(start, end):
        node = view.node(line.ids[index])
        siblings = view.siblings(node) if command.include_siblings else []
        items.append(BranchItem(index=index, node=node, siblings=siblings))
    return BranchPage(
        items=items,
        next=items[0].node.id if items and start else None,
        node_id=node_id,
        root_id=view.root_id,
        active_node_id=view.active_node_id,
        seq=view.seq,
        commit=view.commit,
    )


def path_page(view: View, command: p.PathGet | p.PathThrough) -> PathPage:
    """
    Return the path to a message, or through it to the newest leaf below it.

    Raises:
        NotFound: If the message doesn't exist.

    """
    _find(view, command.node_id)
    end = command.node_id
    if isinstance(command, p.PathThrough):
        end = view.newest_leaf(end)
    path = view.path(end)
    return PathPage(
        ids=[node.id for node in path],
        nodes=path,
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
    nodes = [view.node(each) for each in shown]
    return arranged(view, ((node.siblings_group_id, tree_node(view, node)) for node in nodes))


def arranged(view: View, rows: Iterable[tuple[int, TreeNode]]) -> TreePage:
    """
    Return a page of these rows, in order of time and id, two or more of one group together.

    Args:
        view: The topic that they are of.
        rows: The number of each one's group, and the row.

    """
    ordered = sorted(rows, key=lambda row: (row[1].created_at, row[1].id))
    members: dict[tuple[str, int], list[TreeNode]] = {}
    for group, node in ordered:
        if group:
            members.setdefault((node.parent_id, group), []).append(node)
    groups = {key: found for key, found in members.items() if len(found) > 1}
    return TreePage(
        root_id=view.root_id,
        active_node_id=view.active_node_id,
        nodes=[node for group, node in ordered if (node.parent_id, group) not in groups],
        groups=[
            TreeGroup(parent_id=parent_id, group=group, nodes=found)
            for (parent_id, group), found in groups.items()
        ],
        seq=view.seq,
        commit=view.commit,
    )


def tree_node(view: View, node: p.Node) -> TreeNode:
    """Return a message of the view as a canvas needs it."""
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
        "temporary": "temporary" in view.state,
    }
