"""What the commands answer, as structs; ids and positions, hardly ever content."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field

from .core.protocol import Delta, Node, TopicEntry

__all__ = [
    "Batched",
    "Claimed",
    "Cleared",
    "Created",
    "Deleted",
    "Deltas",
    "Done",
    "Messages",
    "ReadUpTo",
    "Reserved",
    "Restored",
    "Topic",
    "TopicCopy",
    "TopicPage",
    "TrashItem",
    "TrashPage",
    "Turn",
    "Undone",
]


class Done(Struct, frozen=True, kw_only=True, rename="camel"):
    """A command was carried out: the topic's position after it."""

    seq: int
    commit: str | None


class Topic(Done, frozen=True, kw_only=True, rename="camel"):
    """A topic that was made."""

    id: str = field(name="topic")
    root_id: str

    def __str__(self) -> str:
        return self.id


class TopicCopy(Topic, frozen=True, kw_only=True, rename="camel"):
    """A topic that was made as a copy of a path, and the copy of its end."""

    active_node_id: str


class TopicPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of the list of topics; ``next`` is the cursor of the page after it."""

    topics: list[TopicEntry]
    next: str | None = None


class Created(Done, frozen=True, kw_only=True, rename="camel"):
    """A message that was made, and its sibling group where it was put into one."""

    message_id: str
    group: int = 0


class Turn(Done, frozen=True, kw_only=True, rename="camel"):
    """A turn that was submitted: the user's message and the replies that are offered."""

    user_id: str
    placeholder_ids: list[str]


class Deleted(Done, frozen=True, kw_only=True, rename="camel"):
    """Which messages are gone, which moved up, and where the active node went, if it did."""

    deleted: list[str]
    reparented: list[str]
    new_active: str | None


class Reserved(Done, frozen=True, kw_only=True, rename="camel"):
    """The prompts that were reserved; ``message_id`` is the one that becomes active."""

    message_id: str
    reserved: list[str]


class Restored(Done, frozen=True, kw_only=True, rename="camel"):
    """A deleted message that is back, below which parent, and all that came with it."""

    message_id: str
    parent_id: str
    restored: list[str]


class Undone(Done, frozen=True, kw_only=True, rename="camel"):
    """
    A deletion that was reversed: what came back, what moved back, where the active node went.

    ``undone`` is the `seq` of the commit that had deleted it.

    """

    undone: int
    restored: list[str]
    reparented: list[str]
    new_active: str | None


class TrashItem(Struct, frozen=True, kw_only=True, rename="camel"):
    """A deleted message, without ``data``: which commit deleted it, how, who and when."""

    seq: int
    op: str
    by: str | None
    at: int
    node: Node


class TrashPage(Done, frozen=True, kw_only=True, rename="camel"):
    """A page of a topic's trash, the latest deletion first; ``next`` leads on."""

    items: list[TrashItem]
    next: str | None


class ReadUpTo(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far a subject has read a topic, and how many messages of others came since."""

    read_seq: int
    unread: int


class Cleared(Done, frozen=True, kw_only=True, rename="camel"):
    """Which messages are gone."""

    deleted: list[str]


class Batched(Done, frozen=True, kw_only=True, rename="camel"):
    """What each command of a batch answered, as JSON objects."""

    results: list[dict[str, Any]]


class Messages(Done, frozen=True, kw_only=True, rename="camel"):
    """Messages as they were at one position, whole."""

    nodes: list[Node]


class Deltas(Done, frozen=True, kw_only=True, rename="camel"):
    """A page of deltas; ``reset`` says that the history doesn't reach back so far."""

    deltas: list[Delta]
    reset: bool = False


class Claimed(Done, frozen=True, kw_only=True, rename="camel"):
    """
    A reply that is now ours to write: next comes op ``n`` + 1 of ``epoch``.

    ``parts`` is what an earlier writer left. A repeated claim's answer has neither.

    """

    message_id: str
    epoch: int
    lease_ms: int
    n: int | UnsetType = UNSET
    parts: list[Raw] | UnsetType = UNSET
