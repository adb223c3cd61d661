"""What the rooms need of the world: a durable store, and somebody to tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from livetree.core.protocol import Delta, Node
from livetree.core.tree import Tree
from msgspec import Struct

__all__ = [
    "Due",
    "Entry",
    "Fanout",
    "LoadedTopic",
    "MutationKey",
    "MutationTaken",
    "OfferRow",
    "Run",
    "SeqTaken",
    "Store",
    "StoreError",
    "StoredMutation",
    "Subscriber",
    "TopicRow",
]


class SeqTaken(Exception):
    """The topic's `seq` in the database is not the one the run builds on; nothing was written."""


class MutationTaken(Exception):
    """Some of the run's mutation ids are stored already; nothing was written."""

    def __init__(self, keys: Sequence[MutationKey]) -> None:
        super().__init__(keys)
        self.keys = list(keys)


class StoreError(Exception):
    """The outcome is unknown, or the database can't be reached: only reading it again tells."""


class MutationKey(Struct, frozen=True):
    """A client's name for one command; unique for its subject, over all topics."""

    subject: str
    mutation: str


class StoredMutation(Struct, frozen=True):
    """What a mutation did: the hash of its request, and its result as JSON text."""

    request_hash: bytes
    result: bytes


class Entry(Struct, frozen=True, kw_only=True):
    """
    One decided command, to be made durable.

    Attributes:
        delta: The change; None for a command that changed nothing (its mutation is
            stored all the same).
        frame: The delta's encoded text, as it is stored in the event log and broadcast.
        nodes: The rows that the delta puts, as they are after it (with ``data``, except
            for changed rows whose data did not change and isn't in memory).
        key: The mutation id, if the client gave one.
        mutation: What to store under the key.

    """

    delta: Delta | None
    frame: bytes
    nodes: list[Node]
    key: MutationKey | None
    mutation: StoredMutation | None


class Run(Struct, frozen=True, kw_only=True):
    """
    Consecutive commands of one topic: all of them are kept, or none.

    Attributes:
        topic_id: The topic.
        root_id: Its virtual root; the run whose first delta has `seq` 1 makes both.
        base_seq: The `seq` that the first delta follows: the compare-and-set.
        entries: At least one.
        active_node_id, state, last_created_at, seq, commit, digest: The topic after the run.
        leases: For each live reply claimed in this run, when its lease ends (ms).
        now: The server's time, ms.

    """

    topic_id: str
    root_id: str
    base_seq: int
    entries: list[Entry]
    seq: int
    commit: str | None
    digest: str
    active_node_id: str | None
    state: dict[str, Any]
    last_created_at: int
    leases: dict[str, int]
    now: int


class LoadedTopic(Struct, frozen=True, kw_only=True):
    """A topic as stored: every message without ``data`` (with ``preview`` and ``empty``)."""

    topic_id: str
    root_id: str
    seq: int
    commit: str
    digest: str
    active_node_id: str | None
    state: dict[str, Any]
    last_created_at: int
    created_at: int
    nodes: list[Node]
    leases: dict[str, int]

    def tree(self) -> Tree:
        """Return the topic's tree; all content is cold."""
        return Tree.load(
            topic_id=self.topic_id,
            root_id=self.root_id,
            seq=self.seq,
            commit=self.commit,
            active_node_id=self.active_node_id,
            state=self.state,
            nodes=self.nodes,
            last_created_at=self.last_created_at,
        )


class TopicRow(Struct, frozen=True, kw_only=True):
    """A topic in a list."""

    topic_id: str
    root_id: str
    seq: int
    commit: str
    active_node_id: str | None
    name: str
    metadata: dict[str, Any]
    created_at: int
    last_activity_at: int


class OfferRow(Struct, frozen=True):
    """A reply that waits for a worker."""

    topic_id: str
    message_id: str
    model: str | None


class Due(Struct, frozen=True):
    """Something whose time has come: a lease (``epoch`` > 0) or an open offer (``epoch`` 0)."""

    topic_id: str
    message_id: str
    epoch: int


class Store(Protocol):
    """
    The durable truth. Every implementation passes ``tests/contracts/test_store*.py``.

    Deleted topics are as good as absent for every reading method.

    """

    async def commit(self, run: Run) -> None:
        """
        Make a run durable, in one transaction with whatever other topics wait for theirs.

        Returning means that it will survive a crash. Cancelling the caller doesn't
        cancel the transaction: what became of it, the database tells.

        Raises:
            SeqTaken: If the topic isn't at ``base_seq``, exists already, or is deleted.
            MutationTaken: If mutation ids are stored already; they are checked first.
            Busy: If too much waits for the database; nothing was written.
            Internal: If the database refuses the run; nothing was written.
            StoreError: If nobody knows whether it was kept.

        """

    async def load(self, topic_id: str) -> LoadedTopic | None:
        """Read a topic; raises `livetree.core.errors.Internal` if its root is missing."""

    async def contents(self, topic_id: str, ids: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        """Read ``{id: (version, data)}``; ids that don't exist are left out."""

    async def deltas(self, topic_id: str, after_seq: int, limit: int) -> list[bytes]:
        """Read the encoded deltas after a `seq`, in order, up to the first hole in the log."""

    async def commit_at(self, topic_id: str, seq: int) -> str | None:
        """Return the id of the commit that made a `seq`, None if the log doesn't know it."""

    async def mutations(self, keys: Sequence[MutationKey]) -> dict[MutationKey, StoredMutation]:
        """Read what is stored of these mutations."""

    async def topics(
        self, *, cursor: str | None, limit: int, name: str
    ) -> tuple[list[TopicRow], str | None]:
        """
        Return a page of topics, the latest active first, and the cursor of the next page.

        ``name`` filters by a part of the name, ignoring case. The cursor is opaque; a
        wrong one raises `livetree.core.errors.Validation`.

        """

    async def offers(self) -> list[OfferRow]:
        """Return every open offer, oldest first."""

    async def due(self, *, lease_before: int, offered_before: int) -> list[Due]:
        """Return leases that ended and offers made before these times (ms); at most 1,000."""

    async def renew(self, topic_id: str, message_id: str, epoch: int, until: int) -> None:
        """Move a lease's end; without effect if the epoch is not the current one."""

    async def prune(self, now: int) -> bool:
        """
        Remove events and mutations that have outlived their time (ms), up to a bound.

        Returns whether a round over the whole store is still going on: call again.

        """

    async def close(self) -> None:
        """Wait for what is being written, and let go of the database."""


class Subscriber(Protocol):
    """One connection, as a room sees it. Frames are unframed JSON text."""

    topics: set[str]
    """The topics it is subscribed to; kept by the rooms."""

    @property
    def writable(self) -> bool:
        """Whether its send buffer has room; a closed connection has none."""

    @property
    def closed(self) -> bool:
        """Whether it has ended."""

    def send(self, frame: bytes) -> None:
        """Send to this connection alone; never waits."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Takes bytes as they go over the socket; never waits."""

    async def wait_writable(self) -> None:
        """Wait until its buffer has drained or the connection has ended."""


class Fanout(Protocol):
    """Tells every subscriber of a topic, without waiting."""

    def join(self, topic_id: str, subscriber: Subscriber) -> None:
        """Let a connection that is up to date hear what is published from now on."""

    def leave(self, topic_id: str, subscriber: Subscriber) -> None:
        """Let it hear no more."""

    def publish(self, topic_id: str, frames: Sequence[bytes]) -> None:
        """Send frames to all that joined, in one write each."""

    def offered(self, offers: Sequence[OfferRow]) -> None:
        """Tell workers of new offers."""
