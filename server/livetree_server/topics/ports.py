"""What the rooms need of the world: a durable store, and somebody to tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from livetree.core.protocol import Delta, Node
from livetree.core.trash import Burial, Revival, TrashEntry, Wanted
from livetree.core.tree import Tree
from livetree.core.view import Place
from msgspec import Struct

__all__ = [
    "MOST_UNREAD",
    "TRASH_BYTES",
    "Due",
    "Entry",
    "Fanout",
    "LoadedTopic",
    "MutationKey",
    "MutationTaken",
    "OfferRow",
    "Run",
    "Seen",
    "SeqTaken",
    "Store",
    "StoreError",
    "StoredMutation",
    "Subscriber",
    "TopicRow",
    "TrashRow",
]

TRASH_BYTES: Final = 64 * 1024 * 1024
"""How much content one command may bring back."""

MOST_UNREAD: Final = 1_000
"""The most unread messages that are counted."""


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
        burial: The trash entry of the rows that the delta drops; they go into it as they
            are stored. A delta that drops rows has one.
        revivals: The rows that leave the trash (the delta puts them).

    """

    delta: Delta | None
    frame: bytes
    nodes: list[Node]
    key: MutationKey | None
    mutation: StoredMutation | None
    burial: Burial | None = None
    revivals: list[Revival] = []


class Run(Struct, frozen=True, kw_only=True):
    """
    Consecutive commands of one topic: all of them are kept, or none.

    Attributes:
        topic_id: The topic.
        root_id: Its virtual root; the run whose first delta has `seq` 1 makes both.
        base_seq: The `seq` that the first delta follows: the compare-and-set. A deleted
            topic takes only a run whose first delta takes ``deletedAt`` out of its state.
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
    """
    A topic as stored: every message without ``data`` (with ``preview`` and ``empty``).

    ``graves`` says where each message hung that is in its trash.

    """

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
    graves: dict[str, Place] = {}

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
            graves=self.graves,
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


class Seen(Struct, frozen=True):
    """
    How far a subject has read a topic.

    ``unread`` counts the messages with a version above ``read_seq``, but those that have
    the subject as their author; at most `MOST_UNREAD`.

    """

    read_seq: int
    unread: int


class TrashRow(Struct, frozen=True, kw_only=True):
    """A deleted message, without ``data``, and the entry that has it."""

    seq: int
    op: str
    by: str | None
    at: int
    node: Node


class OfferRow(Struct, frozen=True):
    """A reply that waits for a worker."""

    topic_id: str
    message_id: str
    model: str | None


class Due(Struct, frozen=True):
    """
    Something whose time has come: a lease (``epoch`` > 0), or (``epoch`` 0) an open offer
    or a pending reply that has neither.
    """

    topic_id: str
    message_id: str
    epoch: int


class Store(Protocol):
    """
    The durable truth. Every implementation passes ``tests/contracts/test_store*.py``.

    Deleted topics are as good as absent for every reading method, unless it says otherwise.

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

    async def load(self, topic_id: str, *, deleted: bool = False) -> LoadedTopic | None:
        """
        Read a topic; with ``deleted`` instead one that is deleted and can be restored.

        A temporary topic that is deleted can't be. Raises `livetree.core.errors.Internal`
        if its root is missing.

        """

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

        Temporary ones are left out. ``name`` filters by a part of the name, ignoring case.
        The cursor is opaque; a wrong one raises `livetree.core.errors.Validation`.

        """

    async def listed(self, topic_ids: Sequence[str]) -> list[TopicRow]:
        """Return those of these topics that `topics` would list, in no promised order."""

    async def seen(self, subject: str, topic_ids: Sequence[str]) -> dict[str, Seen]:
        """Return how far a subject has read each of these topics; absent ones are left out."""

    async def mark_read(self, subject: str, topic_id: str, seq: int) -> Seen | None:
        """
        Move a subject's read position forward, never back and never past the topic's `seq`.

        Returns how far it has read now, None if there is no such topic.

        """

    async def trash(self, topic_id: str, wanted: Wanted) -> TrashEntry | None:
        """
        Read a trash entry, None if there is none (any more).

        Raises:
            TooLarge: If the rows that are wanted have more than `TRASH_BYTES` of content.

        """

    async def trash_page(
        self, topic_id: str, *, cursor: str | None, limit: int
    ) -> tuple[list[TrashRow], str | None]:
        """
        Return a page of a topic's deleted messages, and the cursor of the next page.

        The latest deletion comes first, the rows of one by ``(createdAt, id)``. The cursor
        is opaque; a wrong one raises `livetree.core.errors.Validation`.

        """

    async def offers(self) -> list[OfferRow]:
        """Return every open offer, oldest first."""

    async def due(self, *, lease_before: int, offered_before: int) -> list[Due]:
        """
        Return leases that ended and offers made before these times (ms); at most 1,000.

        As old offers count pending assistant messages that have neither lease nor offer and
        were put last (``updatedAt``) before that time.

        """

    async def renew(self, topic_id: str, message_id: str, epoch: int, until: int) -> None:
        """Move a lease's end; without effect if the epoch is not the current one."""

    async def unused(self, before: int) -> list[str]:
        """Return the temporary topics whose last commit or use was before (ms); at most 1,000."""

    async def used(self, topic_ids: Sequence[str], now: int) -> None:
        """Note on these topics' rows that somebody has them open now (ms); no commit."""

    async def prune(self, now: int) -> bool:
        """
        Remove what has outlived its time (ms), up to a bound, whole and for good.

        Events (7 days, or more than 10,000 of a topic), mutations, trash and deleted
        topics (30 days), deleted temporary topics (at once). Nothing of a deleted topic's
        or a trash entry's content stays in the file after it.

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
