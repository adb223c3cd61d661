"""
One topic in memory: what it decides, without any I/O.

The runner owns a room and is the only one to change it. Whatever a room has applied
has been published: its position is what every subscriber that is up to date has.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from livetree.core import protocol as p
from livetree.core.draft import Draft
from livetree.core.errors import LivetreeError, StaleStream
from livetree.core.live import LiveReply
from livetree.core.plan import Content, Context, ImportTopic, Planned, Written, plan
from livetree.core.trash import TrashEntry, Wanted
from livetree.core.view import View, on_the_wire
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from .ports import Entry, LoadedTopic, MutationKey, OfferRow, Run, StoredMutation

__all__ = ["Decided", "Position", "Room", "Waiting", "request_hash", "slim_frame"]

RECENT_BYTES: Final = 256 * 1024
"""How much of the event log a room keeps at hand, for those who missed a little."""

WARM_BYTES: Final = 1024 * 1024
"""How much message content a room keeps at hand; the rest is read from the store."""

SNAPSHOT_CHUNK: Final = 1000
"""Messages in one snapshot frame."""

WHOLE_PAGE: Final = 50
"""How many messages at the end of the active path a snapshot carries whole."""


WHOLE_BYTES: Final = 512 * 1024
"""How much content these may have together; the last is whole whatever it has."""


class Position(Struct, frozen=True):
    """What a mirror has: a commit, and of each live reply ``{messageId: (epoch, n)}``."""

    seq: int
    commit: str | None
    streams: dict[str, tuple[int, int]]


class Waiting(Struct, frozen=True, eq=False):
    """
    A command in the save queue.

    Its payload is immutable from here on. ``answer`` is called once, with the result's
    JSON text or with the refusal. ``request`` is what was asked, where the command is only
    what it came to.

    """

    command: p.Mutation
    subject: str | None
    answer: Callable[[bytes | LivetreeError], None]
    request: p.Mutation | None = None

    @property
    def key(self) -> MutationKey | None:
        """The name under which the command happens once, if it has one."""
        if self.command.mutation is None or self.subject is None:
            return None
        return MutationKey(self.subject, self.command.mutation)

    @property
    def request_hash(self) -> bytes:
        """By which a repeated mutation is known to be the same request."""
        return request_hash(self.request or self.command)


class Decided(Struct, frozen=True):
    """A run to commit: with each command what was planned, in order."""

    run: Run
    planned: list[tuple[Waiting, Planned]]
    frames: list[bytes]


class Applied(Struct, frozen=True):
    """
    What came of a run.

    Attributes:
        frames: What to publish, in order.
        offers: The replies that are offered since.
        results: The answer to each command, in order.

    """

    frames: list[bytes]
    offers: list[OfferRow]
    results: list[dict[str, Any]]


def request_hash(command: p.Mutation) -> bytes:
    """Return the hash by which a repeated mutation is known to be the same request."""
    return sha256(p.encode(replace(command, id=-1))).digest()


class Room:
    """
    A loaded topic.

    Args:
        loaded: The topic as the store has it; its tree is built from that.
        contents: ``{id: (version, data)}`` of its live replies that have stored parts.

    """

    def __init__(
        self, loaded: LoadedTopic, contents: dict[str, tuple[int, bytes]] | None = None
    ) -> None:
        self.tree = loaded.tree()
        self.created_at = loaded.created_at
        self.leases = dict(loaded.leases)
        self.replies: dict[str, LiveReply] = {}
        self._left: dict[str, LiveReply] = {}
        self._recent: deque[tuple[int, str, bytes]] = deque()
        self._recent_bytes = 0
        self._warm: OrderedDict[str, int] = OrderedDict()
        self._warm_bytes = 0
        self.hold(contents or {})
        self._follow_live()

    @classmethod
    def unborn(cls, topic_id: str, root_id: str, now: int) -> Room:
        """Return the room of a topic before its first commit."""
        room = cls(
            LoadedTopic(
                topic_id=topic_id,
                root_id=root_id,
                seq=0,
                commit="",
                digest="",
                active_node_id=None,
                state={},
                last_created_at=0,
                created_at=now,
                nodes=[],
                leases={},
            ),
        )
        room.tree.commit = None
        return room

    @property
    def position(self) -> Position:
        """What everyone who is up to date has."""
        streams = {key: (reply.epoch, reply.n) for key, reply in self.replies.items()}
        return Position(self.tree.seq, self.tree.commit, streams)

    @property
    def deleted(self) -> bool:
        """Whether the topic has been deleted."""
        return "deletedAt" in self.tree.state

    # The save queue: plan, then apply -----------------------------------------------

    def decide(
        self,
        waiting: Sequence[Waiting],
        *,
        now: int,
        new_id: Callable[[], str],
        trash: dict[Wanted, TrashEntry | None] | None = None,
    ) -> tuple[Decided | None, list[tuple[Waiting, LivetreeError]], int]:
        """
        Plan commands, each on the outcome of the one before, on a private tree.

        ``trash`` are the trash entries that the first command needs.

        Returns:
            What to commit, the refusals, and how many of `waiting` are dealt with: a
            command whose key another of the run has, or that needs content which isn't
            here, ends the run before it.

        Raises:
            Content: If the first command needs content, or trash entries.

        """
        private = Draft(self.tree, now)
        planned: list[tuple[Waiting, Planned]] = []
        refused: list[tuple[Waiting, LivetreeError]] = []
        keys: set[MutationKey] = set()
        rewritten: set[str] = set()
        taken = 0

        def written(message_id: str) -> Written | None:
            return None if message_id in rewritten else self._written(message_id)

        for each in waiting:
            if each.key is not None and each.key in keys:
                break
            context = Context(
                now=now,
                commit=new_id(),
                new_id=new_id,
                subject=each.subject,
                # Of what the run itself deletes or brings back, they say nothing.
                trash={} if taken or trash is None else trash,
                written=written,
            )
            try:
                outcome = plan(private, each.command, context)
            except Content:
                if taken:
                    break
                raise
            except LivetreeError as error:
                refused.append((each, error))
            else:
                if each.key is not None:
                    keys.add(each.key)
                if outcome.delta is not None:
                    private.absorb(outcome.draft, outcome.delta)
                    rewritten.update(put.id for put in outcome.delta.put if put.data is not UNSET)
                planned.append((each, outcome))
            taken += 1
            if "deletedAt" in private.state:
                break  # nothing lands on a deleted topic
        if not planned:
            return None, refused, taken
        return self._decided(private, planned, now), refused, taken

    def _decided(self, private: Draft, planned: list[tuple[Waiting, Planned]], now: int) -> Decided:
        entries: list[Entry] = []
        frames: list[bytes] = []
        leases: dict[str, int] = {}
        for each, outcome in planned:
            delta = outcome.delta
            frame = b""
            if delta is not None:
                # Nobody can have been there before an import, so nobody will miss its delta.
                is_import = isinstance(each.command, ImportTopic)
                frame = slim_frame(delta) if is_import else p.encode(delta)
                frames.append(frame)
            if isinstance(each.command, p.StreamClaim):
                leases[each.command.message_id] = now + each.command.lease_ms
            stored = None
            if each.key is not None:
                stored = StoredMutation(each.request_hash, p.encode(outcome.result))
            entries.append(
                Entry(
                    delta=delta,
                    frame=frame,
                    nodes=[outcome.draft.node(put.id) for put in delta.put] if delta else [],
                    key=each.key,
                    mutation=stored,
                    burial=outcome.burial,
                    revivals=outcome.revivals,
                )
            )
        run = Run(
            topic_id=self.tree.topic_id,
            root_id=self.tree.root_id,
            base_seq=self.tree.seq,
            entries=entries,
            seq=private.seq,
            commit=private.commit,
            digest=private.digest,
            active_node_id=private.active_node_id,
            state=private.state,
            last_created_at=private.last_created_at,
            leases=leases,
            now=now,
        )
        return Decided(run, planned, frames)

    def apply(self, decided: Decided) -> Applied:
        """Make a committed run true here."""
        frames: list[bytes] = []
        offered: dict[str, None] = {}
        results: list[dict[str, Any]] = []
        self.leases.update(decided.run.leases)
        stored = iter(decided.frames)
        for each, outcome in decided.planned:
            results.append(outcome.result)
            if outcome.delta is None:
                continue
            before = self.tree.live
            written: dict[str, Raw] = {}
            for message_id in outcome.delta.ended:
                data = outcome.draft.node(message_id).data
                assert data is not UNSET
                written[message_id] = data
            frames += self.follow(outcome.delta, next(stored), written, outcome.draft)
            for message_id, epoch in self.tree.live.items():
                if epoch == 0 and before.get(message_id) != 0:
                    offered[message_id] = None
            if isinstance(each.command, p.StreamClaim):
                # Now, not later: the next command of the run may end the reply.
                results[-1] = outcome.result | self.left_parts(each.command.message_id)
        offers = [
            OfferRow(self.tree.topic_id, message_id, self.tree.node(message_id).model_id)
            for message_id in offered
            if self.tree.live.get(message_id) == 0
        ]
        return Applied(frames, offers, results)

    def follow(
        self,
        delta: p.Delta,
        frame: bytes,
        written: dict[str, Raw] | None = None,
        decided: View | None = None,
    ) -> list[bytes]:
        """Apply one delta of the log; returns the frames that tell it to subscribers."""
        if not self.tree.apply(delta, written, decided):
            raise RuntimeError(f"topic {self.tree.topic_id} drifted at seq {delta.seq}")
        self._remember(delta.seq, delta.commit, frame)
        for put in delta.put:
            if put.data is not UNSET:
                self._keep_warm(put.id, len(memoryview(put.data)))
        for message_id, data in (written or {}).items():
            self._keep_warm(message_id, len(memoryview(data)))
        if len(frame) > p.LARGE_DELTA_BYTES:
            frame = slim_frame(delta)
        told = self._follow_live()
        for put in delta.put:
            if put.data is not UNSET:
                self._left.pop(put.id, None)  # nobody goes on with what was streamed before
        return [frame, *told]

    def _follow_live(self) -> list[bytes]:
        """Bring the live replies in line with the tree; a new writer's start is told whole."""
        frames: list[bytes] = []
        live = self.tree.live
        ended = [each for each, reply in self.replies.items() if live.get(each) != reply.epoch]
        for message_id in ended:
            reply = self.replies.pop(message_id)
            if not live.get(message_id):
                self.leases.pop(message_id, None)
            if message_id in live:
                self._left[message_id] = reply
        for message_id in [each for each in self._left if each not in live]:
            del self._left[message_id]
        for message_id, epoch in live.items():
            if epoch and message_id not in self.replies:
                left = self._left.pop(message_id, None)
                n, parts = (left.n, left.parts()) if left else (0, self._stored_parts(message_id))
                reply = self.replies[message_id] = LiveReply(epoch, n, parts)
                if n or parts:
                    frames.append(self._whole(message_id, reply))
        return frames

    def _stored_parts(self, message_id: str) -> list[dict[str, Any]]:
        data = self.tree.node(message_id).data
        return [] if data is UNSET else msgspec.json.decode(data)["parts"]

    def _written(self, message_id: str) -> Written | None:
        reply = self.replies.get(message_id) or self._left.get(message_id)
        return None if reply is None else Written(reply.epoch, reply.n, reply.parts())

    # Live ops -----------------------------------------------------------------------

    def append(
        self, command: p.StreamAppend, now: int, lease_ms: int
    ) -> tuple[bytes | None, bytes]:
        """
        Take a writer's ops.

        Returns:
            The frame for the viewers, if anything was new, and the writer's acknowledgement.

        Raises:
            StaleStream: If the writer's epoch isn't the current one.
            LivetreeError: If the ops can't be applied; none of them was.

        """
        reply = self._owned(command.message_id, command.epoch)
        first = reply.n + 1
        fresh = reply.take(command.first, command.ops)
        self._extend(command.message_id, now + lease_ms)
        frame = None
        if fresh:
            frame = p.encode(
                p.Stream(
                    topic=self.tree.topic_id,
                    message_id=command.message_id,
                    epoch=reply.epoch,
                    first=first,
                    to=reply.n,
                    ops=fresh,
                )
            )
        ack = p.StreamAck(
            topic=self.tree.topic_id,
            message_id=command.message_id,
            epoch=reply.epoch,
            received=reply.n,
            durable=0,
        )
        return frame, p.encode(ack)

    def renew(self, command: p.StreamRenew, now: int) -> int:
        """Keep a lease; returns when it ends now. Raises `StaleStream`."""
        self._owned(command.message_id, command.epoch)
        return self._extend(command.message_id, now + command.lease_ms)

    def _extend(self, message_id: str, until: int) -> int:
        self.leases[message_id] = max(until, self.leases.get(message_id, 0))
        return self.leases[message_id]

    def _owned(self, message_id: str, epoch: int) -> LiveReply:
        reply = self.replies.get(message_id)
        if reply is None or reply.epoch != epoch:
            raise StaleStream(
                f"reply {message_id} is no longer yours to write: stop", messageId=message_id
            )
        return reply

    def left_parts(self, message_id: str) -> dict[str, Any]:
        """Return what the writer that has just claimed a reply continues from."""
        reply = self.replies[message_id]
        return {"n": reply.n, "parts": reply.parts()}

    # What a mirror misses -----------------------------------------------------------

    def since(self, seq: int, commit: str | None) -> list[bytes] | None:
        """Return the deltas after a position if they are at hand and it is in this history."""
        if seq == self.tree.seq and commit == self.tree.commit:
            return []
        place = seq - self._recent[0][0] if self._recent else -1
        if not 0 <= place < len(self._recent) or self._recent[place][1] != commit:
            return None
        return [frame for _, _, frame in list(self._recent)[place + 1 :]]

    def streams_since(self, streams: dict[str, tuple[int, int]]) -> list[bytes]:
        """Return frames that bring the live replies from what a viewer has to now."""
        frames: list[bytes] = []
        for message_id, reply in self.replies.items():
            epoch, n = streams.get(message_id, (0, 0))
            if not reply.has(epoch, n):
                frames.append(self._whole(message_id, reply))
            elif n < reply.n:
                tail = p.Stream(
                    topic=self.tree.topic_id,
                    message_id=message_id,
                    epoch=epoch,
                    first=n + 1,
                    to=reply.n,
                    ops=reply.tail(n),
                )
                frames.append(p.encode(tail))
        return frames

    def _whole(self, message_id: str, reply: LiveReply) -> bytes:
        return p.encode(
            p.Stream(
                topic=self.tree.topic_id,
                message_id=message_id,
                epoch=reply.epoch,
                first=1,
                to=reply.n,
                ops=reply.whole(),
                reset=True,
            )
        )

    def synced(self) -> bytes:
        """Return the frame that ends a catching-up."""
        assert self.tree.commit is not None
        return p.encode(
            p.Synced(
                topic=self.tree.topic_id,
                seq=self.tree.seq,
                commit=self.tree.commit,
                digest=self.tree.digest,
            )
        )

    def cold_page(self) -> list[str]:
        """Return the messages of a snapshot's whole page whose content isn't at hand."""
        return [node.id for node in self._page() if node.data is UNSET]

    def _page(self) -> list[p.Node]:
        page: list[p.Node] = []
        if self.tree.active_node_id is not None:
            for node in self.tree.ancestors(self.tree.active_node_id):
                page.append(node)
                if len(page) == WHOLE_PAGE:
                    break
        return page

    def snapshot(self, *, reset: bool) -> list[p.Snapshot]:
        """Return the topic as it is now, in chunks that are still to be encoded."""
        whole: set[str] = set()
        size = 0
        for node in self._page():
            size += 0 if node.data is UNSET else len(memoryview(node.data))
            if size > WHOLE_BYTES and whole:
                break
            whole.add(node.id)
        nodes = [
            on_the_wire(node) if node.id in whole else _skeleton(node) for node in self.tree.nodes()
        ]
        count = max(1, -(-len(nodes) // SNAPSHOT_CHUNK))
        live = [reply.snapshot(message_id) for message_id, reply in self.replies.items()]
        assert self.tree.commit is not None
        return [
            p.Snapshot(
                topic=self.tree.topic_id,
                root_id=self.tree.root_id,
                seq=self.tree.seq,
                commit=self.tree.commit,
                active_node_id=self.tree.active_node_id,
                digest=self.tree.digest,
                state=self.tree.state if chunk == 0 else {},
                nodes=nodes[chunk * SNAPSHOT_CHUNK : (chunk + 1) * SNAPSHOT_CHUNK],
                live=live if chunk == 0 else [],
                chunk=chunk,
                chunks=count,
                reset=reset,
            )
            for chunk in range(count)
        ]

    # Content at hand ----------------------------------------------------------------

    def hold(self, contents: dict[str, tuple[int, bytes]]) -> None:
        """Keep content that was read from the store, if it is of the version held here."""
        for message_id, (version, data) in contents.items():
            if self.tree.hold(message_id, version, Raw(data)):
                self._keep_warm(message_id, len(data))

    def cool(self) -> None:
        """Let go of the content that was used longest ago, down to the bound."""
        while self._warm_bytes > WARM_BYTES and self._warm:
            message_id, size = self._warm.popitem(last=False)
            self._warm_bytes -= size
            self.tree.release(message_id)

    def _keep_warm(self, message_id: str, size: int) -> None:
        self._warm_bytes += size - self._warm.pop(message_id, 0)
        self._warm[message_id] = size

    def _remember(self, seq: int, commit: str, frame: bytes) -> None:
        self._recent.append((seq, commit, frame))
        self._recent_bytes += len(frame)
        while self._recent_bytes > RECENT_BYTES and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popleft()[2])

    def statistics(self) -> dict[str, int]:
        """Return the room's figures, for tests, logs and the console."""
        return {
            "seq": self.tree.seq,
            "messages": len(self.tree),
            "live": len(self.tree.live),
            "recentBytes": self._recent_bytes,
            "warmBytes": self._warm_bytes,
        }

    def __repr__(self) -> str:
        return f"<Room {self.tree.topic_id} seq={self.tree.seq} messages={len(self.tree)}>"


def slim_frame(delta: p.Delta) -> bytes:
    """Return what subscribers get of a delta that is too large to push."""
    return p.encode(replace(delta, put=[], drop=[], set={}, ended={}, large=True))


def _skeleton(node: p.Node) -> p.Node:
    return node if node.data is UNSET else replace(node, data=UNSET)
