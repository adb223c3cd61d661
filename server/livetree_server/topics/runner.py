"""
The one task that works for a topic: it takes what waits, in order.

Commands become runs: planned together, committed in one transaction, applied, told,
answered, in that order. Reads and subscriptions stand in the same queue, so each sees
what was asked before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from livetree.core import protocol as p
from livetree.core.errors import (
    Busy,
    Conflict,
    Internal,
    LivetreeError,
    NotFound,
    TooLarge,
    Unavailable,
)
from livetree.core.plan import Content, Context, RepairTopic
from livetree.core.repair import Fault, faults
from livetree.core.trash import TrashEntry, Wanted

from .jobs import (
    LARGE_TOPIC,
    Answer,
    Append,
    CatchUp,
    Close,
    Copy,
    Job,
    Open,
    Renew,
    is_far_reaching,
    makes_topic,
    restores_topic,
)
from .ports import LoadedTopic, MutationTaken, SeqTaken, StoredMutation, StoreError, Subscriber
from .reading import copied, read, warm
from .room import Decided, Room, Waiting
from .subscribers import Subscribers

if TYPE_CHECKING:
    from .rooms import Rooms

__all__ = ["Runner"]

log = logging.getLogger("livetree.topics")

ATTEMPTS: Final = 8
"""How often a run is planned again after another node was first."""

RUN_LENGTH: Final = 200
"""How many commands one run takes."""

LEASE_LAG_MS: Final = 3_000
"""How far the database's word on a lease may be behind the room's."""

RETRY_SECONDS: Final = 1.0
"""How soon a subscriber is tried again when the database couldn't be read."""

APPEND_LEASE_MS: Final = 15_000
"""How long an append keeps the lease for."""

FAULTS_LOGGED: Final = 100
"""How many faults of a topic its line in the log names."""


class Runner:
    """A topic's queue, its room while it is loaded, and who watches it."""

    def __init__(self, topic_id: str, rooms: Rooms) -> None:
        self.topic_id = topic_id
        self.queue: deque[Waiting | Job] = deque()
        self.running = False
        self.used_at = rooms.clock()
        self.subscribers = Subscribers(
            topic_id,
            rooms.store,
            rooms.fanout,
            rooms.spawn,
            lambda subscriber: rooms.drained(topic_id, subscriber),
        )
        self._rooms = rooms
        self._room: Room | None = None
        self._current: list[Waiting | Job] = []
        self._unsure = False
        self._persisted: dict[str, int] = {}

    @property
    def in_use(self) -> bool:
        """Whether letting go of it would lose something: work, a watcher, or live text."""
        return self.running or bool(self.queue) or bool(self.subscribers) or self.is_written

    @property
    def is_watched(self) -> bool:
        """Whether somebody has the topic open."""
        return bool(self.subscribers)

    @property
    def is_temporary(self) -> bool:
        """Whether it is a temporary topic, as far as is known here."""
        return self._room is not None and "temporary" in self._room.tree.state

    @property
    def is_written(self) -> bool:
        """Whether a writer holds a lease here."""
        return self._room is not None and bool(self._room.replies)

    def lagging(self, subscriber: Subscriber) -> None:
        """Note where a subscriber is that gets no more for now."""
        if self._room is not None:
            self.subscribers.lagging(subscriber, self._room.position)

    def lease_until(self, message_id: str) -> int:
        """Return when a lease ends, 0 if this process doesn't know."""
        return 0 if self._room is None else self._room.leases.get(message_id, 0)

    async def persist_leases(self) -> None:
        """Tell the database of leases that were kept, so that they outlive this process."""
        room = self._room
        if room is None:
            return
        self._persisted = {each: at for each, at in self._persisted.items() if each in room.replies}
        for message_id, reply in list(room.replies.items()):
            until = room.leases.get(message_id, 0)
            if until - self._persisted.get(message_id, 0) > LEASE_LAG_MS:
                await self._rooms.store.renew(self.topic_id, message_id, reply.epoch, until)
                self._persisted[message_id] = until

    def take_now(self, command: p.StreamAppend, answer: Answer) -> bool:
        """Take live ops at once if nothing waits before them; tells whether it did."""
        if self._room is None or self.running:
            return False
        self._append(self._room, command, answer)
        return True

    # The task -------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until nothing waits."""
        try:
            while self.queue:
                try:
                    await self._step()
                except Exception as error:
                    # Whatever was wrong, what the room has is held against the log.
                    log.exception("topic %s: %s", self.topic_id, error)
                    if not self._current:
                        # Nothing was begun: the same would happen again, without end.
                        self._refuse_all(_unreadable(self.topic_id))
                        continue
                    await self._reload(self._current, None)
                self._current = []
                if self._room is not None:
                    self._room.cool()
        finally:
            self.running = False
            self.used_at = self._rooms.clock()
            if self._room is None and not self.in_use:
                self._rooms.unload(self.topic_id)  # nothing is there, and nobody waits for it

    async def _step(self) -> None:
        if self._unsure and not await self._make_sure():
            return
        if self._room is None:
            await self._load()
        room = self._room
        if room is None:
            await self._refuse_unknown()
        elif isinstance(job := self.queue[0], Waiting):
            await self._commit_run(room)
        else:
            self.queue.popleft()
            self._current = [job]
            await self._do(room, job)

    async def _load(self) -> None:
        try:
            loaded = await self._stored()
            contents = await self._live_contents(loaded) if loaded is not None else {}
        except (StoreError, LivetreeError) as error:
            log.error("topic %s can't be loaded: %s", self.topic_id, error)
            if isinstance(error, StoreError):
                error = Unavailable("the database can't be read: repeat in a moment")
            self._refuse_all(error)
            return
        except Exception:
            log.exception("topic %s can't be loaded", self.topic_id)
            self._refuse_all(_unreadable(self.topic_id))
            return
        if loaded is not None:
            if len(loaded.nodes) + len(loaded.graves) > LARGE_TOPIC:
                # Meanwhile the other topics go on.
                room, found = await asyncio.to_thread(_built, loaded, contents)
            else:
                room, found = _built(loaded, contents)
            self._room = room
            if found and not room.deleted:
                self._repair(room, found)
        elif self.queue and makes_topic(self.queue[0]):
            self._room = Room.unborn(self.topic_id, self._rooms.new_id(), self._rooms.clock())

    async def _stored(self) -> LoadedTopic | None:
        loaded = await self._rooms.store.load(self.topic_id)
        if loaded is None and self.queue and restores_topic(self.queue[0]):
            loaded = await self._rooms.store.load(self.topic_id, deleted=True)
        return loaded

    def _repair(self, room: Room, found: list[Fault]) -> None:
        """Put the repair before all that waits: nobody sees the topic as it is."""
        tree = room.tree
        command = RepairTopic(topic=tree.topic_id, seq=tree.seq, faults=found)

        def answer(outcome: bytes | LivetreeError) -> None:
            # An unknown outcome may have been found out by now.
            if isinstance(outcome, bytes) or (
                self._room is not None and not faults(self._room.tree)
            ):
                log.warning("topic %s was repaired: %s", self.topic_id, _listed(found))
                return
            log.error(
                "topic %s can't be repaired (%s): stop the server and run "
                "`livetree check --repair`; what is wrong: %s",
                self.topic_id,
                outcome,
                _listed(found),
            )
            # What waits would go round in its cycles.
            self._start_over()
            self._refuse_all(Unavailable("the topic can't be repaired at present: repeat later"))

        self.queue.appendleft(Waiting(command, None, answer))

    async def _live_contents(self, loaded: LoadedTopic) -> dict[str, tuple[int, bytes]]:
        """Read what live replies had before their writers began."""
        live = loaded.state["live"]
        for lost in live.keys() - {node.id for node in loaded.nodes} if live else ():
            live[lost] = 0  # no message, so there is no text that could grow; it is repaired
        ids = [node.id for node in loaded.nodes if live.get(node.id) and not node.empty]
        return await self._rooms.store.contents(self.topic_id, ids) if ids else {}

    def _refuse_all(self, error: LivetreeError) -> None:
        while self.queue:
            job = self.queue.popleft()
            if isinstance(job, CatchUp):
                self._catch_up_later(job.subscriber)
            else:
                job.answer(error)

    async def _refuse_unknown(self) -> None:
        """Answer what waits before the next command that makes the topic."""
        error = NotFound(f"there is no topic {self.topic_id}", id=self.topic_id)
        refused: list[tuple[Waiting, LivetreeError]] = []
        while self.queue and not (
            makes_topic(self.queue[0]) or (self._current and restores_topic(self.queue[0]))
        ):
            job = self.queue.popleft()
            self._current.append(job)
            if isinstance(job, Waiting):
                refused.append((job, error))
            elif isinstance(job, CatchUp):
                self.subscribers.end("the topic is not there any more")
            else:
                job.answer(b"{}" if isinstance(job, Close) else error)
        await self._answer_refused(refused)

    # Commands -------------------------------------------------------------------------

    async def _commit_run(self, room: Room) -> None:
        waiting: list[Waiting] = []
        while self.queue and isinstance(self.queue[0], Waiting) and len(waiting) < RUN_LENGTH:
            job = self.queue.popleft()
            assert isinstance(job, Waiting)
            waiting.append(job)
        self._current = list(waiting)
        for _ in range(ATTEMPTS):
            try:
                decided, refused, taken = await self._decide(room, waiting)
            except (Internal, TooLarge) as error:
                self.queue.extendleft(reversed(waiting[1:]))
                waiting[0].answer(error)
                return
            # What is not dealt with goes back to the front, in order.
            self.queue.extendleft(reversed(waiting[taken:]))
            self._current = list(waiting[:taken])
            waiting = [each for each, _ in decided.planned] if decided else []
            await self._answer_refused(refused)
            if decided is None:
                self._forget_absent()
                return
            try:
                await self._rooms.store.commit(decided.run)  # 1. durable
            except MutationTaken as taken_before:
                waiting = await self._answer_repeated(waiting, taken_before)
                if waiting and not self._is_absent(room):
                    continue
                # What was to make or restore the topic did so before: now it is as it is.
                self.queue.extendleft(reversed(waiting))
                self._forget_absent()
                return
            except SeqTaken:
                if (after := await self._catch_up_with_database(waiting)) is None:
                    return
                room = after
                continue
            except StoreError as error:
                log.warning("topic %s: the outcome is unknown: %s", self.topic_id, error)
                await self._reload(
                    waiting, Unavailable("the outcome is unknown: repeat with the same mutation id")
                )
                return
            except LivetreeError as error:
                self._answer_all(waiting, error)
                self._forget_absent()
                return
            self._told(room, decided)
            return
        self._answer_all(waiting, Busy("other nodes keep changing this topic: repeat in a moment"))

    async def _decide(
        self, room: Room, waiting: list[Waiting]
    ) -> tuple[Decided | None, list[tuple[Waiting, LivetreeError]], int]:
        """
        Plan a run. Deciding never waits: content that it needs is read, and it begins again.

        Nothing else of the room is used meanwhile: the queue is its only way in. So what
        may touch very many messages is decided in a thread, and other topics go on.

        Raises:
            Internal: If the database doesn't have what the first command needs.
            TooLarge: If that is too much.

        """
        trash: dict[Wanted, TrashEntry | None] = {}
        apart = any(is_far_reaching(each.command, room) for each in waiting)
        while True:
            decide = partial(
                room.decide,
                waiting,
                now=self._rooms.clock(),
                new_id=self._rooms.new_id,
                trash=trash,
            )
            try:
                return await asyncio.to_thread(decide) if apart else decide()
            except Content as need:
                await warm(room, need.message_ids, self._rooms.store)
                for wanted in need.trash:
                    entry = await self._rooms.store.trash(self.topic_id, wanted)
                    trash[wanted] = entry
                    apart |= entry is not None and len(entry.nodes) > LARGE_TOPIC

    def _answer_all(self, waiting: list[Waiting], error: LivetreeError) -> None:
        for each in waiting:
            each.answer(error)

    def _forget_absent(self) -> None:
        if self._room is not None and self._is_absent(self._room):
            self._room = None

    @staticmethod
    def _is_absent(room: Room) -> bool:
        """Tell whether its topic isn't there: not made yet, or not restored."""
        return not room.tree.seq or room.deleted

    def _told(self, room: Room, decided: Decided) -> None:
        # No await in here: nobody sees one of the three steps without the others.
        applied = room.apply(decided)  # 2. true here
        if applied.frames:
            # 3. told, the sender included
            self._rooms.fanout.publish(self.topic_id, applied.frames)
        if applied.offers:
            self._rooms.fanout.offered(applied.offers)
        if applied.frames:
            self._list_changed(room)
        for (waiting, _), result in zip(decided.planned, applied.results, strict=True):
            waiting.answer(p.encode(result))
        if room.deleted:
            self._end("the topic was deleted")
        elif any(isinstance(each.command, p.TopicRestore) for each, _ in decided.planned):
            self._room = None  # it is read, and held to be sound, like any other

    def _list_changed(self, room: Room) -> None:
        # Temporary topics are in no list, not even as ones that are gone from it.
        if "temporary" not in room.tree.state:
            self._rooms.watching.changed(self.topic_id)

    def _end(self, reason: str) -> None:
        self.subscribers.end(reason)
        self._room = None

    async def _answer_refused(self, refused: list[tuple[Waiting, LivetreeError]]) -> None:
        keys = [each.key for each, _ in refused if each.key is not None]
        # A repeated command may be refused because its first try succeeded.
        stored = await self._rooms.store.mutations(keys) if keys else {}
        for each, error in refused:
            found = stored.get(each.key) if each.key is not None else None
            each.answer(error if found is None else self._first_result(each, found))

    async def _answer_repeated(self, waiting: list[Waiting], taken: MutationTaken) -> list[Waiting]:
        stored = await self._rooms.store.mutations(taken.keys)
        rest: list[Waiting] = []
        for each in waiting:
            found = stored.get(each.key) if each.key is not None else None
            if found is None:
                rest.append(each)
            else:
                each.answer(self._first_result(each, found))
        return rest

    def _first_result(self, waiting: Waiting, stored: StoredMutation) -> bytes | LivetreeError:
        """Answer a command that happened before with its first result."""
        command = waiting.command
        if stored.request_hash != waiting.request_hash:
            return Conflict(
                f"mutation id {command.mutation} belongs to another request: use a new one",
                mutation=command.mutation,
            )
        if isinstance(command, p.StreamClaim) and self._room is not None:
            result = msgspec.json.decode(stored.result)
            if self._room.tree.live.get(command.message_id) == result["epoch"]:
                return p.encode(result | self._room.left_parts(command.message_id))
        return stored.result

    async def _catch_up_with_database(self, waiting: list[Waiting]) -> Room | None:
        """See what another node did, tell it to our subscribers, and decide on that."""
        await self._reload([], Busy(""))
        if self._room is None:
            taken = Conflict(f"topic id {self.topic_id} is taken: choose another")
            gone = NotFound(f"there is no topic {self.topic_id}", id=self.topic_id)
            for each in waiting:
                each.answer(taken if makes_topic(each) else gone)
        return self._room

    async def _reload(self, jobs: Sequence[Waiting | Job], otherwise: LivetreeError | None) -> None:
        """
        Read the database, publish what happened there, and answer what waits by it.

        A command whose mutation is stored gets its result; any other gets `otherwise`, or
        without it what is known of a failure of the server's own.

        """
        self._forget_absent()
        keys = [job.key for job in jobs if isinstance(job, Waiting) and job.key is not None]
        try:
            stored = await self._rooms.store.mutations(keys) if keys else {}
            if self._room is not None:
                await self._follow_log(self._room)
        except (StoreError, LivetreeError) as error:
            log.warning("topic %s can't be read again yet: %s", self.topic_id, error)
            stored = {}
            self._unsure = True
        if self._room is None and any(makes_topic(job) or restores_topic(job) for job in jobs):
            self._rooms.watching.changed(self.topic_id)  # it may be there now
        for job in jobs:
            if isinstance(job, CatchUp):
                continue
            outcome: bytes | LivetreeError = otherwise or self._failed(job)
            if isinstance(job, Waiting) and job.key in stored:
                outcome = self._first_result(job, stored[job.key])
            job.answer(outcome)

    def _failed(self, job: Waiting | Job) -> LivetreeError:
        """Return the error of a job amid which the server failed."""
        if isinstance(job, Waiting) and (job.key is None or self._unsure):
            return Unavailable("the server failed: it may have happened")
        return Internal("the server failed, and its log says why; nothing has happened")

    async def _make_sure(self) -> bool:
        """Read what the database could not tell before; until it does, nothing is answered."""
        try:
            if self._room is not None:
                await self._follow_log(self._room)
        except (StoreError, LivetreeError) as error:
            log.warning("topic %s still can't be read: %s", self.topic_id, error)
            self._refuse_all(Unavailable("the database can't be read: repeat in a moment"))
            return False
        self._unsure = False
        return True

    async def _follow_log(self, room: Room) -> None:
        """Bring the room up to the log's end; where that fails, start afresh."""
        # The room stays in place meanwhile: a subscriber may fall behind at any delta.
        at = await self._rooms.store.commit_at(self.topic_id, room.tree.seq)
        try:
            if at != room.tree.commit:
                raise RuntimeError("the database has another history")
            while frames := await self._rooms.store.deltas(self.topic_id, room.tree.seq, 200):
                for frame in frames:
                    delta = p.decode_frame(frame)
                    assert isinstance(delta, p.Delta)
                    self._rooms.fanout.publish(self.topic_id, room.follow(delta, frame))
                self._list_changed(room)
            if room.deleted:
                self._end("the topic was deleted")
        except (StoreError, LivetreeError):
            raise
        except Exception as error:
            log.warning("topic %s is loaded afresh: %s", self.topic_id, error)
            self._start_over()

    def _start_over(self) -> None:
        """Forget the room and its subscribers' positions: nobody may keep what isn't there."""
        if self._room is not None:
            self._list_changed(self._room)
        self._room = None
        self.queue.extend(CatchUp(each) for each in self.subscribers.start_over())

    # Reads and live ops -----------------------------------------------------------------

    async def _do(self, room: Room, job: Job) -> None:
        try:
            if isinstance(job, CatchUp):
                await self.subscribers.catch_up(room, job.subscriber)
            elif isinstance(job, Open):
                await self._open(room, job)
            elif isinstance(job, Close):
                self.subscribers.remove(job.subscriber)
                job.answer(b"{}")
            elif isinstance(job, Append):
                self._append(room, job.command, job.answer)
            elif isinstance(job, Renew):
                until = room.renew(job.command, self._rooms.clock())
                job.answer(p.encode({"leaseUntil": until}))
            elif isinstance(job, Copy):
                context = Context(now=self._rooms.clock(), commit="", new_id=self._rooms.new_id)
                job.answer(await copied(room, job.command, job.copy_id, context, self._rooms.store))
            else:
                job.answer(await read(room, job.command, self._rooms.store))
        except LivetreeError as error:
            self._answer(job, error)
        except StoreError as error:
            log.warning("topic %s can't be read: %s", self.topic_id, error)
            self._answer(job, Unavailable("the database can't be read: repeat in a moment"))

    def _answer(self, job: Job, error: LivetreeError) -> None:
        if isinstance(job, (CatchUp, Open)):
            # It stays behind; it is served when reading works again.
            self._catch_up_later(job.subscriber)
        if not isinstance(job, CatchUp):
            job.answer(error)

    def _catch_up_later(self, subscriber: Subscriber) -> None:
        asyncio.get_running_loop().call_later(
            RETRY_SECONDS, self._rooms.drained, self.topic_id, subscriber
        )

    async def _open(self, room: Room, job: Open) -> None:
        if job.subscriber.closed:
            return
        self.subscribers.add(job.subscriber, job.position)
        tree = room.tree
        opened = {"topic": tree.topic_id, "rootId": tree.root_id}
        job.answer(p.encode({**opened, "seq": tree.seq, "commit": tree.commit}))
        await self.subscribers.catch_up(room, job.subscriber)

    def _append(self, room: Room, command: p.StreamAppend, answer: Answer) -> None:
        try:
            frame, ack = room.append(command, self._rooms.clock(), APPEND_LEASE_MS)
        except LivetreeError as error:
            answer(error)
            return
        if frame is not None:
            self._rooms.fanout.publish(self.topic_id, [frame])
        answer(ack)

    def __repr__(self) -> str:
        return f"<Runner {self.topic_id} waiting={len(self.queue)} room={self._room!r}>"


def _unreadable(topic_id: str) -> Internal:
    return Internal(
        f"topic {topic_id} can't be read, and the server's log says why: stop the server and run "
        "`livetree check --repair`",
        topic=topic_id,
    )


def _built(loaded: LoadedTopic, contents: dict[str, tuple[int, bytes]]) -> tuple[Room, list[Fault]]:
    room = Room(loaded, contents)
    return room, faults(room.tree, loaded.digest)


def _listed(found: list[Fault]) -> str:
    more = f"; and {len(found) - FAULTS_LOGGED} more" if len(found) > FAULTS_LOGGED else ""
    return "; ".join(map(str, found[:FAULTS_LOGGED])) + more
