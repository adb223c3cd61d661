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
from livetree.core.trash import Burial, TrashEntry, Wanted, below
from livetree.core.view import place_of
from msgspec import UNSET
from msgspec.structs import replace

from ..topics.ports import (
    MOST_UNREAD,
    Due,
    LoadedTopic,
    MutationKey,
    MutationTaken,
    OfferRow,
    Run,
    Seen,
    SeqTaken,
    StoredMutation,
    StoreError,
    TopicRow,
    TrashRow,
)
from .changes import keys_of, live_change, may_restore, revived_of
from .erasing import TOPIC_AGE, TRASH_AGE
from .pruning import EVENT_AGE, EVENTS_PER_TOPIC, MUTATION_AGE
from .reading import MOST_DUE, MOST_UNUSED
from .rows import cursor_of, folded, position_of, trash_cursor_of, trash_position_of
from .trash import refuse_much

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
class _Buried:
    burial: Burial
    nodes: dict[str, Node]


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
    deleted_at: int | None = None
    temporary: bool = False
    used_at: int = 0
    name: str = ""
    last_activity_at: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    events: list[_Event] = field(default_factory=list)
    live: dict[str, _Live] = field(default_factory=dict)
    trash: dict[int, _Buried] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)

    @property
    def deleted(self) -> bool:
        return self.deleted_at is not None

    @property
    def listed(self) -> bool:
        return not self.deleted and not self.temporary


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
        self._made = 0
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
        if run.base_seq != (topic.seq if topic else 0):
            raise SeqTaken
        if topic and topic.deleted and (topic.temporary or not may_restore(run)):
            raise SeqTaken
        if run.seq > run.base_seq:
            if topic is None:
                topic = _Topic(self._made + 1, run.topic_id, run.root_id, run.now)
            changed, trash = _changed(topic, run)
            # From here on nothing fails: all of it is kept, or none.
            topic.trash = trash
            _keep(topic, run, changed)
            self._topics[topic.id] = topic
            self._made = max(self._made, topic.key)
        for entry in run.entries:
            if entry.key is not None and entry.mutation is not None:
                self._mutations[entry.key] = (entry.mutation, run.now)

    async def load(self, topic_id: str, *, deleted: bool = False) -> LoadedTopic | None:
        """As `Store.load`."""
        await self._answer_later()
        topic = self._topics.get(topic_id)
        if topic is None or topic.deleted != deleted or (deleted and topic.temporary):
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
            graves={
                each: place_of(node)
                for buried in topic.trash.values()
                for each, node in buried.nodes.items()
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
            if topic.listed
            and folded(name) in folded(topic.name)
            and (after is None or place(topic) < after)
        ]
        shown = found[:limit]
        more = len(found) > limit
        next_cursor = cursor_of(*place(shown[-1])) if more else None
        return [_topic_row(topic) for topic in shown], next_cursor

    async def listed(self, topic_ids: Sequence[str]) -> list[TopicRow]:
        """As `Store.listed`."""
        await self._answer_later()
        asked = [topic for each in topic_ids if (topic := self._topics.get(each)) is not None]
        return [_topic_row(topic) for topic in asked if topic.listed]

    async def seen(self, subject: str, topic_ids: Sequence[str]) -> dict[str, Seen]:
        """As `Store.seen`."""
        await self._answer_later()
        asked = [topic for each in topic_ids if (topic := self._topics.get(each)) is not None]
        return {topic.id: _seen(topic, subject) for topic in asked if not topic.deleted}

    async def mark_read(self, subject: str, topic_id: str, seq: int) -> Seen | None:
        """As `Store.mark_read`."""
        topic = await self._present(topic_id)
        if topic is None:
            return None
        topic.read[subject] = max(topic.read.get(subject, 0), min(seq, topic.seq))
        return _seen(topic, subject)

    async def trash(self, topic_id: str, wanted: Wanted) -> TrashEntry | None:
        """As `Store.trash`."""
        topic = await self._present(topic_id)
        for seq, buried in sorted(topic.trash.items(), reverse=True) if topic else ():
            if wanted.seq is not None:
                found = seq == wanted.seq
            elif wanted.by is not None:
                found = buried.burial.by == wanted.by
            else:
                found = wanted.message_id in buried.nodes
            if found:
                return _entry(buried, wanted)
        return None

    async def trash_page(
        self, topic_id: str, *, cursor: str | None, limit: int
    ) -> tuple[list[TrashRow], str | None]:
        """As `Store.trash_page`."""
        after = None if cursor is None else trash_position_of(cursor)
        topic = await self._present(topic_id)
        rows = [
            TrashRow(
                seq=seq,
                op=buried.burial.op,
                by=buried.burial.by,
                at=buried.burial.at,
                node=replace(node, data=UNSET),
            )
            for seq, buried in (topic.trash if topic else {}).items()
            for node in buried.nodes.values()
        ]
        rows.sort(key=_place_in_trash)
        if after is not None:
            rows = [row for row in rows if _place_in_trash(row) > (-after[0], *after[1:])]
        shown = rows[:limit]
        more = len(rows) > limit
        return shown, trash_cursor_of(shown[-1].seq, shown[-1].node) if more else None

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
        late += [
            (node.updated_at, topic.key, node.id, 0, topic.id)
            for topic in self._topics.values()
            for node in topic.nodes.values()
            if node.role == "assistant" and node.status == "pending" and not topic.deleted
            if node.id not in topic.live and node.updated_at < offered_before
        ]
        return [Due(each[4], each[2], each[3]) for each in sorted(late)[:MOST_DUE]]

    async def renew(self, topic_id: str, message_id: str, epoch: int, until: int) -> None:
        """As `Store.renew`."""
        topic = await self._present(topic_id)
        row = topic.live.get(message_id) if topic else None
        if row is not None and row.epoch == epoch and epoch > 0:
            row.lease_until = until

    async def unused(self, before: int) -> list[str]:
        """As `Store.unused`."""
        await self._answer_later()
        found = [
            topic
            for topic in self._topics.values()
            if topic.temporary and not topic.deleted and topic.used_at < before
        ]
        return [topic.id for topic in sorted(found, key=attrgetter("used_at"))][:MOST_UNUSED]

    async def used(self, topic_ids: Sequence[str], now: int) -> None:
        """As `Store.used`."""
        await self._answer_later()
        for each in topic_ids:
            if (topic := self._topics.get(each)) is not None:
                topic.used_at = max(topic.used_at, now)

    async def prune(self, now: int) -> bool:
        """As `Store.prune`."""
        await self._answer_later()
        for topic in list(self._topics.values()):
            at = topic.deleted_at
            if at is not None and (topic.temporary or at < now - TOPIC_AGE):
                del self._topics[topic.id]
            for seq, buried in list(topic.trash.items()):
                if buried.burial.at < now - TRASH_AGE:
                    del topic.trash[seq]
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


def _seen(topic: _Topic, subject: str) -> Seen:
    read_seq = topic.read.get(subject, 0)
    unread = [
        node for node in topic.nodes.values() if node.version > read_seq and node.author != subject
    ]
    return Seen(read_seq, min(len(unread), MOST_UNREAD))


def _entry(buried: _Buried, wanted: Wanted) -> TrashEntry:
    burial = buried.burial
    ids = list(buried.nodes)
    if wanted.message_id is not None:
        ids = [wanted.message_id]
        if wanted.whole:
            places = ((node.id, node.parent_id) for node in buried.nodes.values())
            ids = below(places, wanted.message_id)
    nodes = [buried.nodes[each] for each in ids]
    refuse_much(sum(len(memoryview(node.data)) for node in nodes if node.data), burial.seq)
    return TrashEntry(
        seq=burial.seq,
        active_before=burial.active_before,
        active_after=burial.active_after,
        last_created_at=burial.last_created_at,
        moved=dict(burial.moved),
        nodes=nodes,
    )


def _place_in_trash(row: TrashRow) -> tuple[int, int, str]:
    return (-row.seq, row.node.created_at, row.node.id)


def _changed(topic: _Topic, run: Run) -> tuple[dict[str, Node | None], dict[int, _Buried]]:
    """
    Return the messages that the run changes, None where they go, and the trash after it.

    Raises:
        Internal: If a database would refuse it.

    """
    changed: dict[str, Node | None] = {}
    trash = {seq: _Buried(each.burial, dict(each.nodes)) for seq, each in topic.trash.items()}

    def get(message_id: str) -> Node | None:
        return changed[message_id] if message_id in changed else topic.nodes.get(message_id)

    def check(sound: bool) -> None:
        if not sound:
            raise Internal("the store refused the change, and nothing of it was kept")

    for entry in run.entries:
        if entry.delta is None:
            continue
        rows = {node.id: node for node in entry.nodes}
        for seq, message_id in revived_of(entry):
            if seq in trash:
                trash[seq].nodes.pop(message_id, None)
                if not trash[seq].nodes:
                    del trash[seq]
        for put in entry.delta.put:
            node, old = rows[put.id], get(put.id)
            is_new = put.role is not UNSET
            check(is_new == (old is None) and node.id != topic.root_id)
            check(node.parent_id == topic.root_id or get(node.parent_id) is not None)
            if old is not None and put.data is UNSET and put.id not in entry.delta.ended:
                node = replace(node, data=old.data)
            check(node.data is not UNSET)
            changed[node.id] = node
        if entry.delta.drop:
            burial = entry.burial
            check(burial is not None)
            assert burial is not None
            trash[burial.seq] = _Buried(burial, {})
        for message_id in entry.delta.drop:
            gone = get(message_id)
            check(gone is not None)
            assert gone is not None
            assert burial is not None
            trash[burial.seq].nodes[message_id] = gone
            changed[message_id] = None
    check(run.active_node_id is None or get(run.active_node_id) is not None)
    return changed, trash


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
    topic.deleted_at = run.state.get("deletedAt")
    topic.temporary = "temporary" in run.state
    topic.used_at = max(topic.used_at, run.now)
    topic.name = run.state["name"]
    topic.last_activity_at = run.state["lastActivityAt"]
