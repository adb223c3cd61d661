"""One method a command: what a client, and all that leans on it, can ask the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from .core import protocol as p
from .core.errors import Validation
from .core.reads import BranchPage, PathPage, TreePage
from .results import (
    Batched,
    Cleared,
    Created,
    Deleted,
    Deltas,
    Done,
    Messages,
    ReadUpTo,
    Reserved,
    Restored,
    Topic,
    TopicCopy,
    TopicPage,
    TrashPage,
    Turn,
    Undone,
)

__all__ = ["Commands", "JsonObject", "json_of"]

T = TypeVar("T")

JsonObject: TypeAlias = dict[str, Any] | Raw | bytes
"""A JSON object: as a dict, or as its text."""


class _TopicAnswer(Struct, frozen=True):
    topic: p.TopicInfo


def json_of(value: Any) -> Raw:
    """
    Return a value as JSON text; text is passed through.

    Raises:
        Validation: If it can't be written as JSON.

    """
    if isinstance(value, Raw):
        return value
    if isinstance(value, bytes):
        return Raw(value)
    try:
        return Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        raise Validation(
            "the value holds half of a surrogate pair: send whole characters"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise Validation(f"the value can't be written as JSON: {error}") from None


def _optional(value: Any) -> Raw | None:
    return None if value is None else json_of(value)


def _unless_unset(value: Any) -> Any:
    return value if value is UNSET or value is None else json_of(value)


class Commands(ABC):
    """
    The commands of the protocol.

    Every method that changes something sends a fresh mutation id, so that a repetition
    after a lost connection happens once, and names each new message. All raise the
    `LivetreeError` that the server refuses with. A method that is cancelled before its
    command was sent has no effect; later the command may happen all the same.

    """

    @abstractmethod
    async def ask(self, command: p.Command, kind: type[T]) -> T:
        """Send a command and return its result as a `kind`."""

    @abstractmethod
    def new_id(self) -> str:
        """Make an id for a message, a topic or a mutation."""

    async def request(self, command: p.Command) -> dict[str, Any]:
        """
        Send any command of `livetree.core.protocol.COMMANDS` and return its result.

        Its ``id`` is chosen here, and its ``mutation`` too unless it has one.

        """
        return await self.ask(command, dict[str, Any])

    # Topics -----------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str = "",
        *,
        metadata: JsonObject | None = None,
        temporary: bool = False,
        topic_id: str | None = None,
    ) -> Topic:
        """Make a topic; a ``temporary`` one is not listed, and erased when it is no longer used."""
        command = p.TopicCreate(
            topic=topic_id or self.new_id(),
            name=name,
            metadata=_optional(metadata),
            temporary=temporary,
        )
        return await self.ask(command, Topic)

    async def persist_topic(self, topic_id: str) -> Done:
        """Keep a temporary topic: from now on it is like any other."""
        return await self.ask(p.TopicPersist(topic=topic_id), Done)

    async def duplicate_topic(
        self, topic_id: str, node_id: str, *, name: str | None = None, copy_id: str | None = None
    ) -> TopicCopy:
        """Copy the path to a message into a new topic."""
        command = p.TopicDuplicate(
            topic=topic_id, node_id=node_id, copy_id=copy_id or self.new_id(), name=name
        )
        return await self.ask(command, TopicCopy)

    async def topic(self, topic_id: str, *, min_seq: int = 0) -> p.TopicInfo:
        """Read a topic's own fields."""
        command = p.TopicGet(topic=topic_id, min_seq=min_seq)
        return (await self.ask(command, _TopicAnswer)).topic

    async def topics(
        self, name: str = "", *, limit: int = 50, cursor: str | None = None
    ) -> TopicPage:
        """List topics, the latest active first; ``name`` filters by a part of the name."""
        return await self.ask(p.TopicList(name=name, limit=limit, cursor=cursor), TopicPage)

    async def rename_topic(self, topic_id: str, name: str) -> Done:
        """Give a topic another name."""
        return await self.ask(p.TopicUpdate(topic=topic_id, name=name), Done)

    async def set_metadata(self, topic_id: str, metadata: JsonObject) -> Done:
        """Replace a topic's whole metadata."""
        return await self.ask(p.TopicSetMetadata(topic=topic_id, metadata=json_of(metadata)), Done)

    async def set_metadata_namespace(
        self, topic_id: str, namespace: str, value: Any = UNSET
    ) -> Done:
        """Set one key of the metadata and touch no other; without a value the key goes."""
        raw = UNSET if value is UNSET else json_of(value)
        command = p.TopicSetMetadataNamespace(topic=topic_id, namespace=namespace, value=raw)
        return await self.ask(command, Done)

    async def set_active(self, topic_id: str, message_id: str | None) -> Done:
        """Select a message for everyone who follows the topic, or nothing."""
        return await self.ask(p.TopicSetActive(topic=topic_id, node_id=message_id), Done)

    async def clear_topic(self, topic_id: str, *, base: int | None = None) -> Cleared:
        """Delete all messages of a topic."""
        return await self.ask(p.TopicClear(topic=topic_id, base=base), Cleared)

    async def delete_topic(self, topic_id: str, *, base: int | None = None) -> Done:
        """Delete a topic; `restore_topic` brings it back for 30 days."""
        return await self.ask(p.TopicDelete(topic=topic_id, base=base), Done)

    async def restore_topic(self, topic_id: str) -> Topic:
        """Bring a deleted topic back as it was."""
        return await self.ask(p.TopicRestore(topic=topic_id), Topic)

    async def undo(self, topic_id: str, seq: int | None = None) -> Undone:
        """Reverse what the commit ``seq`` deleted, else the caller's own last deletion."""
        return await self.ask(p.TopicUndo(topic=topic_id, seq=seq), Undone)

    async def mark_read(self, topic_id: str, seq: int | None = None) -> ReadUpTo:
        """Move one's read position to ``seq``, else to now, on all devices; never back."""
        return await self.ask(p.TopicMarkRead(topic=topic_id, seq=seq), ReadUpTo)

    # Messages ---------------------------------------------------------------------------

    async def create_message(
        self,
        topic_id: str,
        text: str | None = None,
        *,
        parent: str,
        role: p.Role = "user",
        data: JsonObject | None = None,
        status: p.Status = "success",
        set_active: bool = True,
        group: int = 0,
        model: str | None = None,
        stats: JsonObject | None = None,
        message_id: str | None = None,
    ) -> Created:
        """Add a message below ``parent``: a message's id, or the topic's ``root_id``."""
        command = p.MessageCreate(
            topic=topic_id,
            message_id=message_id or self.new_id(),
            parent=parent,
            role=role,
            text=text,
            data=_optional(data),
            status=status,
            set_active=set_active,
            group=group,
            model=model,
            stats=_optional(stats),
        )
        return await self.ask(command, Created)

    async def create_sibling(
        self,
        topic_id: str,
        source_id: str,
        text: str | None = None,
        *,
        data: JsonObject | None = None,
        model: str | None = None,
        message_id: str | None = None,
    ) -> Created:
        """Add an alternative beside a message, in its group, and select it."""
        command = p.MessageCreateSibling(
            topic=topic_id,
            source_id=source_id,
            message_id=message_id or self.new_id(),
            text=text,
            data=_optional(data),
            model=model,
        )
        return await self.ask(command, Created)

    async def update_message(
        self,
        topic_id: str,
        message_id: str,
        *,
        text: str | UnsetType = UNSET,
        data: JsonObject | UnsetType = UNSET,
        parent: str | UnsetType = UNSET,
        status: p.Status | UnsetType = UNSET,
        group: int | UnsetType = UNSET,
        model: str | None | UnsetType = UNSET,
        stats: JsonObject | None | UnsetType = UNSET,
        context: JsonObject | None | UnsetType = UNSET,
        if_version: int | None = None,
        base: int | None = None,
    ) -> Done:
        """Change what is given: ``data`` merges by top-level key, ``parent`` moves the message."""
        command = p.MessageUpdate(
            topic=topic_id,
            message_id=message_id,
            text=text,
            data=_unless_unset(data),
            parent=parent,
            status=status,
            group=group,
            model=model,
            stats=_unless_unset(stats),
            context=_unless_unset(context),
            if_version=if_version,
            base=base,
        )
        return await self.ask(command, Done)

    async def delete_message(
        self,
        topic_id: str,
        message_id: str,
        *,
        cascade: bool = False,
        strategy: Literal["parent", "clear"] = "parent",
        awaiting_input_only: bool = False,
        base: int | None = None,
    ) -> Deleted:
        """Delete a message: its children move up, or with ``cascade`` go too."""
        command = p.MessageDelete(
            topic=topic_id,
            message_id=message_id,
            cascade=cascade,
            strategy=strategy,
            awaiting_input_only=awaiting_input_only,
            base=base,
        )
        return await self.ask(command, Deleted)

    async def delete_group(
        self, topic_id: str, message_id: str, *, base: int | None = None
    ) -> Deleted:
        """Delete a reply and all others of its group; what is below them moves up."""
        command = p.MessageDeleteGroup(topic=topic_id, message_id=message_id, base=base)
        return await self.ask(command, Deleted)

    async def restore_message(
        self, topic_id: str, message_id: str, *, cascade: bool = False
    ) -> Restored:
        """Bring a deleted message back, with ``cascade`` what was deleted from below it too."""
        command = p.MessageRestore(topic=topic_id, message_id=message_id, cascade=cascade)
        return await self.ask(command, Restored)

    async def retry_message(
        self, topic_id: str, message_id: str, *, when_live: p.WhenLive = "reject"
    ) -> Created:
        """Offer a failed, paused or empty reply again, in its place."""
        command = p.MessageRetry(topic=topic_id, message_id=message_id, when_live=when_live)
        return await self.ask(command, Created)

    async def reserve_branch(
        self, topic_id: str, anchor_id: str, *, activate: bool = True
    ) -> Reserved:
        """Put an empty prompt below a reply, to be filled later; below a leaf two."""
        command = p.BranchReserve(
            topic=topic_id,
            anchor_id=anchor_id,
            message_ids=[self.new_id(), self.new_id()],
            activate=activate,
        )
        return await self.ask(command, Reserved)

    async def submit_turn(
        self,
        topic_id: str,
        user: p.Fresh | p.Existing | p.Reserved,
        models: Sequence[str | None] = (),
        *,
        group: int | None = None,
        preserve_active: bool = False,
        when_live: p.WhenLive = "reject",
    ) -> Turn:
        """Submit a user message and one pending reply for each model, in one commit."""
        command = p.TurnSubmit(
            topic=topic_id,
            user=user,
            placeholders=[p.Placeholder(message_id=self.new_id(), model=each) for each in models],
            group=group,
            preserve_active=preserve_active,
            when_live=when_live,
        )
        return await self.ask(command, Turn)

    async def abort(self, topic_id: str, message_id: str) -> Done:
        """Stop a live reply; what it has is kept, as ``paused``."""
        return await self.ask(p.StreamAbort(topic=topic_id, message_id=message_id), Done)

    async def batch(
        self, topic_id: str, commands: Sequence[p.Batchable], *, base: int | None = None
    ) -> Batched:
        """
        Carry out several commands in one commit, or none of them.

        New messages get ids here; their parents must be named, as ids or as ``ROOT``.

        Raises:
            Validation: If a parent is ``AUTO``, which would be decided elsewhere.

        """
        named = [self._named(place, command) for place, command in enumerate(commands)]
        return await self.ask(p.Batch(topic=topic_id, commands=named, base=base), Batched)

    def _named(self, place: int, command: p.Batchable) -> p.Batchable:
        match command:
            case p.MessageCreate(parent="AUTO"):
                raise Validation(f"commands[{place}] names no parent: send a message's id or ROOT")
            case p.MessageCreate() | p.MessageCreateSibling():
                return replace(command, message_id=command.message_id or self.new_id())
            case p.BranchReserve():
                ids = [*command.message_ids, self.new_id(), self.new_id()]
                return replace(command, message_ids=ids[:2])
            case p.TurnSubmit():
                user = command.user
                if isinstance(user, p.Fresh):
                    user = replace(user, message_id=user.message_id or self.new_id())
                placeholders = [
                    replace(each, message_id=each.message_id or self.new_id())
                    for each in command.placeholders
                ]
                return replace(command, user=user, placeholders=placeholders)
            case _:
                return command

    # Reads ------------------------------------------------------------------------------

    async def tree(
        self,
        topic_id: str,
        *,
        depth: int = 1,
        node_id: str | None = None,
        root_id: str | None = None,
        min_seq: int = 0,
    ) -> TreePage:
        """Read the tree down to ``depth`` (-1 is unlimited) and the active node's path."""
        command = p.TreeGet(
            topic=topic_id, depth=depth, node_id=node_id, root_id=root_id, min_seq=min_seq
        )
        return await self.ask(command, TreePage)

    async def branch(
        self,
        topic_id: str,
        node_id: str | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        include_siblings: bool = True,
        min_seq: int = 0,
    ) -> BranchPage:
        """Read a page of the path to a node, else to the active one; the newest part first."""
        command = p.BranchGet(
            topic=topic_id,
            node_id=node_id,
            cursor=cursor,
            limit=limit,
            include_siblings=include_siblings,
            min_seq=min_seq,
        )
        return await self.ask(command, BranchPage)

    async def path(self, topic_id: str, node_id: str, *, min_seq: int = 0) -> PathPage:
        """Read the path from the first turn to a message."""
        return await self.ask(p.PathGet(topic=topic_id, node_id=node_id, min_seq=min_seq), PathPage)

    async def path_through(self, topic_id: str, node_id: str, *, min_seq: int = 0) -> PathPage:
        """Read the path through a message and on to the newest leaf below it."""
        command = p.PathThrough(topic=topic_id, node_id=node_id, min_seq=min_seq)
        return await self.ask(command, PathPage)

    async def trash(
        self, topic_id: str, *, cursor: str | None = None, limit: int = 50
    ) -> TrashPage:
        """List a topic's deleted messages, the latest deletion first."""
        return await self.ask(p.TrashList(topic=topic_id, cursor=cursor, limit=limit), TrashPage)

    async def messages(
        self, topic_id: str, message_ids: Sequence[str], *, min_seq: int = 0
    ) -> Messages:
        """Read up to 200 messages whole."""
        command = p.MessageGet(topic=topic_id, message_ids=list(message_ids), min_seq=min_seq)
        return await self.ask(command, Messages)

    async def deltas(
        self, topic_id: str, seq: int, commit: str | None = None, *, limit: int = 200
    ) -> Deltas:
        """Read the deltas after a position."""
        command = p.TopicDeltas(topic=topic_id, seq=seq, commit=commit, limit=limit)
        return await self.ask(command, Deltas)
