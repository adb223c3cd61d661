"""
One comparison for every copy of a topic: a room's tree, a mirror, a snapshot, a database's rows.

`check_folds` is the sentence that holds after each command: an old snapshot and the deltas since
make the fresh snapshot. It demands that something changed, so it can't pass by seeing nothing.
Nothing here does I/O; whoever has rows or frames makes a tree of them first (`tree_of_snapshot`,
`Tree.load`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec
from livetree.core import protocol as p
from livetree.core.canonical import canonical
from livetree.core.content import is_empty, preview_of
from livetree.core.digest import Digest, active_term, node_term, state_terms
from livetree.core.ids import is_id
from livetree.core.tree import Tree
from livetree.core.view import View, on_the_wire
from msgspec import UNSET, Raw

Contents = Mapping[str, bytes | Raw]

_JSON_FIELDS = ("decisions", "stats", "timing", "context")


def canonical_form(tree: View, contents: Contents | None = None) -> dict[str, Any]:
    """
    Return all that must be equal in every copy of a topic.

    Args:
        tree: The copy.
        contents: The data of messages that the tree doesn't hold. What it neither holds nor
            finds here is shown as cold, which is equal to nothing but cold.

    """
    messages = [_message_form(node, contents or {}) for node in walk(tree)]
    return {
        "topic": tree.topic_id,
        "root": tree.root_id,
        "seq": tree.seq,
        "commit": tree.commit,
        "active": tree.active_node_id,
        "state": {key: canonical(value) for key, value in sorted(tree.state.items())},
        "digest": tree.digest,
        "count": len(tree),
        "messages": messages,
    }


def walk(tree: View) -> Iterator[p.Node]:
    """Yield every message that can be reached from the root, in reading order."""
    waiting = [*reversed(tree.children(tree.root_id))]
    while waiting:
        node = tree.node(waiting.pop())
        yield node
        waiting.extend(reversed(tree.children(node.id)))


def _message_form(node: p.Node, contents: Contents) -> dict[str, Any]:
    data = contents.get(node.id) if node.data is UNSET else node.data
    form: dict[str, Any] = {
        name: getattr(node, name)
        for name in p.Node.__struct_fields__
        if name not in (*_JSON_FIELDS, "data", "preview", "empty")
    }
    form["data"] = "cold" if data is None else canonical(msgspec.json.decode(data))
    for name in _JSON_FIELDS:
        value = getattr(node, name)
        form[name] = None if value is None else canonical(msgspec.json.decode(value))
    return form


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Tell where two forms differ, in words short enough for a failing test."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in sorted(one.keys() | other.keys(), key=str):
            found += differences(one.get(key), other.get(key), f"{where}.{key}" if where else key)
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        found = []
        for place, pair in enumerate(zip(one, other, strict=True)):
            found += differences(*pair, f"{where}[{place}]")
        return found
    if isinstance(one, list) and isinstance(other, list):
        names = [[_name(item) for item in items] for items in (one, other)]
        return [f"{where}: {len(one)} items, not {len(other)}: {names[0]} and {names[1]}"]
    # True and 1 are equal to Python and to nobody else.
    return [] if type(one) is type(other) and one == other else [f"{where}: {one!r}, {other!r}"]


def _name(item: Any) -> Any:
    return item.get("id", "?") if isinstance(item, dict) else item


def assert_equal_everywhere(**copies: View | dict[str, Any]) -> None:
    """
    Demand that all copies of a topic are equal.

    Args:
        copies: At least two trees or canonical forms, by the names that a failure shall use.

    """
    assert len(copies) > 1, "one copy is equal to nothing"
    forms = {
        name: copy if isinstance(copy, dict) else canonical_form(copy)
        for name, copy in copies.items()
    }
    first, *others = forms
    for name in others:
        found = differences(forms[first], forms[name])
        assert not found, f"{first} and {name} differ:\n  " + "\n  ".join(found[:20])


def check_folds(
    old: View, deltas: Sequence[p.Delta], fresh: View, written: Mapping[str, Raw] | None = None
) -> None:
    """
    Demand that an old snapshot and the deltas since make the fresh snapshot.

    Args:
        old: The topic before; it is copied, not changed.
        deltas: All that was told since, in order; at least one, and each must change something.
        fresh: The topic now, as somebody else has it.
        written: The data of replies that ended, which their deltas don't carry.

    """
    assert deltas, "nothing was told, so nothing is proved"
    mirror = over_the_wire(old)
    for delta in deltas:
        before = mirror.digest
        told = p.decode_frame(p.encode(delta))
        assert isinstance(told, p.Delta)
        assert mirror.apply(told, written), f"the digest after {told.seq} is not the delta's"
        # Whatever a commit changes, some term of the digest tells; only a birth may be bare.
        assert mirror.digest != before or told.seq == 1, f"{told.seq} was told and changed nothing"
    assert_equal_everywhere(old_and_deltas=mirror, fresh=fresh)


def over_the_wire(tree: View) -> Tree:
    """Return the copy that a client makes of a snapshot of this tree."""
    nodes = p.encode([on_the_wire(node) for node in walk(tree)])
    return Tree.load(
        topic_id=tree.topic_id,
        root_id=tree.root_id,
        seq=tree.seq,
        commit=tree.commit,  # type: ignore[arg-type]  # None before the first commit
        active_node_id=tree.active_node_id,
        state=msgspec.json.decode(p.encode(tree.state)),
        nodes=msgspec.json.decode(nodes, type=list[p.Node]),
        last_created_at=tree.last_created_at,
    )


def tree_of_snapshot(chunks: Sequence[p.Snapshot]) -> Tree:
    """Make a tree of a snapshot's frames, all of them."""
    head = chunks[0]
    numbers = [chunk.chunk for chunk in chunks]
    assert len(set(numbers)) == len(numbers) == head.chunks, f"chunks {numbers} of {head.chunks}"
    return Tree.load(
        topic_id=head.topic,
        root_id=head.root_id,
        seq=head.seq,
        commit=head.commit,
        active_node_id=head.active_node_id,
        state=head.state,
        nodes=[node for chunk in chunks for node in chunk.nodes],
    )


def check_invariants(tree: View) -> None:
    """Demand what holds for every topic at every `seq`."""
    found = list(walk(tree))
    ids = {node.id for node in found}
    assert len(found) == len(tree), f"{len(tree)} messages, {len(found)} reached from the root"
    assert len(ids) == len(found), "a message is reached twice"
    assert tree.root_id not in ids, "the root is listed as a message"
    assert tree.get(tree.root_id) is None, "the root is given out as a message"
    assert tree.active_node_id is None or tree.active_node_id in ids, "the pointer dangles"
    for node in found:
        _check_node(tree, node, ids)
    for parent_id in (tree.root_id, *ids):
        _check_children(tree, parent_id)
    assert tree.digest == recomputed_digest(tree), "the digest kept is not the digest of what is"
    for message_id, epoch in tree.live.items():
        node = tree.node(message_id)
        assert (node.role, node.status) == ("assistant", "pending"), f"{message_id} can't be live"
        assert 0 <= epoch <= tree.seq, f"reply {message_id} is of epoch {epoch} at {tree.seq}"


def _check_node(tree: View, node: p.Node, ids: set[str]) -> None:
    assert is_id(node.id), f"{node.id!r} is no id"
    assert node.parent_id == tree.root_id or node.parent_id in ids, f"{node.id} is an orphan"
    assert node.role in get_args(p.Role), f"{node.id} is of role {node.role}"
    assert node.status in get_args(p.Status), f"{node.id} has status {node.status}"
    assert node.siblings_group_id >= 0, f"{node.id} is of group {node.siblings_group_id}"
    assert 1 <= node.version <= tree.seq, f"{node.id} has version {node.version} at {tree.seq}"
    assert node.created_at <= tree.last_created_at, f"{node.id} is from the future"
    assert tree.is_first_turn(node.id) == (node.parent_id == tree.root_id)
    if node.data is not UNSET:
        assert node.preview == preview_of(node.data), f"the preview of {node.id} is old"
        assert node.empty == is_empty(node.data), f"{node.id} is wrong about being empty"


def _check_children(tree: View, parent_id: str) -> None:
    children = [tree.node(child_id) for child_id in tree.children(parent_id)]
    assert tree.has_children(parent_id) == bool(children), f"has {parent_id} children or not?"
    assert all(child.parent_id == parent_id for child in children)
    order = [(child.created_at, child.id) for child in children]
    assert order == sorted(order), f"the children of {parent_id} are out of order"
    groups = [child.siblings_group_id for child in children]
    assert tree.top_group(parent_id) >= max(groups, default=0), f"a group of {parent_id} is higher"


def recomputed_digest(tree: View) -> str:
    """Return the digest of what a topic has now, counted from nothing."""
    digest = Digest()
    digest.add(active_term(tree.active_node_id))
    for key, value in tree.state.items():
        for term in state_terms(key, value):
            digest.add(term)
    for node in walk(tree):
        digest.add(
            node_term(
                node.id,
                node.parent_id,
                node.role,
                node.status,
                node.siblings_group_id,
                node.version,
            )
        )
    return str(digest)
