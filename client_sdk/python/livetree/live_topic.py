"""An open topic: its mirror to read and wait on, and the commands that change it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeVar

from msgspec import UNSET, UnsetType

from . import changes as c
from .audience import Audience
from .changes import Changes
from .commands import Commands, JsonObject, json_of
from .core import protocol as p
from .core.errors import InvalidOperation, LivetreeError, NotFound
from .core.flow import FlowGraph, LiveRow, flow_graph, merge
from .core.tree import Tree
from .mirror import Mirror
from .results import Batched, Cleared, Created, Deleted, Done, Reserved, Restored, Turn, Undone
from .session import ClientClosed

__all__ = ["LiveTopic"]

DoneT = TypeVar("DoneT", bound=Done)

BATCH: Final = 200
"""How many messages one ``message.get`` reads."""


class LiveTopic:
    """
    A topic that this client keeps equal to the server's.

    `Client.open` makes it. What it shows changes between two awaits only, and always by
    whole commits. Content is *cold* for messages that were never looked at: their
    `text` is None until `content` has fetched it, and it becomes cold again when more
    than `content_bytes` of the client are held (replies being written are exempt).

    A command returns once the server has carried it out **and** this mirror shows it.
    It names the parent and all ids when it is called, so a concurrent change of the
    active node doesn't redirect it.

    """

    def __init__(self, commands: Commands, mirror: Mirror) -> None:
        self.mirror = mirror
        self._commands = commands
        self._audience = Audience(self, self._over)
        self._resets = 0

    # What it shows ----------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The topic's id."""
        return self.mirror.topic_id

    @property
    def tree(self) -> Tree:
        """The tree as it is now; read it, and let only the mirror change it."""
        if self.mirror.tree is None:
            raise InvalidOperation("the topic is not open yet: enter `async with` first")
        return self.mirror.tree

    @property
    def root_id(self) -> str:
        """The id of the virtual root; what hangs off it are the first turns."""
        return self.tree.root_id

    @property
    def active_node_id(self) -> str | None:
        """The selected message; None in an empty topic."""
        return self.tree.active_node_id

    @property
    def seq(self) -> int:
        """The number of the last commit that is shown."""
        return self.tree.seq

    @property
    def commit(self) -> str | None:
        """The id of the last commit that is shown."""
        return self.tree.commit

    @property
    def digest(self) -> str:
        """The digest of what is shown; equal to that of every mirror at this commit."""
        return self.tree.digest

    @property
    def name(self) -> str:
        """The topic's name."""
        name: str = self.tree.state["name"]
        return name

    @property
    def metadata(self) -> dict[str, Any]:
        """The topic's metadata; don't change it in place."""
        metadata: dict[str, Any] = self.tree.state["metadata"]
        return metadata

    @property
    def is_synced(self) -> bool:
        """Whether nothing is known to be missing; not so while the connection is lost."""
        return self.mirror.synced

    def node(self, message_id: str) -> p.Node:
        """Return a message; raises `KeyError` if there is none."""
        return self.tree.node(message_id)

    def children(self, message_id: str) -> Sequence[str]:
        """Return the ids of the messages below one, or below the root, in order."""
        return self.tree.children(message_id)

    def siblings(self, node: p.Node | str) -> list[str]:
        """Return the ids of a message's alternatives, itself left out."""
        return self.tree.siblings(self.tree.node(node) if isinstance(node, str) else node)

    def path(self, message_id: str | None = None) -> list[p.Node]:
        """Return the messages from the first turn down to one, else to the active one."""
        return self.tree.path(self.active_node_id if message_id is None else message_id)

    def path_through(self, message_id: str) -> list[p.Node]:
        """Return the path through a message and on to the newest leaf below it."""
        return self.tree.path(self.tree.newest_leaf(message_id))

    def awaits_input(self, message_id: str) -> bool:
        """Tell whether a message is an empty prompt without replies, to be filled."""
        return self.tree.awaits_input(message_id)

    def is_first_turn(self, message_id: str) -> bool:
        """Tell whether a message hangs off the root."""
        return self.tree.is_first_turn(message_id)

    def text(self, message_id: str) -> str | None:
        """Return a message's text, of a live reply as far as it is written; None if cold."""
        return self.mirror.text(message_id)

    def parts(self, message_id: str) -> list[dict[str, Any]] | None:
        """Return a message's parts, of a live reply as far as written; None if cold."""
        return self.mirror.parts(message_id)

    def flow(self) -> FlowGraph:
        """Return the whole topic as a canvas draws it, replies as far as they are written."""
        live = []
        for message_id in self.mirror.replies:
            node = self.tree.get(message_id)
            if node is not None:
                row = LiveRow(
                    id=node.id,
                    parent_id=node.parent_id,
                    role=node.role,
                    status=node.status,
                    text=self.text(message_id) or "",
                    group=node.siblings_group_id,
                    created_at=node.created_at,
                )
                live.append(row)
        return flow_graph(merge(self.tree, live))

    # Waiting ----------------------------------------------------------------------------

    def changes(self) -> Changes:
        """Return what happens from now on, for one ``async for``; see `Changes`."""
        return self._audience.join(Changes())

    async def wait_for(self, predicate: Callable[[LiveTopic], bool]) -> None:
        """
        Return once a predicate holds; it is asked now and after every change.

        An exception of the predicate is raised here.

        Raises:
            NotFound: If the topic is gone before.
            ClientClosed: If the topic is closed before; or the error that ended the client.

        """
        await self._audience.wait_for(predicate)

    async def wait_idle(self) -> None:
        """Return once no reply is being written or offered."""
        await self.wait_for(lambda live: not live.tree.live)

    async def wait_synced(self) -> None:
        """Return once nothing is missing."""
        await self.wait_for(lambda live: live.is_synced)

    async def wait_seq(self, seq: int) -> None:
        """Return once a commit is shown, or the history it belonged to is no more."""
        resets = self._resets
        await self.wait_for(lambda live: live.seq >= seq or live._resets != resets)

    async def content(self, message_ids: Iterable[str]) -> list[p.Node]:
        """
        Return messages whole, fetching what is cold.

        Content is kept only for exactly the version that is shown. Messages that are
        deleted meanwhile are left out.

        Raises:
            NotFound: If a message doesn't exist now.

        """
        wanted = list(dict.fromkeys(message_ids))
        for message_id in wanted:
            if message_id not in self.tree:
                raise NotFound(f"there is no message {message_id} here", id=message_id)
        whole: dict[str, p.Node] = {}
        cold = wanted
        while cold:
            missing = set(self.mirror.cold(cold))
            # Taken at once: what is fetched next may push it out again.
            whole |= {
                each: node
                for each in cold
                if each not in missing and (node := self.tree.get(each)) is not None
            }
            cold = [each for each in cold if each in missing]
            if cold:
                await self._fetch(cold[:BATCH])
                cold = [each for each in cold if each in self.tree]
        return [whole[each] for each in wanted if each in whole]

    async def _fetch(self, message_ids: list[str]) -> None:
        try:
            answer = await self._commands.messages(self.id, message_ids, min_seq=self.seq)
        except NotFound as error:
            gone = error.details.get("id")
            if gone not in message_ids:
                raise
            # Deleted; the delta that says so is on its way.
            await self.wait_for(lambda live: gone not in live.tree or not live.is_synced)
            return
        self.take(self.mirror.content_came(answer).changes)
        if any(self.mirror.is_early(each) for each in message_ids):
            await self.wait_seq(answer.seq)

    # Commands ---------------------------------------------------------------------------

    async def submit(
        self,
        text: str | None = None,
        *,
        models: Sequence[str | None] = (),
        data: JsonObject | None = None,
        parent: str | None = None,
        preserve_active: bool = False,
        when_live: p.WhenLive = "reject",
        message_id: str | None = None,
    ) -> Turn:
        """
        Say something and ask the models for replies, each in a message of its own.

        The new message goes below the active one, or below ``parent``. Replies of
        several models are alternatives of one group. With ``when_live="steer"`` replies
        that are being written end as ``paused`` with what they have.

        Raises:
            TopicLive: If a reply is being written already.

        """
        user = p.Fresh(
            message_id=message_id or self._commands.new_id(),
            parent=parent or self._below(),
            text=text,
            data=None if data is None else json_of(data),
        )
        turn = await self._commands.submit_turn(
            self.id,
            user,
            models,
            group=1 if len(models) > 1 else None,
            preserve_active=preserve_active,
            when_live=when_live,
        )
        return await self._shown(turn)

    async def fill(
        self,
        message_id: str,
        text: str | None = None,
        *,
        models: Sequence[str | None] = (),
        data: JsonObject | None = None,
        preserve_active: bool = False,
    ) -> Turn:
        """
        Say something in a place that was reserved for it, and ask the models for replies.

        Raises:
            TopicLive: If a reply is being written already.
            InvalidOperation: If the place is no longer empty, or has been replied to.

        """
        user = p.Reserved(
            message_id=message_id, text=text, data=None if data is None else json_of(data)
        )
        turn = await self._commands.submit_turn(
            self.id,
            user,
            models,
            group=1 if len(models) > 1 else None,
            preserve_active=preserve_active,
        )
        return await self._shown(turn)

    async def reserve(self, anchor_id: str, *, activate: bool = True) -> Reserved:
        """Put an empty prompt below a reply, for `fill`; below a leaf two."""
        reserved = await self._commands.reserve_branch(self.id, anchor_id, activate=activate)
        return await self._shown(reserved)

    async def retry(self, message_id: str, *, when_live: p.WhenLive = "reject") -> Created:
        """Offer a failed, paused or empty reply again, in its place."""
        retried = await self._commands.retry_message(self.id, message_id, when_live=when_live)
        return await self._shown(retried)

    async def answer(
        self, user_message_id: str, models: Sequence[str | None], *, preserve_active: bool = False
    ) -> Turn:
        """Ask for further replies to a message of the user, beside those that are there."""
        replies = [self.tree.node(each) for each in self.children(user_message_id)]
        groups = [node.siblings_group_id for node in replies if node.siblings_group_id]
        alone = not replies and len(models) == 1
        turn = await self._commands.submit_turn(
            self.id,
            p.Existing(message_id=user_message_id),
            models,
            group=None if alone else max(groups, default=1),
            preserve_active=preserve_active,
        )
        return await self._shown(turn)

    async def create(
        self,
        text: str | None = None,
        *,
        role: p.Role = "user",
        parent: str | None = None,
        data: JsonObject | None = None,
        status: p.Status = "success",
        set_active: bool = True,
        group: int = 0,
        model: str | None = None,
        stats: JsonObject | None = None,
        message_id: str | None = None,
    ) -> Created:
        """Add a message below the active one, or below ``parent``."""
        created = await self._commands.create_message(
            self.id,
            text,
            parent=parent or self._below(),
            role=role,
            data=data,
            status=status,
            set_active=set_active,
            group=group,
            model=model,
            stats=stats,
            message_id=message_id,
        )
        return await self._shown(created)

    async def edit(
        self,
        message_id: str,
        text: str | None = None,
        *,
        data: JsonObject | None = None,
        model: str | None = None,
    ) -> Created:
        """Say something else instead: an alternative beside a message, which stays."""
        created = await self._commands.create_sibling(
            self.id, message_id, text, data=data, model=model
        )
        return await self._shown(created)

    async def update(
        self,
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
        """Change a message in place: what is given; see `Commands.update_message`."""
        done = await self._commands.update_message(
            self.id,
            message_id,
            text=text,
            data=data,
            parent=parent,
            status=status,
            group=group,
            model=model,
            stats=stats,
            context=context,
            if_version=if_version,
            base=base,
        )
        return await self._shown(done)

    async def delete(
        self,
        message_id: str,
        *,
        cascade: bool = False,
        strategy: Literal["parent", "clear"] = "parent",
        awaiting_input_only: bool = False,
        base: int | None = None,
    ) -> Deleted:
        """Delete a message: its children move up, or with ``cascade`` go too."""
        deleted = await self._commands.delete_message(
            self.id,
            message_id,
            cascade=cascade,
            strategy=strategy,
            awaiting_input_only=awaiting_input_only,
            base=base,
        )
        return await self._shown(deleted)

    async def delete_group(self, message_id: str, *, base: int | None = None) -> Deleted:
        """Delete a reply and all others of its group; what is below them moves up."""
        return await self._shown(await self._commands.delete_group(self.id, message_id, base=base))

    async def undo(self, seq: int | None = None) -> Undone:
        """Reverse what a commit deleted, else one's own last deletion here."""
        return await self._shown(await self._commands.undo(self.id, seq))

    async def restore(self, message_id: str, *, cascade: bool = False) -> Restored:
        """Bring a deleted message back, with ``cascade`` what was deleted from below it too."""
        restored = await self._commands.restore_message(self.id, message_id, cascade=cascade)
        return await self._shown(restored)

    async def set_active(self, message_id: str | None) -> Done:
        """Select a message for everyone, or nothing."""
        return await self._shown(await self._commands.set_active(self.id, message_id))

    async def clear(self, *, base: int | None = None) -> Cleared:
        """Delete all messages."""
        return await self._shown(await self._commands.clear_topic(self.id, base=base))

    async def rename(self, name: str) -> Done:
        """Give the topic another name."""
        return await self._shown(await self._commands.rename_topic(self.id, name))

    async def set_metadata(self, metadata: JsonObject) -> Done:
        """Replace the whole metadata."""
        return await self._shown(await self._commands.set_metadata(self.id, metadata))

    async def set_metadata_namespace(self, namespace: str, value: Any = UNSET) -> Done:
        """Set one key of the metadata and touch no other; without a value the key goes."""
        done = await self._commands.set_metadata_namespace(self.id, namespace, value)
        return await self._shown(done)

    async def batch(self, commands: Sequence[p.Batchable], *, base: int | None = None) -> Batched:
        """Carry out several commands in one commit, or none; see `Commands.batch`."""
        return await self._shown(await self._commands.batch(self.id, commands, base=base))

    async def abort(self, message_id: str) -> Done:
        """Stop a live reply; what it has is kept, as ``paused``."""
        return await self._shown(await self._commands.abort(self.id, message_id))

    def _below(self) -> str:
        return self.active_node_id or self.root_id

    async def _shown(self, done: DoneT) -> DoneT:
        await self.wait_seq(done.seq)
        return done

    # What the client tells it -----------------------------------------------------------

    def take(self, changes: Iterable[c.Change]) -> None:
        """Tell the readers, and those who wait. For the client."""
        told = list(changes)
        self._resets += sum(isinstance(each, c.Reset) and each.history for each in told)
        self._audience.tell(told)

    def end(self, error: LivetreeError | None) -> None:
        """End all reading and waiting, with an error or in peace. For the client."""
        self._audience.end(error, in_peace=self.mirror.gone is not None)

    def _over(self) -> LivetreeError:
        if self.mirror.gone is not None:
            return NotFound(f"topic {self.id} is gone: {self.mirror.gone}", id=self.id)
        return ClientClosed(f"topic {self.id} was closed here: open it again")

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {**self.mirror.statistics(), **self._audience.statistics()}

    def __repr__(self) -> str:
        return f"<LiveTopic {self.mirror!r}>"
