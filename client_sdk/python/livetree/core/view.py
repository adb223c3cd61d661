"""
What can be read of a topic's messages, whoever holds them: the tree itself, or a draft over it.

Here is also what a tree and a draft have in common: places, lines, and how the digest
follows a change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Raw
from msgspec.structs import replace

from .content import is_empty, preview_of
from .digest import Digest, active_term, node_term, state_terms
from .protocol import Node

__all__ = [
    "CHANGEABLE",
    "OPTIONAL",
    "Line",
    "Place",
    "View",
    "exchange_active",
    "exchange_state",
    "find_place",
    "off_the_wire",
    "on_the_wire",
    "place_of",
    "term_of",
    "with_data",
]

CHANGEABLE: Final = (
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
"""The fields of a message that a commit may change."""

OPTIONAL: Final = ("decisions", "model_id", "author", "stats", "timing", "context")
"""Those of its fields that are null by default."""


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


def term_of(node: Node) -> str:
    """Return the term of a message in the digest."""
    return node_term(
        node.id,
        node.parent_id,
        node.role,
        node.status,
        node.siblings_group_id,
        node.version,
    )


def find_place(order: Sequence[tuple[int, str]], key: tuple[int, str]) -> int:
    """Return where a key belongs in a list of children."""
    # New messages are the newest, nearly always.
    if not order or order[-1] < key:
        return len(order)
    return bisect_left(order, key)


def place_of(node: Node) -> Place:
    """Return where a message hangs."""
    return Place(node.parent_id, node.siblings_group_id)


def on_the_wire(node: Node) -> Node:
    """Return the node as frames carry it: what follows from ``data`` isn't sent beside it."""
    return node if node.data is UNSET else replace(node, preview="", empty=False)


def off_the_wire(node: Node) -> Node:
    """Return the node as a tree holds it: with what follows from its ``data``."""
    return node if node.data is UNSET else with_data(node, node.data)


def with_data(node: Node, data: Raw) -> Node:
    """Return the node with data, and what follows from it."""
    return replace(node, data=data, preview=preview_of(data), empty=is_empty(data))


def exchange_active(view: View, message_id: str | None) -> None:
    """Make another message the active node, in the view and in its digest."""
    if message_id != view.active_node_id:
        view._digest.remove(active_term(view.active_node_id))
        view._digest.add(active_term(message_id))
        view.active_node_id = message_id


def exchange_state(view: View, key: str, value: Any) -> None:
    """Give a key of the other state another value, in the view and in its digest."""
    for term in state_terms(key, view.state[key]) if key in view.state else ():
        view._digest.remove(term)
    if value is None:  # no key has null as its value: null takes a key out
        view.state.pop(key, None)
        return
    for term in state_terms(key, value):
        view._digest.add(term)
    view.state[key] = value
