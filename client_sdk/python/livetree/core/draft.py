"""
Changes over a view, kept apart from it until they are told as one delta.

A draft copies nothing that it doesn't change: appending a message costs the same in a
topic of ten and of a million.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Raw
from msgspec.structs import replace

from .canonical import canonical
from .protocol import Cause, Delta, Node, Put
from .view import (
    CHANGEABLE,
    OPTIONAL,
    Place,
    View,
    exchange_active,
    exchange_state,
    find_place,
    place_of,
    term_of,
    with_data,
)

__all__ = ["Draft", "parents_first", "whole_put"]


class Draft(View):
    """
    Changes over a view, kept apart from it.

    Args:
        base: What lies below; it must not change while the draft is used.
        now: The time that changed rows get as ``updatedAt``, in ms.

    """

    __slots__ = (
        "_base",
        "_came",
        "_count",
        "_gone",
        "_graves",
        "_nodes",
        "_tops",
        "ended",
        "handed_over",
        "now",
        "revivals",
        "rewritten",
    )

    def __init__(self, base: View, now: int = 0) -> None:
        self._base = base
        self.now = now
        self.topic_id = base.topic_id
        self.root_id = base.root_id
        self.seq = base.seq
        self.commit = base.commit
        self.active_node_id = base.active_node_id
        self.last_created_at = base.last_created_at
        self.state = base.state
        self._digest = base._digest.copy()
        self._count = len(base)
        self._nodes: dict[str, Node | None] = {}
        self._came: dict[str, list[tuple[int, str]]] = {}
        self._gone: dict[str, set[str]] = {}
        self._tops: dict[str, int] = {}
        self._graves: dict[str, Place] = {}
        self.ended: dict[str, tuple[int, int, int]] = {}
        self.handed_over: dict[str, Place] = {}
        self.revivals: list[Any] = []
        self.rewritten: set[str] = set()

    def get(self, message_id: str) -> Node | None:
        if message_id in self._nodes:
            return self._nodes[message_id]
        return self._base.get(message_id)

    def children(self, parent_id: str) -> Sequence[str]:
        below = self._base.children(parent_id)
        gone = self._gone.get(parent_id)
        came = self._came.get(parent_id)
        if gone:
            below = [message_id for message_id in below if message_id not in gone]
        if not came:
            return below
        keys = [(self.node(message_id).created_at, message_id) for message_id in below]
        return [message_id for _, message_id in sorted([*keys, *came])]

    def has_children(self, parent_id: str) -> bool:
        if self._came.get(parent_id):
            return True
        if not self._gone.get(parent_id):
            return self._base.has_children(parent_id)
        return bool(self.children(parent_id))

    def top_group(self, parent_id: str) -> int:
        return max(self._tops.get(parent_id, 0), self._base.top_group(parent_id))

    def __len__(self) -> int:
        return self._count

    def grave(self, message_id: str) -> Place | None:
        if message_id in self:
            return None
        return self._graves.get(message_id) or self._base.grave(message_id)

    @property
    def base(self) -> View:
        """What lies below."""
        return self._base

    def subtree(self, top_id: str) -> list[Node]:
        # Mostly a command looks before it has changed anything.
        return self._base.subtree(top_id) if not self._nodes else super().subtree(top_id)

    def next_created_at(self) -> int:
        """Return the time of a message created now: later than any before it."""
        return max(self.now, self.last_created_at + 1)

    def insert(self, node: Node) -> None:
        """Add a message; its version becomes that of the commit to come."""
        node = replace(node, version=self.seq + 1)
        self._nodes[node.id] = node
        self._count += 1
        self._link(node)
        self._digest.add(term_of(node))
        self.last_created_at = max(self.last_created_at, node.created_at)

    def change(self, message_id: str, *, silent: bool = False, **changes: Any) -> bool:
        """
        Change fields of a message; what is equal already is no change.

        Args:
            message_id: A message that exists.
            silent: Leave ``updatedAt`` as it is (for derived fields).
            changes: Fields of `Node`.

        Returns:
            Whether anything differed.

        """
        old = self.node(message_id)
        changes = {
            name: value for name, value in changes.items() if not _same(getattr(old, name), value)
        }
        if not changes:
            return False
        if not silent:
            # A message's time may be ahead of the clock: no change of it is older than it.
            changes["updated_at"] = max(self.now, old.created_at)
        data = changes.pop("data", UNSET)
        node = replace(old, version=self.seq + 1, **changes)
        if data is not UNSET:
            node = with_data(node, data)
            if self.ended.pop(message_id, None):  # it isn't what was streamed any more
                self.rewritten.add(message_id)
        self._nodes[message_id] = node
        if old.parent_id != node.parent_id:
            self._unlink(old)
            self._link(node)
        elif node.siblings_group_id > self.top_group(node.parent_id):
            self._tops[node.parent_id] = node.siblings_group_id
        self._digest.remove(term_of(old))
        self._digest.add(term_of(node))
        return True

    def end(self, message_id: str, last: tuple[int, int, int], data: Raw) -> None:
        """Store what a reply's writer streamed; its delta names ``last`` and no parts."""
        self.change(message_id, data=data)
        self.ended[message_id] = last

    def hand_over(self, message_id: str, place: Place) -> None:
        """Move a child of a message that is deleted: what `topic.undo` takes back."""
        self.change(message_id, parent_id=place.parent_id, siblings_group_id=place.group)
        self.handed_over[message_id] = place

    def remove(self, message_id: str) -> None:
        """Take a message out; its children must be gone or moved before the delta is made."""
        node = self.node(message_id)
        # As everyone knew it before: that is where it goes back to.
        self._graves[message_id] = place_of(self._base.get(message_id) or node)
        self._nodes[message_id] = None
        self._count -= 1
        self._unlink(node)
        self._digest.remove(term_of(node))

    def set_active(self, message_id: str | None) -> None:
        """Select a message, or none."""
        exchange_active(self, message_id)

    def set_state(self, key: str, value: Any) -> None:
        """Set one key of the topic's other state; None takes it out."""
        if self.state is self._base.state:
            self.state = dict(self.state)
        exchange_state(self, key, value)

    def seal(self, commit: str, cause: Cause, *, force: bool = False) -> Delta | None:
        """
        Tell the changes as one delta, or None if there are none.

        Args:
            commit: The id of the commit that will make them.
            cause: Who asked for it.
            force: Make a delta even without changes, so that mirrors compare digests.

        """
        put, drop = self._puts(), self._drops()
        state = self._set_keys()
        same_active = self.active_node_id == self._base.active_node_id
        if self.seq and same_active and not put and not drop and not state and not force:
            return None  # at seq 0 it is a topic's birth, which is a change even without content
        return Delta(
            topic=self.topic_id,
            root_id=self.root_id,
            seq=self.seq + 1,
            commit=commit,
            prev=self.commit,
            active_node_id=self.active_node_id,
            put=put,
            drop=drop,
            set=state,
            ended=self.ended,
            digest=self.digest,
            cause=cause,
        )

    def _set_keys(self) -> dict[str, Any]:
        if self.state is self._base.state:
            return {}
        old = self._base.state
        gone = {key: None for key in old if key not in self.state}
        return gone | {
            key: value
            for key, value in self.state.items()
            if key not in old or not _same_json(old[key], value)
        }

    def absorb(self, upper: Draft, delta: Delta) -> None:
        """Take over what a draft over this one decided, as its delta's commit."""
        # What came and went in one commit is known to nobody: its id is free again.
        self._graves |= {key: place for key, place in upper._graves.items() if key in self}
        for message_id, node in upper._nodes.items():
            old = self.get(message_id)
            if old is not None:
                self._unlink(old)
            self._nodes[message_id] = node
            if node is not None:
                self._link(node)
        self._count = upper._count
        self.active_node_id = upper.active_node_id
        self.state = upper.state
        self.last_created_at = upper.last_created_at
        self._digest = upper._digest.copy()
        self.seq = delta.seq
        self.commit = delta.commit

    def _puts(self) -> list[Put]:
        fresh: dict[str, Node] = {}
        changed: list[Put] = []
        for message_id, node in self._nodes.items():
            if node is None:
                continue
            old = self._base.get(message_id)
            if old is None:
                fresh[message_id] = node
            elif old is not node:
                put = _changed_put(old, node, streamed=message_id in self.ended)
                if message_id in self.rewritten:
                    # Told even if it is what was there before: what was streamed is void.
                    put = replace(put, data=node.data)
                changed.append(put)
        return [*(whole_put(node) for node in parents_first(fresh)), *changed]

    def _drops(self) -> list[str]:
        """Children before parents, so that a database deletes leaves only, whatever the depth."""
        gone = {
            message_id: old
            for message_id, node in self._nodes.items()
            if node is None and (old := self._base.get(message_id)) is not None
        }
        return [node.id for node in reversed(parents_first(gone))]

    def _link(self, node: Node) -> None:
        gone = self._gone.get(node.parent_id)
        if gone and node.id in gone and self._base.node(node.id).created_at == node.created_at:
            gone.discard(node.id)  # back where the base has it
        else:
            order = self._came.setdefault(node.parent_id, [])
            key = (node.created_at, node.id)
            order.insert(find_place(order, key), key)
        if node.siblings_group_id > self.top_group(node.parent_id):
            self._tops[node.parent_id] = node.siblings_group_id

    def _unlink(self, node: Node) -> None:
        key = (node.created_at, node.id)
        came = self._came.get(node.parent_id, [])
        place = bisect_left(came, key)
        if place < len(came) and came[place] == key:
            del came[place]
        else:
            self._gone.setdefault(node.parent_id, set()).add(node.id)

    def __repr__(self) -> str:
        return f"<Draft over {self._base!r} touched={len(self._nodes)}>"


def whole_put(node: Node) -> Put:
    """Return the put of a new row."""
    optional = {name: value for name in OPTIONAL if (value := getattr(node, name)) is not None}
    if node.updated_at != node.created_at:
        optional["updated_at"] = node.updated_at
    if node.status != "success":
        optional["status"] = node.status
    if node.siblings_group_id:
        optional["siblings_group_id"] = node.siblings_group_id
    return Put(
        id=node.id,
        parent_id=node.parent_id,
        role=node.role,
        data=node.data,
        created_at=node.created_at,
        **optional,
    )


def _changed_put(old: Node, node: Node, *, streamed: bool) -> Put:
    changes: dict[str, Any] = {
        name: value
        for name in CHANGEABLE
        if not _same(getattr(old, name), value := getattr(node, name))
        and not (streamed and name == "data")
    }
    return Put(id=node.id, **changes)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Raw) and isinstance(other, Raw):
        return bytes(one) == bytes(other)
    return bool(one == other)


def _same_json(one: Any, other: Any) -> bool:
    # To Python, 1 is equal to True; to JSON, and so to the digest, it isn't.
    return one is other or canonical(one) == canonical(other)


def parents_first(nodes: dict[str, Node]) -> list[Node]:
    """Order nodes so that each comes after its parent, keeping their order otherwise."""
    found: list[Node] = []
    placed: set[str] = set()
    for node in nodes.values():
        line: list[Node] = []
        above: Node | None = node
        while above is not None and above.id not in placed:
            line.append(above)
            placed.add(above.id)
            above = nodes.get(above.parent_id)
        found.extend(reversed(line))
    return found
