"""What stands in a topic's queue beside its commands, and what is known of them beforehand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from livetree.core import protocol as p
from livetree.core.plan import ImportTopic
from msgspec import UNSET, Struct

from .ports import Subscriber
from .room import Position, Room, Waiting

log = logging.getLogger("livetree.topics")

__all__ = [
    "LARGE_TOPIC",
    "Answer",
    "Append",
    "Ask",
    "CatchUp",
    "Close",
    "Copy",
    "Job",
    "Open",
    "Renew",
    "is_far_reaching",
    "makes_topic",
    "once",
    "restores_topic",
]

_FAR_REACHING: Final = (
    p.TopicClear,
    p.TopicUndo,
    p.MessageDelete,
    p.MessageDeleteGroup,
    p.MessageRestore,
    p.MessageRetry,
)

LARGE_BYTES: Final = 1024 * 1024
"""How much content is read through without letting others have their turn."""

LARGE_TOPIC: Final = 2_000
"""How many messages are made into a tree without letting others have their turn."""

Answer: TypeAlias = Callable[[Any], None]


def once(answer: Answer) -> Answer:
    """
    Return what answers a job the first time it is called, and then does nothing.

    A job may be given up for lost after it has been answered. An answer that fails harms
    nobody else.

    """
    left = [answer]

    def tell(outcome: Any) -> None:
        if left:
            try:
                left.pop()(outcome)
            except Exception:
                log.exception("an answer could not be given")

    return tell


class Ask(Struct, frozen=True, eq=False):
    """A read."""

    command: p.Command
    answer: Answer


class Open(Struct, frozen=True, eq=False):
    """A subscription, from a position."""

    position: Position
    subscriber: Subscriber
    answer: Answer


class Close(Struct, frozen=True, eq=False):
    """The end of a subscription."""

    subscriber: Subscriber
    answer: Answer


class Copy(Struct, frozen=True, eq=False):
    """A path to copy; answered with the command that makes the new topic."""

    command: p.TopicDuplicate
    copy_id: str
    answer: Answer


class CatchUp(Struct, frozen=True, eq=False):
    """A subscriber that reads again."""

    subscriber: Subscriber


class Append(Struct, frozen=True, eq=False):
    """Live ops that had to wait."""

    command: p.StreamAppend
    answer: Answer


class Renew(Struct, frozen=True, eq=False):
    """A lease to keep."""

    command: p.StreamRenew
    answer: Answer


Job: TypeAlias = Ask | Copy | Open | Close | CatchUp | Append | Renew


def makes_topic(job: Waiting | Job) -> bool:
    """Tell whether it is a command that makes its topic."""
    return isinstance(job, Waiting) and isinstance(job.command, (p.TopicCreate, ImportTopic))


def restores_topic(job: Waiting | Job) -> bool:
    """Tell whether it is a command that takes the deletion of its topic back."""
    return isinstance(job, Waiting) and isinstance(job.command, p.TopicRestore)


def is_far_reaching(command: p.Mutation, room: Room) -> bool:
    """Tell whether a command may touch so many messages that others would wait for it."""
    if isinstance(command, ImportTopic):
        size = sum(len(memoryview(node.data)) for node in command.nodes if node.data is not UNSET)
        return len(command.nodes) > LARGE_TOPIC or size > LARGE_BYTES
    if len(room.tree) <= LARGE_TOPIC:
        return False
    some = command.commands if isinstance(command, p.Batch) else (command,)
    return any(isinstance(each, _FAR_REACHING) for each in some)
