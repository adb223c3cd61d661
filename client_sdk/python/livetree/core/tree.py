"""
One topic's messages: the tree that the server, the SDK and every test share.

A `Tree` changes only by applying deltas. A `Draft` lies over a tree, takes changes
without touching it and tells them as one delta. Neither copies what it doesn't change:
appending a message costs the same in a topic of ten and of a million.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Raw
from msgspec.structs import replace

from .canonical import canonical
from .content import is_empty, preview_of
from .digest import Digest, active_term, node_term, state_terms
from .protocol import Cause, Delta, Node, Put

__all__ = [
    "EMPTY_STATE",
    "Draft",
    "Gap",
    "Line",
    "Place",
    "Tree",
    "View",
    "off_the_wire",
    "on_the_wire",
    "parents_first",
    "place_of",
    "whole_put",
]

EMPTY_STATE: Final[dict[str, Any]] = {"name": "", "metadata": {}, "lastActivityAt": 0, "live": {}}
"""The topic's other state before its first commit; these keys are always there."""

_CHANGEABLE: Final = (
    "parent_id",
    "status",
    "siblings_group_id",
    "data",
    "decisions",
    "model_id",
    "author",
    "stats",
    "timing",
    "context",
    "updated_at",
)
_OPTIONAL: Final = ("decisions", "model_id", "author", "stats", "timing", "context")


class Place(NamedTuple):
    """Where a message hangs, or hung before it was deleted."""

    parent_id: str
    group: int


class Line(NamedTuple):
    """
    The ids of a path: the first ``length`` of ``ids``.

    ``places`` has the place of each. Both may have more, and are of use only until the
    tree changes.

    """

    ids: Sequence[str]
    places: Mapping[str, int]
    length: int

    def place(self, message_id: str) -> int | None:
        """Return a message's place on the path, counted from 0; None if it isn't on it."""
        place = self.places.get(message_id)
        return place if place is not None and place < self.length else None


class Gap(Exception):
    """A delta doesn't follow on what this tree has: ask for what is between."""


def _term(node: Node) -> str:
    return node_term(
        node.id,
        node.parent_id,
        node.role,
        node.status,
        node.siblings_group_id,
        node.version,
    )


class View(ABC):
    """What can be read of a topic: a tree, or a draft over one."""

    __slots__ = (
        "_digest",
        "active_node_id",
        "commit",
        "last_created_at",
        "root_id",
        "seq",
        "state",
        "topic_id",
    )

    topic_id: str
    root_id: str
    seq: int
    commit: str | None
    active_node_id: str | None
    last_created_at: int
    state: dict[str, Any]
    _digest: Digest

    @abstractmethod
    def get(self, message_id: str) -> Node | None:
        """Return a content message, or None; the root is never returned."""

    @abstractmethod
    def children(self, parent_id: str) -> Sequence[str]:
        """Return the ids of the children by ``(createdAt, id)``; don't change the sequence."""

    @abstractmethod
    def has_children(self, parent_id: str) -> bool:
        """Tell whether there is any child, without making the list."""

    @abstractmethod
    def top_group(self, parent_id: str) -> int:
        """Return a number that no sibling group below this parent exceeds."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of content messages."""

    @abstractmethod
    def grave(self, message_id: str) -> Place | None:
        """Return where a deleted message hung; None if it isn't deleted, or long ago."""

    def is_taken(self, message_id: str) -> bool:
        """Tell whether no new message may have this id: one has it, or a deleted one had."""
        return message_id in self or self.grave(message_id) is not None

    def nearest_living(self, message_id: str) -> str:
        """Return the message itself, or if it is deleted the nearest above it that isn't."""
        passed: set[str] = set()
        while message_id != self.root_id and message_id not in self:
            place = self.grave(message_id)
            if place is None or message_id in passed:
                return self.root_id
            passed.add(message_id)  # messages may have been moved between two deletions
            message_id = place.parent_id
        return message_id

    def newest_leaf(self, top_id: str) -> str:
        """Return the leaf at or below a message with the largest ``(createdAt, id)``."""
        leaves = (node for node in self.subtree(top_id) if not self.has_children(node.id))
        return max(leaves, key=lambda node: (node.created_at, node.id)).id

    @property
    def digest(self) -> str:
        """The digest as deltas carry it: 16 hex digits."""
        return str(self._digest)

    @property
    def live(self) -> dict[str, int]:
        """The live replies: message id → epoch, 0 for an open offer."""
        live: dict[str, int] = self.state["live"]
        return live

    def __contains__(self, message_id: str) -> bool:
        return self.get(message_id) is not None

    def node(self, message_id: str) -> Node:
        """Return a message that is known to exist."""
        node = self.get(message_id)
        if node is None:
            raise KeyError(message_id)
        return node

    def is_first_turn(self, message_id: str) -> bool:
        """Tell whether the message hangs off the root; there is no other test."""
        node = self.get(message_id)
        return node is not None and node.parent_id == self.root_id

    def awaits_input(self, message_id: str) -> bool:
        """Tell whether this is an empty, successful user leaf; derived, never stored."""
        node = self.get(message_id)
        return (
            node is not None
            and node.role == "user"
            and node.status == "success"
            and node.empty
            and not self.has_children(message_id)
        )

    def ancestors(self, message_id: str) -> Iterator[Node]:
        """Yield the message and those above it, up to the first turn."""
        node = self.get(message_id)
        while node is not None:
            yield node
            node = self.get(node.parent_id)

    def path(self, message_id: str | None) -> list[Node]:
        """Return the messages from the first turn down to this one; of None, nothing."""
        if message_id is None:
            return []
        found = list(self.ancestors(message_id))
        found.reverse()
        return found

    def line(self, message_id: str | None) -> Line:
        """Return the ids of the path to a message; of None, of nothing."""
        ids = [node.id for node in self.path(message_id)]
        return Line(ids, {each: place for place, each in enumerate(ids)}, len(ids))

    def is_within(self, message_id: str, top_id: str) -> bool:
        """Tell whether a message is `top_id` or below it."""
        return any(node.id == top_id for node in self.ancestors(message_id))

    def subtree(self, top_id: str) -> list[Node]:
        """Return the message and all below it, parents first, children in order."""
        found: list[Node] = []
        waiting = [top_id]
        while waiting:
            node = self.node(waiting.pop())
            found.append(node)
            waiting.extend(reversed(self.children(node.id)))
        return found

    def siblings(self, node: Node) -> list[str]:
        """Return the ids of the message's group without itself; an ungrouped one has none."""
        if not node.siblings_group_id:
            return []
        return [
            other
            for other in self.children(node.parent_id)
            if other != node.id and self.node(other).siblings_group_id == node.siblings_group_id
        ]


def _find(order: Sequence[tuple[int, str]], key: tuple[int, str]) -> int:
    # New messages are the newest, nearly always.
    if not order or order[-1] < key:
        return len(order)
    return bisect_left(order, key)


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

    def apply(self, delta: Delta, written: Mapping[str, Raw] | None = None) -> bool:
        """
        Fold a delta in.

        Args:
            delta: The next one.
            written: The data of the replies that it ended, where it is known; others
                become cold.

        Returns:
            Whether the digest is now the delta's; if not, this tree has drifted and
            must be replaced by a snapshot.

        Raises:
            Gap: If the delta doesn't follow on this tree; nothing has changed.

        """
        if delta.seq != self.seq + 1 or delta.prev != self.commit:
            raise Gap(f"have {self.seq}, got {delta.seq}")
        for put in delta.put:
            self._apply_put(put, delta.seq)
        for message_id in delta.ended:
            node, data = self._nodes[message_id], (written or {}).get(message_id)
            cold = replace(node, data=UNSET, preview="", empty=False)
            self._nodes[message_id] = cold if data is None else _with_data(cold, data)
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
        self._nodes[message_id] = _with_data(node, data)
        return True

    def release(self, message_id: str) -> None:
        """Forget content; it can be fetched again."""
        node = self._nodes.get(message_id)
        if node is not None and node.data is not UNSET:
            self._nodes[message_id] = replace(node, data=UNSET)

    def _apply_put(self, put: Put, seq: int) -> None:
        old = self._nodes.get(put.id)
        if old is None:
            self._insert(_new_node(put, seq))
            return
        changes: dict[str, Any] = {
            name: value
            for name in _CHANGEABLE
            if (value := getattr(put, name)) is not UNSET and name != "data"
        }
        node = replace(old, version=seq, **changes)
        self._replace(old, node if put.data is UNSET else _with_data(node, put.data))

    def _insert(self, node: Node) -> None:
        self._graves.pop(node.id, None)
        self._nodes[node.id] = node
        self._link(node)
        self._digest.add(_term(node))
        self.last_created_at = max(self.last_created_at, node.created_at)

    def _replace(self, old: Node, node: Node) -> None:
        self._nodes[node.id] = node
        if old.parent_id != node.parent_id:
            self._leave_line(node.id)
            self._unlink(old)
            self._link(node)
        else:
            self._raise_top(place_of(node))
        self._digest.remove(_term(old))
        self._digest.add(_term(node))

    def _bury(self, message_id: str) -> None:
        node = self._nodes.pop(message_id)
        self._leave_line(message_id)
        self._graves[message_id] = place_of(node)
        self._unlink(node)
        self._digest.remove(_term(node))

    def _leave_line(self, message_id: str) -> None:
        if (place := self._places.get(message_id)) is not None:
            self._cut_line(place)

    def _link(self, node: Node) -> None:
        order = self._children.setdefault(node.parent_id, [])
        key = (node.created_at, node.id)
        order.insert(_find(order, key), key)
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
        _exchange_active(self, message_id)

    def _set_state(self, key: str, value: Any) -> None:
        _exchange_state(self, key, value)

    def __repr__(self) -> str:
        return f"<Tree {self.topic_id} seq={self.seq} messages={len(self)}>"


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
        self._digest.add(_term(node))
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
            node = _with_data(node, data)
            if self.ended.pop(message_id, None):  # it isn't what was streamed any more
                self.rewritten.add(message_id)
        self._nodes[message_id] = node
        if old.parent_id != node.parent_id:
            self._unlink(old)
            self._link(node)
        elif node.siblings_group_id > self.top_group(node.parent_id):
            self._tops[node.parent_id] = node.siblings_group_id
        self._digest.remove(_term(old))
        self._digest.add(_term(node))
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
        self._digest.remove(_term(node))

    def set_active(self, message_id: str | None) -> None:
        """Select a message, or none."""
        _exchange_active(self, message_id)

    def set_state(self, key: str, value: Any) -> None:
        """Set one key of the topic's other state; None takes it out."""
        if self.state is self._base.state:
            self.state = dict(self.state)
        _exchange_state(self, key, value)

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
            order.insert(_find(order, key), key)
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


def place_of(node: Node) -> Place:
    """Return where a message hangs."""
    return Place(node.parent_id, node.siblings_group_id)


def on_the_wire(node: Node) -> Node:
    """Return the node as frames carry it: what follows from ``data`` isn't sent beside it."""
    return node if node.data is UNSET else replace(node, preview="", empty=False)


def off_the_wire(node: Node) -> Node:
    """Return the node as a tree holds it: with what follows from its ``data``."""
    return node if node.data is UNSET else _with_data(node, node.data)


def whole_put(node: Node) -> Put:
    """Return the put of a new row."""
    optional = {name: value for name in _OPTIONAL if (value := getattr(node, name)) is not None}
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
        for name in _CHANGEABLE
        if not _same(getattr(old, name), value := getattr(node, name))
        and not (streamed and name == "data")
    }
    return Put(id=node.id, **changes)


def _new_node(put: Put, seq: int) -> Node:
    optional = {
        name: value
        for name in (*_OPTIONAL, "status", "siblings_group_id")
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
    return node if put.data is UNSET else _with_data(node, put.data)


def _with_data(node: Node, data: Raw) -> Node:
    return replace(node, data=data, preview=preview_of(data), empty=is_empty(data))


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


def _exchange_active(view: View, message_id: str | None) -> None:
    if message_id != view.active_node_id:
        view._digest.remove(active_term(view.active_node_id))
        view._digest.add(active_term(message_id))
        view.active_node_id = message_id


def _exchange_state(view: View, key: str, value: Any) -> None:
    for term in state_terms(key, view.state[key]) if key in view.state else ():
        view._digest.remove(term)
    if value is None:  # no key has null as its value: null takes a key out
        view.state.pop(key, None)
        return
    for term in state_terms(key, value):
        view._digest.add(term)
    view.state[key] = value
