"""
One topic's messages: the tree that the server, the SDK and every test share.

A `Tree` changes only by applying deltas. What is to become one is decided on a
`livetree.core.draft.Draft` over it, which leaves the tree alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw
from msgspec.structs import replace

from .digest import Digest, active_term, state_terms
from .protocol import Delta, Node, Put
from .view import (
    CHANGEABLE,
    OPTIONAL,
    Line,
    Place,
    View,
    exchange_active,
    exchange_state,
    find_place,
    off_the_wire,
    place_of,
    term_of,
    with_data,
)

__all__ = ["EMPTY_STATE", "Gap", "Tree"]

EMPTY_STATE: Final[dict[str, Any]] = {"name": "", "metadata": {}, "lastActivityAt": 0, "live": {}}
"""The topic's other state before its first commit; these keys are always there."""


class Gap(Exception):
    """A delta doesn't follow on what this tree has: ask for what is between."""


class Tree(View):
    """
    A topic's tree at one ``seq``.

    Args:
        topic_id: The topic.
        root_id: Its virtual root, which is no node of the tree.

    A new tree is the topic before its first commit: ``seq`` 0 and no ``commit``.

    """

    __slots__ = ("_children", "_graves", "_line", "_nodes", "_places", "_tops")

    def __init__(self, topic_id: str, root_id: str) -> None:
        self.topic_id = topic_id
        self.root_id = root_id
        self.seq = 0
        self.commit = None
        self.active_node_id = None
        self.last_created_at = 0
        self.state = dict(EMPTY_STATE)
        self._nodes: dict[str, Node] = {}
        self._children: dict[str, list[tuple[int, str]]] = {}
        self._tops: dict[str, int] = {}
        self._graves: dict[str, Place] = {}
        self._line: list[str] = []
        self._places: dict[str, int] = {}
        self._digest = Digest()
        self._digest.add(active_term(None))
        for key, value in self.state.items():
            for term in state_terms(key, value):
                self._digest.add(term)

    @classmethod
    def load(
        cls,
        *,
        topic_id: str,
        root_id: str,
        seq: int,
        commit: str,
        active_node_id: str | None,
        state: dict[str, Any],
        nodes: Iterable[Node],
        last_created_at: int = 0,
        graves: Mapping[str, Place] | None = None,
    ) -> Tree:
        """
        Build the tree that a store or a snapshot describes; nodes may come in any order.

        ``graves`` says where deleted messages hung that can still be restored: their ids
        and the numbers of their groups stay taken.

        """
        tree = cls(topic_id, root_id)
        tree.seq = seq
        tree.commit = commit
        for node in sorted(nodes, key=lambda node: (node.created_at, node.id)):
            tree._insert(off_the_wire(node))
        tree._set_active(active_node_id)
        for key, value in state.items():
            tree._set_state(key, value)
        tree.last_created_at = max(last_created_at, tree.last_created_at)
        for message_id, place in (graves or {}).items():
            tree._graves[message_id] = place
            tree._raise_top(place)
        return tree

    def get(self, message_id: str) -> Node | None:
        return self._nodes.get(message_id)

    def children(self, parent_id: str) -> Sequence[str]:
        return [message_id for _, message_id in self._children.get(parent_id, ())]

    def has_children(self, parent_id: str) -> bool:
        return parent_id in self._children

    def top_group(self, parent_id: str) -> int:
        return self._tops.get(parent_id, 0)

    def __len__(self) -> int:
        return len(self._nodes)

    def grave(self, message_id: str) -> Place | None:
        return self._graves.get(message_id)

    def line(self, message_id: str | None) -> Line:
        # The last line is kept: a page of a long path costs what it has, not what is above it.
        if message_id is not None and message_id not in self._places:
            added = []
            node = self._nodes.get(message_id)
            while node is not None and node.id not in self._places:
                added.append(node.id)
                node = self._nodes.get(node.parent_id)
            self._cut_line(0 if node is None else self._places[node.id] + 1)
            for each in reversed(added):
                self._places[each] = len(self._line)
                self._line.append(each)
        length = 0 if message_id is None else self._places.get(message_id, -1) + 1
        return Line(self._line, self._places, length)

    def subtree(self, top_id: str) -> list[Node]:
        nodes, children = self._nodes, self._children
        found: list[Node] = []
        waiting = [top_id]
        while waiting:
            node = nodes[waiting.pop()]
            found.append(node)
            if node.id in children:
                waiting.extend(message_id for _, message_id in reversed(children[node.id]))
        return found

    def _cut_line(self, place: int) -> None:
        for message_id in self._line[place:]:
            del self._places[message_id]
        del self._line[place:]

    def nodes(self) -> list[Node]:
        """Return all content messages, in no promised order."""
        return list(self._nodes.values())

    def apply(
        self,
        delta: Delta,
        written: Mapping[str, Raw] | None = None,
        decided: View | None = None,
    ) -> bool:
        """
        Fold a delta in.

        Args:
            delta: The next one.
            written: The data of the replies that it ended, where it is known; others
                become cold.
            decided: The draft on this tree that the delta was sealed from, if it was: its
                messages are taken as they are, and no content is read again.

        Returns:
            Whether the digest is now the delta's; if not, this tree has drifted and
            must be replaced by a snapshot.

        Raises:
            Gap: If the delta doesn't follow on this tree; nothing has changed.

        """
        if delta.seq != self.seq + 1 or delta.prev != self.commit:
            raise Gap(f"have {self.seq}, got {delta.seq}")
        for put in delta.put:
            if decided is None:
                self._apply_put(put, delta.seq)
            else:
                self._take(decided.node(put.id))
        for message_id in delta.ended:
            node, data = self._nodes[message_id], (written or {}).get(message_id)
            cold = replace(node, data=UNSET, preview="", empty=False)
            self._nodes[message_id] = cold if data is None else with_data(cold, data)
        for message_id in delta.drop:
            self._bury(message_id)
        self._set_active(delta.active_node_id)
        for key, value in delta.set.items():
            self._set_state(key, value)
        self.seq = delta.seq
        self.commit = delta.commit
        return self.digest == delta.digest

    def hold(self, message_id: str, version: int, data: Raw) -> bool:
        """Keep fetched content, if it is of exactly the version that the tree holds."""
        node = self._nodes.get(message_id)
        if node is None or node.version != version:
            return False
        # Content is in no digest term, so the node is exchanged in place.
        self._nodes[message_id] = with_data(node, data)
        return True

    def release(self, message_id: str) -> None:
        """Forget content; it can be fetched again."""
        node = self._nodes.get(message_id)
        if node is not None and node.data is not UNSET:
            self._nodes[message_id] = replace(node, data=UNSET)

    def _take(self, node: Node) -> None:
        old = self._nodes.get(node.id)
        if old is None:
            self._insert(node)
        else:
            self._replace(old, node)

    def _apply_put(self, put: Put, seq: int) -> None:
        old = self._nodes.get(put.id)
        if old is None:
            self._insert(_new_node(put, seq))
            return
        changes: dict[str, Any] = {
            name: value for name in CHANGEABLE if (value := getattr(put, name)) is not UNSET
        }
        node = replace(old, version=seq, **changes)
        self._replace(old, node if put.data is UNSET else with_data(node, put.data))

    def _insert(self, node: Node) -> None:
        if self._graves:
            self._graves.pop(node.id, None)
        self._nodes[node.id] = node
        self._link(node)
        self._digest.add(term_of(node))
        if node.created_at > self.last_created_at:
            self.last_created_at = node.created_at

    def _replace(self, old: Node, node: Node) -> None:
        self._nodes[node.id] = node
        if old.parent_id != node.parent_id:
            self._leave_line(node.id)
            self._unlink(old)
            self._link(node)
        else:
            self._raise_top(place_of(node))
        self._digest.remove(term_of(old))
        self._digest.add(term_of(node))

    def _bury(self, message_id: str) -> None:
        node = self._nodes.pop(message_id)
        self._leave_line(message_id)
        self._graves[message_id] = place_of(node)
        self._unlink(node)
        self._digest.remove(term_of(node))

    def _leave_line(self, message_id: str) -> None:
        if (place := self._places.get(message_id)) is not None:
            self._cut_line(place)

    def _link(self, node: Node) -> None:
        order = self._children.setdefault(node.parent_id, [])
        key = (node.created_at, node.id)
        order.insert(find_place(order, key), key)
        if node.siblings_group_id:
            self._raise_top(place_of(node))

    def _raise_top(self, place: Place) -> None:
        # Never lowered: the number of a deleted group must name no other.
        if place.group > self.top_group(place.parent_id):
            self._tops[place.parent_id] = place.group

    def _unlink(self, node: Node) -> None:
        order = self._children[node.parent_id]
        del order[bisect_left(order, (node.created_at, node.id))]
        if not order:
            del self._children[node.parent_id]

    def _set_active(self, message_id: str | None) -> None:
        exchange_active(self, message_id)

    def _set_state(self, key: str, value: Any) -> None:
        exchange_state(self, key, value)

    def __repr__(self) -> str:
        return f"<Tree {self.topic_id} seq={self.seq} messages={len(self)}>"


def _new_node(put: Put, seq: int) -> Node:
    optional = {
        name: value
        for name in (*OPTIONAL, "status", "siblings_group_id")
        if (value := getattr(put, name)) is not UNSET
    }
    if put.parent_id is UNSET or put.role is UNSET or put.created_at is UNSET:
        raise ValueError(f"the put of new message {put.id} is not whole")
    node = Node(
        id=put.id,
        parent_id=put.parent_id,
        role=put.role,
        version=seq,
        created_at=put.created_at,
        updated_at=put.created_at if put.updated_at is UNSET else put.updated_at,
        **optional,
    )
    return node if put.data is UNSET else with_data(node, put.data)
