"""Proof against drift: a number over a whole topic that both sides keep as they go."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from .canonical import canonical

__all__ = ["Digest", "active_term", "node_term", "state_terms"]

_MASK = 0xFFFFFFFF


class Digest:
    """
    The sum of every term's CRC-32, in two lanes modulo 2^32.

    Terms may be added and taken away in any order. It finds faults, not attacks.

    """

    __slots__ = ("_backward", "_forward")

    def __init__(self, forward: int = 0, backward: int = 0) -> None:
        self._forward = forward
        self._backward = backward

    def add(self, term: str) -> None:
        """Count a term in."""
        text = term.encode()
        self._forward = (self._forward + crc32(text)) & _MASK
        self._backward = (self._backward + crc32(text[::-1])) & _MASK

    def remove(self, term: str) -> None:
        """Take a term out that was counted in before."""
        text = term.encode()
        self._forward = (self._forward - crc32(text)) & _MASK
        self._backward = (self._backward - crc32(text[::-1])) & _MASK

    def copy(self) -> Digest:
        """Return an independent digest of the same terms."""
        return Digest(self._forward, self._backward)

    def __str__(self) -> str:
        """Return the 16 hex digits that travel in deltas: forward lane, then backward lane."""
        return f"{self._forward:08x}{self._backward:08x}"

    def __repr__(self) -> str:
        return f"Digest({self})"


def node_term(
    message_id: str, parent_id: str, role: str, status: str, group: int, version: int
) -> str:
    """Return the term of one message; the root has none."""
    return f"{message_id}\n{parent_id}\n{role}\n{status}\n{group}\n{version}"


def active_term(active_node_id: str | None) -> str:
    """Return the term of the active node."""
    return f"active\n{active_node_id or ''}"


def state_terms(key: str, value: Any) -> list[str]:
    """Return the terms of one key of a topic's other state; metadata has one per key of its own."""
    if key == "metadata":
        return [f"set\nmetadata.{name}\n{canonical(item)}" for name, item in value.items()]
    return [f"set\n{key}\n{canonical(value)}"]
