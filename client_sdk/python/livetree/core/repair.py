"""
What may be wrong with a topic as it was stored, and the one commit that mends it.

The rules never make such a topic: it was written past them. So nothing here takes for
granted that a parent exists or that the way up ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from . import protocol as p
from .draft import Draft
from .planning import Context, fresh_group
from .tree import Tree

__all__ = ["Fault", "Kind", "RepairTopic", "faults", "repair_topic"]

Kind: TypeAlias = Literal["orphan", "cycle", "version", "live", "pointer", "digest"]


class Fault(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One thing that is wrong; ``str(fault)`` is a sentence with the old value.

    Attributes:
        kind: ``orphan``: the parent is no message here. ``cycle``: the way up comes back
            to this message. ``version``: it is above the topic's `seq`. ``live``: a
            reply is noted as live that isn't pending. ``pointer``: the active node is no
            message here. ``digest``: the stored one isn't that of the rows.
        id: The message; None for ``pointer`` and ``digest``.
        old: The value as stored: a parent, a version, an epoch, a pointer, a digest.
        new: What takes its place; None where nothing does.

    """

    kind: Kind
    id: str | None = None
    old: str | int | None = None
    new: str | int | None = None

    def __str__(self) -> str:
        # Whatever stands in the rows may have come from anywhere: it is told as a literal.
        match self.kind:
            case "orphan":
                return f"message {self.id!r} has the parent {self.old!r}, which is not there"
            case "cycle":
                return f"message {self.id!r} is below itself, through its parent {self.old!r}"
            case "version":
                return f"message {self.id!r} has the version {self.old}, above the topic's seq"
            case "live":
                return f"{self.id!r} is noted as live (epoch {self.old}), and is no pending reply"
            case "pointer":
                return f"the active node is {self.old!r}, which is no message here"
            case "digest":
                return f"the stored digest is {self.old!r}, that of the rows {self.new!r}"


class RepairTopic(p.Mutation, frozen=True, kw_only=True, tag="topic.repair"):
    """
    The server's own: mend what `faults` found.

    ``seq`` is the topic's when it was looked at. One that has moved on since is left
    alone: whoever loads a topic repairs it before anything else, and so did they.

    """

    seq: int
    faults: list[Fault]


def faults(tree: Tree, digest: str | None = None) -> list[Fault]:
    """
    Find what is wrong with a topic as it was loaded.

    Takes time in proportion to its messages, whatever their shape. No active node is
    sound, and so is every tree that the rules have made.

    Args:
        tree: The topic; it is only read.
        digest: The stored one, to be compared with that of the rows.

    """
    # By age, so that the same rows give the same repair on every node.
    nodes = sorted(tree.nodes(), key=_age)
    moved = [*_orphans(tree, nodes), *_cycles(tree, nodes)]
    found = [*moved, *_versions(tree, nodes), *_live(tree)]
    active = tree.active_node_id
    if active is not None and active not in tree:
        heir = _newest_leaf(nodes, {fault.id for fault in moved})
        found.append(Fault(kind="pointer", old=active, new=heir))
    if digest is not None and digest != tree.digest:
        found.append(Fault(kind="digest", old=digest, new=tree.digest))
    return found


def _age(node: p.Node) -> tuple[int, str]:
    return node.created_at, node.id


def _orphans(tree: Tree, nodes: Iterable[p.Node]) -> Iterator[Fault]:
    for node in nodes:
        if node.parent_id != tree.root_id and node.parent_id not in tree:
            yield Fault(kind="orphan", id=node.id, old=node.parent_id, new=tree.root_id)


def _cycles(tree: Tree, nodes: Iterable[p.Node]) -> Iterator[Fault]:
    """Find the oldest message of each cycle; what hangs off a cycle is in order itself."""
    known: set[str] = set()
    for node in nodes:
        way: dict[str, p.Node] = {}
        above: p.Node | None = node
        while above is not None and above.id not in known and above.id not in way:
            way[above.id] = above
            above = tree.get(above.parent_id)
        known.update(way)
        if above is not None and above.id in way:
            ids = list(way)
            oldest = min((way[each] for each in ids[ids.index(above.id) :]), key=_age)
            yield Fault(kind="cycle", id=oldest.id, old=oldest.parent_id, new=tree.root_id)


def _versions(tree: Tree, nodes: Iterable[p.Node]) -> Iterator[Fault]:
    for node in nodes:
        if node.version > tree.seq:
            yield Fault(kind="version", id=node.id, old=node.version, new=tree.seq + 1)


def _live(tree: Tree) -> Iterator[Fault]:
    for message_id, epoch in tree.live.items():
        node = tree.get(message_id)
        if node is None or (node.role, node.status) != ("assistant", "pending"):
            yield Fault(kind="live", id=message_id, old=epoch)


def _newest_leaf(nodes: Iterable[p.Node], moved: set[str | None]) -> str | None:
    """Return the last of the messages, by age, that has no children once some have moved."""
    parents = {node.parent_id for node in nodes if node.id not in moved}
    last = None
    for node in nodes:
        if node.id not in parents:
            last = node.id
    return last


def repair_topic(draft: Draft, command: RepairTopic, _: Context) -> dict[str, Any]:
    """Mend each fault; a digest needs no more than a commit, which carries the right one."""
    if command.seq != draft.seq:
        return {"repaired": []}
    ended: set[str] = set()
    groups: dict[tuple[str, int], int] = {}
    moved: set[str] = set()
    for fault in command.faults:
        if fault.kind == "pointer":
            assert fault.new is None or isinstance(fault.new, str)
            draft.set_active(fault.new)
        elif fault.id is None:
            continue
        elif fault.kind == "live":
            ended.add(fault.id)
        elif fault.kind == "version":
            if fault.id not in moved:
                _put_again(draft, draft.node(fault.id))
        else:
            _hang_below_root(draft, draft.node(fault.id), groups)
            moved.add(fault.id)
    if ended:
        live = {each: epoch for each, epoch in draft.live.items() if each not in ended}
        draft.set_state("live", live)
    return {"repaired": command.faults}


def _hang_below_root(draft: Draft, node: p.Node, groups: dict[tuple[str, int], int]) -> None:
    group = node.siblings_group_id
    if group:
        # As with any move: alternatives stay together, and join no strange group.
        former = node.parent_id, group
        if former not in groups:
            groups[former] = fresh_group(draft, draft.root_id)
        group = groups[former]
    draft.change(node.id, parent_id=draft.root_id, siblings_group_id=group)


def _put_again(draft: Draft, node: p.Node) -> None:
    # A row is put when a field of it changes: here its time, which always moves on.
    at = max(draft.now, node.created_at, node.updated_at + 1)
    draft.change(node.id, silent=True, updated_at=at)
