"""Proof that stored topics are trees: every row can be reached from its topic's one root."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["Fault", "Reachability", "check_reachable"]

Fault: TypeAlias = Literal["missing_root", "multi_root_topics", "unreachable_messages"]

_FAULTS: Final[tuple[Fault, ...]] = ("missing_root", "multi_root_topics", "unreachable_messages")


class Reachability(Struct, frozen=True):
    """
    What a check found.

    ``topics`` has the ids of the topics with each fault that there is, and nothing if all
    are sound.

    """

    topics: dict[Fault, list[str]]

    @property
    def ok(self) -> bool:
        """Whether every topic is a tree."""
        return not self.topics

    @property
    def errors(self) -> list[Fault]:
        """The faults that there are, each once."""
        return [*self.topics]


def check_reachable(topics: Mapping[str, Iterable[tuple[str, str | None]]]) -> Reachability:
    """
    Look for topics that are no tree, in time that grows with the number of rows only.

    A topic of which only a part hangs off a root has `unreachable_messages`: rows in a
    circle, rows whose parent is not there, and what is below them. With several roots, what
    hangs off any of them counts as reached.

    Args:
        topics: The rows of each topic, in any order: its id and its parent's, None for a
            root. Ids are unique within a topic.

    """
    found: dict[Fault, list[str]] = {fault: [] for fault in _FAULTS}
    for topic_id, rows in topics.items():
        for fault in _faults(rows):
            found[fault].append(topic_id)
    return Reachability({fault: places for fault, places in found.items() if places})


def _faults(rows: Iterable[tuple[str, str | None]]) -> list[Fault]:
    count = 0
    below: dict[str | None, list[str]] = {}
    for row_id, parent_id in rows:
        count += 1
        below.setdefault(parent_id, []).append(row_id)
    # A row hangs off one parent, so none is come to twice and a circle never.
    roots = below.pop(None, [])
    faults: list[Fault] = []
    if not roots:
        faults.append("missing_root")
    elif len(roots) > 1:
        faults.append("multi_root_topics")
    waiting = [*roots]
    reached = 0
    while waiting:
        reached += 1
        waiting.extend(below.get(waiting.pop(), ()))
    if reached < count:
        faults.append("unreachable_messages")
    return faults
