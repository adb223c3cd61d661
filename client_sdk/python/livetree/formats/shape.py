"""
From a source's links to a place in the tree for each message: the rules of every format.

F1  What is first in its source is a first turn: it has no parent, or one that is not there.
F2  A node without a message vanishes. Its children go to the nearest ancestor that has one,
    and stand there where it stood; without such an ancestor they are first turns.
F3  Siblings keep the source's order: as their parent lists them, then as the file has them.
F4  Children of one parent with the same role are alternatives: two or more share a group,
    numbered from 1 at each parent; one alone has none.
F5  The source's key is the message's id if it is valid; else the id is `m1`, `m2`, … : the
    next one that no message has.
F6  A message keeps the source's time if that is after its parent and its elder sibling; else,
    and without one, it comes a millisecond after the later of them. A first turn without a
    time gets the earliest time known.
F7  Links that run in a circle refuse the conversation, and so do two nodes of one key.

All of it takes time that grows with the number of nodes, and no recursion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from ..core.ids import is_id
from .faults import FormatError, quoted
from .neutral import Role

__all__ = ["Layout", "Place", "SourceNode", "lay_out"]


class SourceNode(Struct, frozen=True):
    """What a source says of where a message stands."""

    key: str
    parent: str | None
    role: Role | None
    """None if there is no message here."""
    time: int | None = None
    children: Sequence[str] = ()
    """Their order, where the source gives one; who is a child, the parents say."""


class Place(Struct, frozen=True):
    """Where a message stands in the tree."""

    key: str
    id: str
    parent_id: str | None
    siblings_group_id: int
    created_at: int
    time: int | None


class Layout(NamedTuple):
    """The places, parents first, and for every key the id of the message that stands there."""

    places: list[Place]
    ids: dict[str, str | None]
    """A vanished node stands for its nearest ancestor with a message, or for nothing."""

    def newest_leaf(self) -> str | None:
        """Return the leaf with the latest source time, of equal ones the last."""
        parents = {place.parent_id for place in self.places}
        leaves = [place for place in reversed(self.places) if place.id not in parents]
        if not leaves:
            return None
        return max(leaves, key=lambda leaf: -1 if leaf.time is None else leaf.time).id


def lay_out(nodes: Sequence[SourceNode], *, start: int | None = None) -> Layout:
    """
    Give each message its place.

    Args:
        nodes: All nodes of one conversation, in the file's order.
        start: When the conversation began, if the source says so.

    Raises:
        FormatError: If two nodes have one key, or links run in a circle.

    """
    children = _children(nodes)
    make_id = _IdMaker(nodes)
    ids: dict[str, str | None] = {}
    ordered: list[tuple[SourceNode, str, str | None]] = []
    stack: list[tuple[SourceNode, str | None]] = [
        (node, None) for node in reversed(children.get(None, ()))
    ]
    while stack:
        node, parent_id = stack.pop()
        if node.role is None:
            own_id = parent_id
        else:
            own_id = make_id(node.key)
            ordered.append((node, own_id, parent_id))
        ids[node.key] = own_id
        stack.extend((child, own_id) for child in reversed(children.get(node.key, ())))
    for node in nodes:
        if node.key not in ids:
            raise FormatError(f"the parents of node {quoted(node.key)} run in a circle")
    return Layout(_places(ordered, start), ids)


def _children(nodes: Sequence[SourceNode]) -> dict[str | None, list[SourceNode]]:
    keys = {node.key for node in nodes}
    if len(keys) < len(nodes):
        twice, _ = Counter(node.key for node in nodes).most_common(1)[0]
        raise FormatError(f"two nodes have the key {quoted(twice)}")
    children: dict[str | None, list[SourceNode]] = {}
    for node in nodes:
        children.setdefault(node.parent if node.parent in keys else None, []).append(node)
    for node in nodes:
        siblings = children.get(node.key)
        if siblings is not None and len(siblings) > 1 and node.children:
            # Backwards, so that of a key listed twice the first place counts.
            ranks = {key: -rank for rank, key in enumerate(reversed(node.children))}
            siblings.sort(key=lambda child: ranks.get(child.key, 1))
    return children


class _IdMaker:
    """Makes ids of keys (F5)."""

    def __init__(self, nodes: Sequence[SourceNode]) -> None:
        self._taken = {node.key for node in nodes}
        self._last = 0

    def __call__(self, key: str) -> str:
        if is_id(key):
            return key
        while True:
            self._last += 1
            made = f"m{self._last}"
            if made not in self._taken:
                return made


def _places(
    ordered: Sequence[tuple[SourceNode, str, str | None]], start: int | None
) -> list[Place]:
    alike = Counter((parent_id, node.role) for node, _, parent_id in ordered)
    groups: dict[tuple[str | None, Role | None], int] = {}
    groups_at: Counter[str | None] = Counter()
    known = [node.time for node, _, _ in ordered if node.time is not None]
    earliest = min(known if start is None else [start, *known], default=0)
    # The latest time so far at each parent: its own, then that of each child in turn.
    latest: dict[str | None, int] = {}
    places: list[Place] = []
    for node, own_id, parent_id in ordered:
        kind = (parent_id, node.role)
        if alike[kind] > 1 and kind not in groups:
            groups_at[parent_id] += 1
            groups[kind] = groups_at[parent_id]
        before = latest.get(parent_id)
        after = earliest if before is None else before + 1
        created_at = after if node.time is None else max(node.time, after)
        latest[parent_id] = latest[own_id] = created_at
        places.append(
            Place(node.key, own_id, parent_id, groups.get(kind, 0), created_at, node.time)
        )
    return places
