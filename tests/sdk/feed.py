"""A topic of a server, and a mirror that the test feeds from it."""

from collections.abc import Iterable
from typing import Any

import msgspec
from livetree import changes as c
from livetree.core import protocol as p
from livetree.core.reads import messages
from livetree.core.view import on_the_wire
from livetree.mirror import FetchDeltas, Mirror, Step
from livetree.results import Deltas, Messages
from livetree.testing import MemoryTopic

from tests.sdk.kit import check_mirror


class Feed:
    """A topic of a server, and a mirror that the test feeds from it."""

    def __init__(self, *, content_bytes: int = 2**26, chunk: int = 1000) -> None:
        self.topic = MemoryTopic("topic", "root", 1)
        self.mirror = Mirror("topic", content_bytes=content_bytes)
        self.now = 100.0
        self.changes: list[c.Change] = []
        self.needs: list[Any] = []
        self.chunk = chunk
        self._ids = 0
        self.do(p.TopicCreate(topic="topic"))

    def new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def do(self, command: p.Mutation) -> list[p.ServerFrame]:
        """Carry out a command on the server; returns what subscribers are told."""
        self.result, frames = self.topic.run(
            command, subject="me", now=1000 + self._ids, new_id=self.new_id
        )
        return frames

    def create(self, message_id: str, parent: str = "AUTO", **fields: Any) -> list[p.ServerFrame]:
        fields.setdefault("text", message_id)
        fields.setdefault("role", "user")
        fields.setdefault("status", "success")
        return self.do(p.MessageCreate(message_id=message_id, parent=parent, **fields))

    def ask(self, *replies: str) -> list[p.ServerFrame]:
        """Submit a turn with these replies."""
        return self.do(
            p.TurnSubmit(
                user=p.Fresh(message_id=self.new_id(), text="ask"),
                placeholders=[p.Placeholder(message_id=each, model="m") for each in replies],
                group=1 if len(replies) > 1 else None,
            )
        )

    def claim(self, message_id: str) -> list[p.ServerFrame]:
        return self.do(p.StreamClaim(message_id=message_id))

    def write(self, message_id: str, *texts: str) -> list[p.ServerFrame]:
        """Append a text op each."""
        live = self.topic.reply(message_id)
        command = p.StreamAppend(
            topic="topic",
            message_id=message_id,
            epoch=live.epoch,
            first=live.n + 1,
            ops=[p.TextOp(0, text) for text in texts],
        )
        frame, _ = self.topic.append(command, durable=True)
        return [frame] if frame is not None else []

    def finish(self, message_id: str, status: p.Ended = "success") -> list[p.ServerFrame]:
        live = self.topic.reply(message_id)
        return self.do(
            p.StreamFinish(message_id=message_id, epoch=live.epoch, n=live.n, status=status)
        )

    def tell(self, frames: Iterable[p.ServerFrame]) -> Step:
        """Give the mirror frames; returns what came of all of them."""
        changes: list[c.Change] = []
        needs: list[Any] = []
        for each in frames:
            step = self.mirror.receive(p.decode_frame(p.encode(each)), self.now)
            changes += step.changes
            needs += step.needs
        return self.take(Step(changes, needs))

    def take(self, step: Step) -> Step:
        self.changes += step.changes
        self.needs += step.needs
        return step

    def open(self) -> Step:
        """Answer the mirror's `topic.open`."""
        resume = self.mirror.resume(self.now)
        return self.tell(self.topic.catch_up(resume, self.chunk))

    def deltas(self, need: FetchDeltas, limit: int = 200) -> Step:
        """Answer a `topic.deltas`."""
        missed = self.topic.since(need.seq, need.commit)
        answer = Deltas(
            seq=self.topic.tree.seq,
            commit=self.topic.tree.commit,
            deltas=[] if missed is None else missed[:limit],
            reset=missed is None,
        )
        return self.take(self.mirror.deltas_came(need, over_the_wire(answer), self.now))

    def content(self, *message_ids: str) -> Messages:
        """Return the answer to a `message.get`."""
        nodes = messages(self.topic.tree, p.MessageGet(topic="topic", message_ids=[*message_ids]))
        return over_the_wire(
            Messages(
                seq=self.topic.tree.seq,
                commit=self.topic.tree.commit,
                nodes=[on_the_wire(node) for node in nodes],
            )
        )

    def check(self) -> None:
        check_mirror(self.mirror, self.topic)


def over_the_wire(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))


def kinds(step: Step) -> list[type[c.Change]]:
    return [type(change) for change in step.changes]


def opened(**options: Any) -> Feed:
    feed = Feed(**options)
    feed.open()
    feed.check()
    return feed
