"""The store's twin in memory, for tests: it passes the same suite, and can be made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from livetree.core.errors import Internal
from livetree.core.protocol import Node
from msgspec import UNSET
from msgspec.structs import replace

from ..topics.ports import (
    Due,
    LoadedTopic,
    MutationKey,
    MutationTaken,
    OfferRow,
    Run,
    SeqTaken,
    StoredMutation,
    StoreError,
    TopicRow,
)
from .changes import keys_of, live_change
from .pruning import EVENT_AGE, EVENTS_PER_TOPIC, MUTATION_AGE
from .reading import MOST_DUE
from .rows import cursor_of, folded, position_of

__all__ = ["Hold", "MemoryStore"]


@dataclass(slots=True)
class _Event:
    seq: int
    commit: str
    frame: bytes
    at: int


@dataclass(slots=True)
class _Live:
    epoch: int
    lease_until: int | None
    offered_at: int | None


@dataclass(slots=True)
class _Topic:
    key: int
    id: str
    root_id: str
    created_at: int
    seq: int = 0
    commit: str = ""
    digest: str = ""
    active_node_id: str | None = None
    last_created_at: int = 0
    # As text: what the caller does to its own dict later is not stored.
    state: bytes = b""
    deleted: bool = False
    name: str = ""
    last_activity_at: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    events: list[_Event] = field(default_factory=list)
    live: dict[str, _Live] = field(default_factory=dict)


class Hold:
    """Keeps commits waiting: `reached` counts those that arrived, `release` lets all go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Semaphore(0)
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let the commits that wait go on, in their order."""
        self._released.set()

    async def pass_through(self) -> None:
        """Arrive, and wait for the release."""
        self.reached.release()
        await self._released.wait()


class MemoryStore:
    """
    The store in memory; see `Store` for what each method promises.

    Tests make it fail: `fail_next` with an outcome that nobody is told, and
    `holding` keeps commits between being asked for and being done.

    """

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._mutations: dict[MutationKey, tuple[StoredMutation, int]] = {}
        self._committing: set[asyncio.Task[None]] = set()
        self._failures: list[bool] = []
        self._hold: Hold | None = None
        self._closed = False

    def fail_next(self, *, after_commit: bool) -> None:
        """Make one more commit raise `StoreError`, after or without having kept its run."""
        self._failures.append(after_commit)

    def heal(self) -> None:
        """Take back the failures that have not happened yet."""
        self._failures.clear()

    @contextmanager
    def holding(self) -> Iterator[Hold]:
        """Keep the commits that begin in the block waiting, until it ends or `Hold.release`."""
        self._hold = hold = Hold()
        try:
            yield hold
        finally:
            self._hold = None
            hold.release()

    async def commit(self, run: Run) -> None:
        """As `Store.commit`."""
        self._refuse_if_closed()
        task = asyncio.get_running_loop().create_task(self._commit(run))
        self._committing.add(task)
        task.add_done_callback(self._committing.discard)
        # Whoever cancelled the caller won't ask what became of it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(task)

    async def _commit(self, run: Run) -> None:
        if self._hold is not None:
            await self._hold.pass_through()
        if not self._failures:
            self._write(run)
            return
        if self._failures.pop(0):
            self._write(run)
        raise StoreError("a test made this commit fail")

    def _write(self, run: Run) -> None:
        keys = keys_of(run)
        if repeated := [key for key in keys if key in self._mutations]:
            raise MutationTaken(repeated)
        topic = self._topics.get(run.topic_id)
        if run.base_seq != (topic.seq if topic else 0) or (topic and topic.deleted):
            raise SeqTaken
        if run.seq > run.base_seq:
            if topic is None:
                topic = _Topic(len(self._topics) + 1, run.topic_id, run.root_id, run.now)
            changed = _changed(topic, run)
            # From here on nothing fails: all of it is kept, or none.
            _keep(topic, run, changed)
            self._topics[topic.id] = topic
        for entry in run.entries:
            if entry.key is not None and entry.mutation is not None:
                self._mutations[entry.key] = (entry.mutation, run.now)

    async def load(self, topic_id: str) -> LoadedTopic | None:
        """As `Store.load`."""
        topic = await self._present(topic_id)
        if topic is None:
            return None
        state = _decode(topic.state)
        state["live"] = {each: row.epoch for each, row in topic.live.items()}
        return LoadedTopic(
            topic_id=topic.id,
            root_id=topic.root_id,
            seq=topic.seq,
            commit=topic.commit,
            digest=topic.digest,
            active_node_id=topic.active_node_id,
            state=state,
            last_created_at=topic.last_created_at,
            created_at=topic.created_at,
            nodes=[replace(node, data=UNSET) for node in topic.nodes.values()],
            leases={
                each: row.lease_until
                for each, row in topic.live.items()
                if row.lease_until is not None
            },
        )

    async def contents(self, topic_id: str, ids: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        """As `Store.contents`."""
        topic = await self._present(topic_id)
        nodes = topic.nodes if topic else {}
        return {
            each: (node.version, bytes(node.data))
            for each in ids
            if (node := nodes.get(each)) is not None and node.data is not UNSET
        }

    async def deltas(self, topic_id: str, after_seq: int, limit: int) -> list[bytes]:
        """As `Store.deltas`."""
        topic = await self._present(topic_id)
        later = [each for each in topic.events if each.seq > after_seq] if topic else []
        if not later or later[0].seq != after_seq + 1:
            return []
        return [each.frame for each in later[:limit]]

    async def commit_at(self, topic_id: str, seq: int) -> str | None:
        """As `Store.commit_at`."""
        topic = await self._present(topic_id)
        events = topic.events if topic else []
        return next((each.commit for each in events if each.seq == seq), None)

    async def mutations(self, keys: Sequence[MutationKey]) -> dict[MutationKey, StoredMutation]:
        """As `Store.mutations`."""
        await self._answer_later()
        return {key: self._mutations[key][0] for key in keys if key in self._mutations}

    async def topics(
        self, *, cursor: str | None, limit: int, name: str
    ) -> tuple[list[TopicRow], str | None]:
        """As `Store.topics`."""
        await self._answer_later()
        place = attrgetter("last_activity_at", "key")
        after = None if cursor is None else position_of(cursor)
        found = [
            topic
            for topic in sorted(self._topics.values(), key=place, reverse=True)
            if not topic.deleted
            and folded(name) in folded(topic.name)
            and (after is None or place(topic) < after)
        ]
        shown = found[:limit]
        more = len(found) > limit
        next_cursor = cursor_of(*place(shown[-1])) if more else None
        return [_topic_row(topic) for topic in shown], next_cursor

    async def offers(self) -> list[OfferRow]:
        """As `Store.offers`."""
        await self._answer_later()
        offered = [
            (row.offered_at, topic.key, topic.nodes[message_id].created_at, message_id, topic)
            for topic in self._topics.values()
            for message_id, row in topic.live.items()
            if row.offered_at is not None
        ]
        return [
            OfferRow(topic.id, message_id, topic.nodes[message_id].model_id)
            for *_, message_id, topic in sorted(offered, key=itemgetter(slice(4)))
        ]

    async def due(self, *, lease_before: int, offered_before: int) -> list[Due]:
        """As `Store.due`."""
        await self._answer_later()
        late = [
            (at, topic.key, message_id, row.epoch, topic.id)
            for topic in self._topics.values()
            for message_id, row in topic.live.items()
            for at, before in (
                (row.lease_until, lease_before),
                (row.offered_at, offered_before),
            )
            if at is not None and at < before
        ]
        return [Due(each[4], each[2], each[3]) for each in sorted(late)[:MOST_DUE]]

    async def renew(self, topic_id: str, message_id: str, epoch: int, until: int) -> None:
        """As `Store.renew`."""
        topic = await self._present(topic_id)
        row = topic.live.get(message_id) if topic else None
        if row is not None and row.epoch == epoch and epoch > 0:
            row.lease_until = until

    async def prune(self, now: int) -> bool:
        """As `Store.prune`."""
        await self._answer_later()
        for topic in self._topics.values():
            while topic.events and (
                topic.events[0].at < now - EVENT_AGE
                or topic.events[0].seq <= topic.seq - EVENTS_PER_TOPIC
            ):
                del topic.events[0]
        for key, (_, at) in list(self._mutations.items()):
            if at < now - MUTATION_AGE:
                del self._mutations[key]
        return False

    async def close(self) -> None:
        """As `Store.close`; what a `Hold` keeps waiting has to be released first."""
        self._closed = True
        if self._committing:
            await asyncio.wait(self._committing)

    def __repr__(self) -> str:
        return f"<MemoryStore topics={len(self._topics)} committing={len(self._committing)}>"

    async def _present(self, topic_id: str) -> _Topic | None:
        await self._answer_later()
        topic = self._topics.get(topic_id)
        return None if topic is None or topic.deleted else topic

    async def _answer_later(self) -> None:
        self._refuse_if_closed()
        # A database never answers at once: others get their turn here too.
        await asyncio.sleep(0)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")


def _decode(state: bytes) -> dict[str, Any]:
    return msgspec.json.decode(state, type=dict[str, Any])


def _topic_row(topic: _Topic) -> TopicRow:
    return TopicRow(
        topic_id=topic.id,
        root_id=topic.root_id,
        seq=topic.seq,
        commit=topic.commit,
        active_node_id=topic.active_node_id,
        name=topic.name,
        metadata=_decode(topic.state)["metadata"],
        created_at=topic.created_at,
        last_activity_at=topic.last_activity_at,
    )


def _changed(topic: _Topic, run: Run) -> dict[str, Node | None]:
    """
    Return the messages that the run changes, None where they go.

    Raises:
        Internal: If a database would refuse it.

    """
    changed: dict[str, Node | None] = {}

    def get(message_id: str) -> Node | None:
        return changed[message_id] if message_id in changed else topic.nodes.get(message_id)

    def check(sound: bool) -> None:
        if not sound:
            raise Internal("the store refused the change, and nothing of it was kept")

    for entry in run.entries:
        if entry.delta is None:
            continue
        rows = {node.id: node for node in entry.nodes}
        for put in entry.delta.put:
            node, old = rows[put.id], get(put.id)
            is_new = put.role is not UNSET
            check(is_new == (old is None) and node.id != topic.root_id)
            check(node.parent_id == topic.root_id or get(node.parent_id) is not None)
            if old is not None and put.data is UNSET and put.id not in entry.delta.ended:
                node = replace(node, data=old.data)
            check(node.data is not UNSET)
            changed[node.id] = node
        for message_id in entry.delta.drop:
            check(get(message_id) is not None)
            changed[message_id] = None
    check(run.active_node_id is None or get(run.active_node_id) is not None)
    return changed


def _keep(topic: _Topic, run: Run, changed: dict[str, Node | None]) -> None:
    for message_id, node in changed.items():
        if node is None:
            topic.nodes.pop(message_id, None)
        else:
            topic.nodes[message_id] = node
    live = live_change([run], {each: row.epoch for each, row in topic.live.items()})
    for message_id in live.gone:
        del topic.live[message_id]
    for message_id, epoch, lease_until, offered_at in live.written:
        topic.live[message_id] = _Live(epoch, lease_until, offered_at)
    topic.events += [
        _Event(delta.seq, delta.commit, entry.frame, run.now)
        for entry in run.entries
        if (delta := entry.delta) is not None
    ]
    topic.seq = run.seq
    topic.commit = run.commit or ""
    topic.digest = run.digest
    topic.active_node_id = run.active_node_id
    topic.last_created_at = run.last_created_at
    topic.state = msgspec.json.encode(run.state)
    topic.deleted = run.state.get("deletedAt") is not None
    topic.name = run.state["name"]
    topic.last_activity_at = run.state["lastActivityAt"]
