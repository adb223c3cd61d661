"""What is done to a conversation by the two who talk, and what has become of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from livetree.core import protocol as p
from livetree.core.errors import LivetreeError
from livetree.live_topic import LiveTopic
from msgspec import UNSET, Struct, field

from tests.faults.process import SECONDS
from tests.faults.proxy import Proxy

COMMANDS = {
    "submit": 24,
    "create": 22,
    "edit": 20,
    "update": 18,
    "move": 14,
    "delete": 18,
    "cascade": 8,
    "activate": 12,
    "undo": 8,
    "reserve": 6,
    "retry": 6,
    "group": 4,
    "rename": 8,
    "metadata": 12,
    "batch": 10,
    "abort": 10,
}
"""How often each is played: 200 in all."""

ATTEMPTS = 50
"""How often a command is tried that the other side keeps from being carried out."""


class Report(Struct):
    """What was played."""

    topic: str = ""
    before: int = 0
    after: int = 0
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)
    cuts: int = 0
    connections: int = 0
    seconds: float = 0.0
    rewritten: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    restored: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"{self.topic}: {self.before} messages became {self.after} by {self.done.total()} "
            f"commands, {self.cuts} cuts, {self.connections} connections in {self.seconds:.1f} s; "
            f"replies {dict(self.replies)}, refusals {dict(self.refused)}"
        )


class Side:
    """One of the two who talk."""

    def __init__(self, live: LiveTopic, rng: random.Random, report: Report) -> None:
        self._live = live
        self._rng = rng
        self._report = report
        self._made: set[str] = set()
        self._echoes: dict[str, str] = {}

    async def play(self, kinds: list[str], proxy: Proxy) -> None:
        """Carry commands out, one after the other, whatever comes in between."""
        loop = asyncio.get_running_loop()
        for kind in kinds:
            if self._rng.random() < 0.1:
                loop.call_later(self._rng.uniform(0, 0.02), proxy.cut_one)
            async with asyncio.timeout(SECONDS):
                await self._carry_out(kind)
            self._report.done[kind] += 1

    async def _carry_out(self, kind: str) -> None:
        for _ in range(ATTEMPTS):
            try:
                await getattr(self, f"_{kind}")()
            except LivetreeError as error:
                # The other side was first, or a reply is being written.
                self._report.refused[error.code] += 1
                await self._live.wait_idle()
            except KeyError:
                # What was chosen went while something else was waited for.
                self._report.refused["gone"] += 1
            else:
                return
        raise AssertionError(f"{kind} was refused {ATTEMPTS} times: {self._report}")

    def check(self) -> None:
        """Demand that what was acknowledged here is so."""
        tree = self._live.tree
        present = {node.id for node in tree.nodes()}
        back = (self._report.gone - self._report.restored) & present
        assert not back, f"messages came back: {back}"
        lost = self._made - self._report.gone - present
        assert not lost, f"acknowledged messages are lost: {lost}"
        for message_id, text in self._echoes.items():
            if message_id in present - self._report.rewritten:
                status = tree.node(message_id).status
                self._report.replies[status] += 1
                if status == "success":
                    assert self._live.text(message_id) == f"{text} ", message_id

    # What is played -----------------------------------------------------------------------

    def _some(self) -> str:
        nodes = [node.id for node in self._live.tree.nodes()]
        return self._rng.choice(nodes) if nodes else self._live.root_id

    def _text(self) -> str:
        words = ("leaf", "root", "twig", "bark", "Ast", "枝", "🌿", "sap", "ring", "grain")
        return " ".join(self._rng.choices(words, k=self._rng.randrange(1, 12)))

    async def _submit(self) -> None:
        text, count = self._text(), self._rng.choice((1, 1, 2, 3))
        parent = self._some() if self._rng.random() < 0.5 else None
        turn = await self._live.submit(text, models=["echo"] * count, parent=parent)
        self._made.update([turn.user_id, *turn.placeholder_ids])
        self._echoes.update(dict.fromkeys(turn.placeholder_ids, text))

    async def _create(self) -> None:
        role: Any = self._rng.choice(("user", "assistant", "system"))
        parent = self._some() if self._rng.random() < 0.9 else self._live.root_id
        created = await self._live.create(self._text(), role=role, parent=parent)
        self._made.add(created.message_id)

    async def _edit(self) -> None:
        self._made.add((await self._live.edit(self._some(), self._text())).message_id)

    async def _update(self) -> None:
        message_id = self._some()
        self._report.rewritten.add(message_id)
        await self._live.update(message_id, text=self._text(), stats={"n": self._rng.random()})

    async def _move(self) -> None:
        message_id = self._some()
        parents = [
            node.id
            for node in self._live.tree.nodes()
            if not self._live.tree.is_within(node.id, message_id)
        ]
        parent = self._rng.choice([*parents, self._live.root_id])
        await self._live.update(message_id, parent=parent)

    async def _delete(self) -> None:
        self._report.gone.update((await self._live.delete(self._some())).deleted)

    async def _cascade(self) -> None:
        tree = self._live.tree
        small = [node.id for node in tree.nodes() if len(tree.subtree(node.id)) < 6]
        deleted = await self._live.delete(self._rng.choice(small), cascade=True)
        self._report.gone.update(deleted.deleted)

    async def _undo(self) -> None:
        gone = await self._live.delete(self._some(), cascade=self._rng.random() < 0.3)
        self._report.gone.update(gone.deleted)
        back = await self._live.undo(gone.seq)
        self._report.restored.update(back.restored)

    async def _reserve(self) -> None:
        replies = [node.id for node in self._live.tree.nodes() if node.role == "assistant"]
        reserved = await self._live.reserve(self._rng.choice(replies))
        self._made.update(reserved.reserved)
        await self._live.wait_idle()
        text = self._text()
        turn = await self._live.fill(reserved.message_id, text, models=["echo"])
        self._report.rewritten.add(reserved.message_id)
        self._made.update(turn.placeholder_ids)
        self._echoes.update(dict.fromkeys(turn.placeholder_ids, text))

    async def _retry(self) -> None:
        turn = await self._live.submit(self._text(), models=["slow"])
        (reply,) = turn.placeholder_ids
        self._made.update([turn.user_id, reply])
        await self._live.abort(reply)
        await self._live.retry(reply, when_live="steer")
        await self._live.abort(reply)

    async def _group(self) -> None:
        turn = await self._live.submit(self._text(), models=["echo"] * 2)
        self._made.update([turn.user_id, *turn.placeholder_ids])
        await self._live.wait_idle()
        gone = await self._live.delete_group(turn.placeholder_ids[0])
        self._report.gone.update(gone.deleted)

    async def _activate(self) -> None:
        await self._live.set_active(self._some() if self._rng.random() < 0.9 else None)

    async def _rename(self) -> None:
        await self._live.rename(self._text())

    async def _metadata(self) -> None:
        key = self._rng.choice("abc")
        value = UNSET if self._rng.random() < 0.2 else {"text": self._text(), "n": [1.5, None]}
        await self._live.set_metadata_namespace(key, value)

    async def _batch(self) -> None:
        new, text = self._live.mirror.topic_id[:8] + f"-{self._rng.getrandbits(64):x}", self._text()
        some = self._some()
        self._report.rewritten.add(some)
        await self._live.batch(
            [
                p.MessageCreate(
                    message_id=new, parent=some, role="user", text=text, status="success"
                ),
                p.MessageUpdate(message_id=some, text=self._text()),
                p.TopicSetActive(node_id=new),
                p.TopicUpdate(name=text),
            ]
        )
        self._made.add(new)

    async def _abort(self) -> None:
        turn = await self._live.submit(self._text(), models=["slow"])
        (reply,) = turn.placeholder_ids
        if self._rng.random() < 0.7:
            # The other side may end it before anything is written.
            await self._live.wait_for(
                lambda live: reply not in live.tree.live or bool(live.text(reply))
            )
        await self._live.abort(reply)
