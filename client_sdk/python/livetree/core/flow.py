"""
A topic as a canvas draws it: its messages as a graph, and replies under way laid over them.

The virtual root is never drawn, so first turns are the roots of the graph. Everything takes
time that grows with the number of messages (sorting aside), however deep they hang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from . import protocol as p
from .content import data_of_text, preview_of
from .reads import TreeNode, TreePage, arranged, tree_node
from .view import View

__all__ = ["FlowEdge", "FlowGraph", "FlowNode", "FlowStats", "LiveRow", "flow_graph", "merge"]


class FlowNode(Struct, frozen=True, kw_only=True, rename="camel"):
    """
    A message of the graph.

    ``group`` is the number that it shares with other replies below its parent, else 0:
    edits and resends of prompts are not told by it. ``inactiveBranch`` marks what lies
    beside the active path; without an active path nothing does.

    """

    row: TreeNode
    group: int
    active: bool
    on_active_path: bool
    inactive_branch: bool


class FlowEdge(Struct, frozen=True, kw_only=True, rename="camel"):
    """
    The line from a message to one below it.

    ``siblingBranch`` marks lines to a reply that has others beside it, grouped or not.

    """

    from_id: str
    to_id: str
    on_active_path: bool
    sibling_branch: bool
    inactive_branch: bool


class FlowStats(Struct, frozen=True, kw_only=True, rename="camel"):
    """Counts of the graph; ``branches`` is the number of its leaves, 0 if there is one."""

    nodes: int
    branches: int
    active_path_length: int


class FlowGraph(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a canvas draws; nodes stand in order of time and id, edges in that of their ends."""

    root_id: str
    active_node_id: str | None
    nodes: list[FlowNode]
    edges: list[FlowEdge]
    stats: FlowStats


class LiveRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message as somebody who follows its writing has it, stored or not yet."""

    id: str
    parent_id: str | None
    role: p.Role
    status: p.Status
    text: str
    group: int = 0
    created_at: int


def flow_graph(source: View | TreePage) -> FlowGraph:
    """
    Return the graph of a whole topic, or of the messages of a page.

    A message whose parent is not among them has no edge: it is a root of the graph. If the
    active node is not among them, there is no active path.

    """
    page = merge(source, ()) if isinstance(source, View) else source
    rows = [*page.nodes, *(row for group in page.groups for row in group.nodes)]
    rows.sort(key=lambda row: (row.created_at, row.id))
    by_id = {row.id: row for row in rows}
    path = _path(by_id, page.active_node_id)
    replies = Counter(row.parent_id for row in rows if row.role == "assistant")
    parents = {row.parent_id for row in rows}
    leaves = sum(row.id not in parents for row in rows)
    groups = _groups_of_replies(page)
    has_path = bool(path)
    return FlowGraph(
        root_id=page.root_id,
        active_node_id=page.active_node_id,
        nodes=[
            FlowNode(
                row=row,
                group=groups.get(row.id, 0),
                active=row.id == page.active_node_id,
                on_active_path=row.id in path,
                inactive_branch=has_path and row.id not in path,
            )
            for row in rows
        ],
        edges=[
            FlowEdge(
                from_id=row.parent_id,
                to_id=row.id,
                on_active_path=row.id in path,
                sibling_branch=row.role == "assistant" and replies[row.parent_id] > 1,
                inactive_branch=has_path and row.id not in path,
            )
            for row in rows
            if row.parent_id in by_id
        ],
        stats=FlowStats(
            nodes=len(rows),
            branches=leaves if leaves > 1 else 0,
            active_path_length=len(path),
        ),
    )


def merge(view: View, live: Iterable[LiveRow], active_node_id: str | None = None) -> TreePage:
    """
    Return the whole tree, as ``tree.get`` of unlimited depth, with live rows laid over it.

    A row that the topic has keeps its place and takes the live status; its preview too,
    unless the live text is blank. Any other joins its parent, and its group there, in order
    of time and id. A row that hangs off nothing known is left out, with all below it: a row
    without a parent, one whose parent is neither stored nor live, and rows in a circle. Of
    two rows with one id the later counts.

    Args:
        view: The topic; it is only read.
        live: The rows, in any order.
        active_node_id: The active node to tell instead of the stored one, if there is one.

    Raises:
        Validation: If a live text holds half of a surrogate pair.

    """
    rows = {row.id: row for row in live if row.parent_id is not None and row.id != view.root_id}
    came = _joining(view, rows)
    parents = {node.parent_id for _, node in came}
    stored = [node for top in view.children(view.root_id) for node in view.subtree(top)]
    shown = [
        (node.siblings_group_id, _overlaid(view, node, rows.get(node.id), parents))
        for node in stored
    ]
    merged = arranged(view, [*shown, *came])
    return merged if active_node_id is None else replace(merged, active_node_id=active_node_id)


def _path(rows: Mapping[str, TreeNode], active_node_id: str | None) -> set[str]:
    path: set[str] = set()
    row = None if active_node_id is None else rows.get(active_node_id)
    while row is not None and row.id not in path:
        path.add(row.id)
        row = rows.get(row.parent_id)
    return path


def _groups_of_replies(page: TreePage) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in page.groups:
        replies = [row.id for row in group.nodes if row.role == "assistant"]
        if len(replies) > 1:
            found.update(dict.fromkeys(replies, group.group))
    return found


def _joining(view: View, rows: Mapping[str, LiveRow]) -> list[tuple[int, TreeNode]]:
    """Return the rows that are not stored, with their groups, if what they hang off is there."""
    waiting: list[LiveRow] = []
    below: dict[str, list[LiveRow]] = {}
    for row in rows.values():
        parent_id = row.parent_id
        if parent_id is None or row.id in view:
            continue
        if parent_id == view.root_id or parent_id in view:
            waiting.append(row)
        else:
            below.setdefault(parent_id, []).append(row)
    found: list[tuple[int, TreeNode]] = []
    while waiting:
        row = waiting.pop()
        found.append((row.group, _fresh(row, has_children=row.id in below)))
        waiting.extend(below.get(row.id, ()))
    return found


def _fresh(row: LiveRow, *, has_children: bool) -> TreeNode:
    assert row.parent_id is not None
    return TreeNode(
        id=row.id,
        parent_id=row.parent_id,
        role=row.role,
        status=row.status,
        has_children=has_children,
        awaiting_input=_awaits(row.role, row.status, not row.text, has_children),
        preview=_preview(row),
        created_at=row.created_at,
        version=0,  # no commit has put it yet
    )


def _overlaid(view: View, node: p.Node, row: LiveRow | None, parents: set[str]) -> TreeNode:
    stored = tree_node(view, node)
    if row is None and node.id not in parents:
        return stored
    has_children = stored.has_children or node.id in parents
    status = node.status if row is None else row.status
    empty = node.empty and (row is None or not row.text)
    return replace(
        stored,
        status=status,
        has_children=has_children,
        awaiting_input=_awaits(node.role, status, empty, has_children),
        preview=(row is not None and _preview(row)) or stored.preview,
    )


def _awaits(role: str, status: str, empty: bool, has_children: bool) -> bool:
    """As `View.awaits_input`, of a row that may not be stored."""
    return role == "user" and status == "success" and empty and not has_children


def _preview(row: LiveRow) -> str:
    return preview_of(data_of_text(row.text))
