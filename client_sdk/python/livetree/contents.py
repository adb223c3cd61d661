"""Which messages of a mirror have their content here, up to a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from .core.protocol import Delta, Node, Put
from .core.tree import Tree

__all__ = ["Contents", "owned_delta", "owned_node"]

EARLY: Final = 200
"""How many messages are kept that were read before their delta came."""

_RAW_FIELDS: Final = ("data", "decisions", "stats", "timing", "context")


class Contents:
    """
    The content in a tree, least recently used first.

    Args:
        limit: How many bytes may stay when `evict` is called.

    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._early: dict[str, Node] = {}

    def load(self, tree: Tree, old: Tree | None) -> None:
        """Begin anew with another tree; `old` has content that is good for equal versions."""
        warm = list(self._sizes)
        self._sizes.clear()
        self.size = 0
        self._early.clear()
        for message_id in warm if old is not None else ():
            node = old.get(message_id) if old is not None else None
            if node is not None and node.data is not UNSET:
                tree.hold(message_id, node.version, node.data)
        for node in tree.nodes():
            self.note(node.id, node.data)

    def note(self, message_id: str, data: Raw | UnsetType | None) -> None:
        """Take note that content is in the tree now, or no longer is."""
        self.size -= self._sizes.pop(message_id, 0)
        if isinstance(data, Raw):
            self._sizes[message_id] = len(memoryview(data))
            self.size += self._sizes[message_id]

    def touch(self, message_id: str) -> None:
        """Take note that content is being used."""
        if message_id in self._sizes:
            self._sizes.move_to_end(message_id)

    def hold(self, tree: Tree, node: Node) -> bool:
        """
        Put fetched content into a tree that has its message in the same version.

        What is of a later version is kept until `follow` finds the tree there.

        """
        held = tree.get(node.id)
        if held is None or node.data is UNSET:
            return False
        if tree.hold(node.id, node.version, node.data):
            self.note(node.id, node.data)
            return True
        if node.version > held.version and len(self._early) < EARLY:
            self._early[node.id] = node
        return False

    def is_early(self, message_id: str) -> bool:
        """Tell whether content is here of a version that the tree is still to reach."""
        return message_id in self._early

    def follow(self, tree: Tree, message_ids: Iterable[str]) -> list[str]:
        """Put content in that came before its version; returns what is no longer cold."""
        loaded: list[str] = []
        for message_id in message_ids if self._early else ():
            early, held = self._early.get(message_id), tree.get(message_id)
            if early is None or (held is not None and held.version < early.version):
                continue
            del self._early[message_id]
            if held is not None and held.data is UNSET and self.hold(tree, early):
                loaded.append(message_id)
        return loaded

    def drop_early(self) -> None:
        """Forget content whose versions will not come."""
        self._early.clear()

    def evict(self, tree: Tree) -> None:
        """Make content cold, down to the limit; that of live replies is needed at their end."""
        if self.size <= self.limit:
            return
        gone: list[str] = []
        for message_id, size in self._sizes.items():
            if self.size <= self.limit:
                break
            if message_id not in tree.live:
                gone.append(message_id)
                self.size -= size
        for message_id in gone:
            del self._sizes[message_id]
            tree.release(message_id)

    def __repr__(self) -> str:
        return f"<Contents {len(self._sizes)} bytes={self.size}>"


def owned_node(node: Node) -> Node:
    """Return the node with its own copies, so that it doesn't keep a whole frame alive."""
    copies = _copies(node)
    return replace(node, **copies) if copies else node


def owned_delta(delta: Delta) -> Delta:
    """Return the delta with its own copies, as `owned_node` does."""
    return replace(delta, put=[replace(put, **_copies(put)) for put in delta.put])


def _copies(struct: Node | Put) -> dict[str, Raw]:
    return {
        name: raw.copy() for name in _RAW_FIELDS if isinstance(raw := getattr(struct, name), Raw)
    }
