"""One topic of the server in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from ..core import protocol as p
from ..core.errors import InvalidOperation, StaleStream
from ..core.live import LiveReply
from ..core.plan import Content, Context, CopyTopic, Planned, Written, plan
from ..core.topic_rules import copy_path
from ..core.tree import Tree
from ..core.view import on_the_wire
from .trash import MemoryTrash

__all__ = ["MemoryTopic"]

WHOLE_PAGE = 50


class _Reply:
    """A live reply, and the ops that led to it, so that those not durable can be lost."""

    def __init__(self, live: LiveReply) -> None:
        self.live = live
        self.durable = live.n
        self._first = live.n
        self._parts = live.parts()
        self._ops: list[p.Op] = []

    def take(self, first: int, ops: Sequence[p.Op]) -> list[p.Op]:
        fresh = self.live.take(first, ops)
        self._ops.extend(fresh)
        return fresh

    def crash(self) -> None:
        del self._ops[self.durable - self._first :]
        self.live = LiveReply(self.live.epoch, self._first, self._parts)
        self.live.take(self._first + 1, self._ops)


class MemoryTopic:
    """
    A tree, its deltas and its live replies; what it is told is true at once.

    Attributes:
        tree: The truth.
        log: All deltas.
        log_from: Deltas up to here are no longer given out.

    """

    def __init__(self, topic_id: str, root_id: str, now: int) -> None:
        self.tree = Tree(topic_id, root_id)
        self.log: list[p.Delta] = []
        self.log_from = 0
        self.created_at = now
        self.trash = MemoryTrash()
        self._replies: dict[str, _Reply] = {}
        self._left: dict[str, _Reply] = {}

    @property
    def deleted(self) -> bool:
        """Whether it has been deleted."""
        return "deletedAt" in self.tree.state

    @property
    def is_temporary(self) -> bool:
        """Whether it is in no list until it is kept."""
        return "temporary" in self.tree.state

    @property
    def is_listed(self) -> bool:
        """Whether the list of topics has it."""
        return not self.deleted and not self.is_temporary

    def run(
        self, command: p.Mutation, *, subject: str | None, now: int, new_id: Callable[[], str]
    ) -> tuple[dict[str, Any], list[p.ServerFrame]]:
        """Carry out a command; returns its result and what subscribers are told."""
        context = Context(
            now=now, commit=new_id(), new_id=new_id, subject=subject, written=self._written
        )
        planned = self._plan(command, context)
        frames: list[p.ServerFrame] = []
        if planned.delta is not None:
            self.trash.bury(
                planned.burial, {each: self.tree.node(each) for each in planned.delta.drop}
            )
            self.trash.revive(planned.revivals)
            # As a subscriber reads it, so that nothing is shared with the tree here.
            delta = msgspec.json.decode(p.encode(planned.delta), type=p.Delta)
            written: dict[str, Raw] = {}
            for message_id in delta.ended:
                data = planned.draft.node(message_id).data
                assert data is not UNSET
                written[message_id] = data
            assert self.tree.apply(delta, written)
            self.log.append(delta)
            frames = [delta, *self._follow_live()]
            for put in delta.put:
                if put.data is not UNSET:
                    self._left.pop(put.id, None)
        result = planned.result
        if isinstance(command, p.StreamClaim):
            live = self._replies[command.message_id].live
            result = result | {"n": live.n, "parts": live.parts()}
        return result, frames

    def copy(
        self, command: p.TopicDuplicate, copy_id: str, *, now: int, new_id: Callable[[], str]
    ) -> CopyTopic:
        """Return the command that makes the copy of a path."""
        context = Context(now=now, commit="", new_id=new_id)
        return copy_path(self.tree, command, copy_id, context)

    def _plan(self, command: p.Mutation, context: Context) -> Planned:
        while True:
            try:
                return plan(self.tree, command, context)
            except Content as need:
                if not need.trash:
                    raise  # all content is in memory here
                found = {wanted: self.trash.find(wanted) for wanted in need.trash}
                context = replace(context, trash=context.trash | found)

    def _written(self, message_id: str) -> Written | None:
        reply = self._replies.get(message_id) or self._left.get(message_id)
        if reply is None:
            return None
        return Written(reply.live.epoch, reply.live.n, reply.live.parts())

    def _follow_live(self) -> list[p.ServerFrame]:
        live = self.tree.live
        for message_id in [*self._replies]:
            if live.get(message_id) != self._replies[message_id].live.epoch:
                reply = self._replies.pop(message_id)
                if message_id in live:
                    self._left[message_id] = reply
        self._left = {key: reply for key, reply in self._left.items() if key in live}
        frames: list[p.ServerFrame] = []
        for message_id, epoch in live.items():
            if epoch and message_id not in self._replies:
                left = self._left.pop(message_id, None)
                begun = LiveReply(epoch)
                if left is not None:
                    begun = LiveReply(epoch, left.live.n, left.live.parts())
                self._replies[message_id] = _Reply(begun)
                if begun.n:
                    frames.append(self._whole(message_id, begun))
        return frames

    # Live replies -----------------------------------------------------------------------

    def reply(self, message_id: str) -> LiveReply:
        """Return a live reply as it is here; raises `KeyError`."""
        return self._replies[message_id].live

    def append(
        self, command: p.StreamAppend, *, durable: bool
    ) -> tuple[p.Stream | None, p.StreamAck]:
        """Take a writer's ops; returns what viewers are told, if any, and the writer."""
        reply = self._owned(command.message_id, command.epoch)
        first = reply.live.n + 1
        fresh = reply.take(command.first, command.ops)
        frame = None
        if fresh:
            frame = p.Stream(
                topic=self.tree.topic_id,
                message_id=command.message_id,
                epoch=command.epoch,
                first=first,
                to=reply.live.n,
                ops=fresh,
            )
        if durable:
            reply.durable = reply.live.n
        return frame, self.ack(command.message_id)

    def ack(self, message_id: str) -> p.StreamAck:
        """Return what the writer is told."""
        reply = self._replies[message_id]
        return p.StreamAck(
            topic=self.tree.topic_id,
            message_id=message_id,
            epoch=reply.live.epoch,
            received=reply.live.n,
            durable=reply.durable,
        )

    def check_lease(self, message_id: str, epoch: int) -> None:
        """Raise `StaleStream` if the reply is not written under this epoch."""
        self._owned(message_id, epoch)

    def crash(self) -> None:
        """Lose the ops that aren't durable, as a server that is killed does."""
        for reply in self._replies.values():
            reply.crash()

    def _owned(self, message_id: str, epoch: int) -> _Reply:
        reply = self._replies.get(message_id)
        if reply is None or reply.live.epoch != epoch:
            raise StaleStream(f"reply {message_id} is no longer yours", messageId=message_id)
        return reply

    # What a mirror misses ---------------------------------------------------------------

    def since(self, seq: int, commit: str | None) -> list[p.Delta] | None:
        """Return the deltas after a position, None if it isn't in this history."""
        if seq == self.tree.seq and commit == self.tree.commit:
            return []
        if not self.log_from <= seq < self.tree.seq or seq == 0:
            return None
        return self.log[seq:] if self.log[seq - 1].commit == commit else None

    def catch_up(self, position: p.Resume | p.TopicOpen, chunk: int) -> list[p.ServerFrame]:
        """Return what leads from a position to now, `synced` last."""
        frames: list[p.ServerFrame] = []
        streams = dict(position.streams)
        missed = self.since(position.seq, position.commit)
        if missed is None:
            frames += self.snapshot(chunk, reset=position.commit is not None)
            streams = {key: (each.live.epoch, each.live.n) for key, each in self._replies.items()}
        else:
            frames += missed
        for message_id, reply in self._replies.items():
            live = reply.live
            epoch, n = streams.get(message_id, (live.epoch, 0))
            if not live.has(epoch, n):
                frames.append(self._whole(message_id, live))
            elif n < live.n:
                frames.append(
                    p.Stream(
                        topic=self.tree.topic_id,
                        message_id=message_id,
                        epoch=epoch,
                        first=n + 1,
                        to=live.n,
                        ops=live.tail(n),
                    )
                )
        assert self.tree.commit is not None
        synced = p.Synced(
            topic=self.tree.topic_id,
            seq=self.tree.seq,
            commit=self.tree.commit,
            digest=self.tree.digest,
        )
        return [*frames, synced]

    def snapshot(self, chunk: int, *, reset: bool = False) -> list[p.ServerFrame]:
        """Return the topic as it is now, in chunks of so many messages."""
        page = {node.id for node in self.tree.path(self.tree.active_node_id)[-WHOLE_PAGE:]}
        nodes = [
            on_the_wire(node) if node.id in page else replace(node, data=UNSET)
            for node in self.tree.nodes()
        ]
        chunks = max(1, -(-len(nodes) // chunk))
        assert self.tree.commit is not None
        return [
            p.Snapshot(
                topic=self.tree.topic_id,
                root_id=self.tree.root_id,
                seq=self.tree.seq,
                commit=self.tree.commit,
                active_node_id=self.tree.active_node_id,
                digest=self.tree.digest,
                state=dict(self.tree.state) if place == 0 else {},
                nodes=nodes[place * chunk : (place + 1) * chunk],
                live=[each.live.snapshot(key) for key, each in self._replies.items()]
                if place == 0
                else [],
                chunk=place,
                chunks=chunks,
                reset=reset,
            )
            for place in range(chunks)
        ]

    def _whole(self, message_id: str, live: LiveReply) -> p.Stream:
        return p.Stream(
            topic=self.tree.topic_id,
            message_id=message_id,
            epoch=live.epoch,
            first=1,
            to=live.n,
            ops=live.whole(),
            reset=True,
        )

    def expire(self, message_id: str) -> int:
        """Return the epoch of a lease that is to be ended; raises `InvalidOperation`."""
        epoch = self.tree.live.get(message_id, 0)
        if not epoch:
            raise InvalidOperation(f"reply {message_id} has no writer")
        return epoch

    def __repr__(self) -> str:
        return f"<MemoryTopic {self.tree!r}>"
