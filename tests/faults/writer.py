"""
A client that writes without a pause, and the memory of what it was promised.

Each writer has a part of a topic to itself, so what must be there is known to the word:
what the server has acknowledged, and of the one command on its way either all or nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import msgspec
from livetree.client import Client
from livetree.core import protocol as p
from livetree.core.content import text_of
from livetree.core.tree import Tree
from livetree.live_topic import LiveTopic
from msgspec import Raw
from msgspec.structs import replace


class Writer:
    """
    One client's writing in one topic, a command at a time.

    Args:
        name: What its texts begin with.
        client: Its connection.
        live: The topic, open on that connection.
        rng: Decides what it does.
        acknowledged: Called when a command has been, before anything else can happen.

    Attributes:
        texts: The messages that must be there, and what they must say.
        gone: Those that must not.
        done: The mutations that must be stored.
        changed: Those that must be in the log as well.
        stopping: Set to let it end when its last command has been answered.

    """

    def __init__(
        self,
        name: str,
        client: Client,
        live: LiveTopic,
        rng: random.Random,
        acknowledged: Callable[[], None],
    ) -> None:
        self.name = name
        self.live = live
        self.texts: dict[str, str] = {}
        self.gone: set[str] = set()
        self.done: set[str] = set()
        self.changed: set[str] = set()
        self.stopping = False
        self._client = client
        self._rng = rng
        self._acknowledged = acknowledged
        self._count = 0
        self._underway: dict[str, str | None] = {}

    async def write(self) -> None:
        """Write until told to stop."""
        while not self.stopping:
            await self._one()

    async def _one(self) -> None:
        topic, kind = self.live.id, self._rng.random()
        some = self._rng.choice(list(self.texts)) if self.texts else None
        if some is None or kind < 0.45:
            await self._create(some if self._rng.random() < 0.95 else None)
        elif kind < 0.65:
            text = self._new_text()
            command: p.Mutation = p.MessageUpdate(topic=topic, message_id=some, text=text)
            await self._do(command, {some: text})
        elif kind < 0.70:
            await self._move(some)
        elif kind < 0.82:
            await self._delete(some)
        elif kind < 0.87:
            await self._batch(some)
        elif kind < 0.91:
            await self._do(p.TopicSetActive(topic=topic, node_id=some), changes=False)
        elif kind < 0.95:
            await self._do(p.TopicUpdate(topic=topic, name=self._new_text()))
        else:
            value = Raw(msgspec.json.encode(self._new_text()))
            command = p.TopicSetMetadataNamespace(topic=topic, namespace=self.name, value=value)
            await self._do(command)

    def _new_text(self) -> str:
        self._count += 1
        return f"{self.name}, {self._count}"

    async def _create(self, parent: str | None) -> None:
        text = self._new_text()
        # Without an id of ours nothing but the mutation stands between a repeat and a double.
        ours = self._client.new_id() if self._rng.random() < 0.5 else None
        command = p.MessageCreate(
            topic=self.live.id,
            message_id=ours,
            parent=parent or "ROOT",
            role="user",
            text=text,
            status="success",
            set_active=self._rng.random() < 0.5,
        )
        await self._do(command, {} if ours is None else {ours: text})

    async def _move(self, message_id: str) -> None:
        tree = self.live.tree
        barred = tree.node(message_id).parent_id
        parents = [
            each for each in self.texts if each != barred and not tree.is_within(each, message_id)
        ]
        if parents:
            parent = self._rng.choice(parents)
            await self._do(
                p.MessageUpdate(topic=self.live.id, message_id=message_id, parent=parent)
            )

    async def _delete(self, message_id: str) -> None:
        below = [node.id for node in self.live.tree.subtree(message_id)]
        cascade = len(below) < 8 and self._rng.random() < 0.5
        command = p.MessageDelete(topic=self.live.id, message_id=message_id, cascade=cascade)
        await self._do(command, dict.fromkeys(below if cascade else [message_id]))

    async def _batch(self, message_id: str) -> None:
        new, first, second = self._client.new_id(), self._new_text(), self._new_text()
        create = p.MessageCreate(
            message_id=new, parent=message_id, role="assistant", text=first, status="success"
        )
        update = p.MessageUpdate(message_id=message_id, text=second)
        command = p.Batch(topic=self.live.id, commands=[create, update])
        await self._do(command, {new: first, message_id: second})

    async def _do(
        self,
        command: p.Mutation,
        texts: Mapping[str, str | None] | None = None,
        *,
        changes: bool = True,
    ) -> None:
        """
        Have a command carried out.

        Args:
            command: The command.
            texts: What the messages that it touches say after it; None where they are gone.
            changes: Whether it is sure to change something.

        """
        mutation = self._client.new_id()
        self._underway = dict(texts or {})
        result = await self._client.request(replace(command, mutation=mutation))
        if isinstance(command, p.MessageCreate):
            assert command.text is not None
            self._underway = {result["messageId"]: command.text}
        for message_id, text in self._underway.items():
            if text is None:
                del self.texts[message_id]
                self.gone.add(message_id)
            else:
                self.texts[message_id] = text
        self._underway = {}
        self.done.add(mutation)
        if changes:
            self.changed.add(mutation)
        self._acknowledged()
        await self.live.wait_seq(result["seq"])

    def check(self, tree: Tree, log: list[p.Delta], stored: set[str]) -> None:
        """
        Demand that what this writer was promised is there.

        Args:
            tree: The topic.
            log: All its deltas.
            stored: The mutations that are stored.

        """
        texts = {node.id: text_of(node.data) for node in tree.nodes()}  # type: ignore[arg-type]
        for message_id, text in self.texts.items():
            if message_id not in self._underway:
                found = texts.get(message_id)
                assert found == text, f"{self.name}: {message_id} says {found!r}, not {text!r}"
        assert not self.gone & texts.keys(), f"{self.name}: messages came back"
        before = {each: self.texts.get(each) for each in self._underway}
        now = {each: texts.get(each) for each in self._underway}
        assert now in (before, self._underway), f"{self.name}: half of a command happened: {now}"
        lost = self.done - stored, self.changed - {delta.cause.mutation for delta in log}
        assert lost == (set(), set()), f"{self.name}: acknowledged and lost: {lost}"
