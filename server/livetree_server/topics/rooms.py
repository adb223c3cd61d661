"""All live topics of this process: loaded when named, kept while used, then let go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from livetree.core import protocol as p
from livetree.core.errors import Busy, LivetreeError
from livetree.core.plan import EraseTopic, ExpireLease, ExpireOffer
from msgspec import Struct

from .jobs import Append, Ask, CatchUp, Close, Copy, Job, Open, Renew, once
from .marking import Marking
from .ports import Fanout, Store, StoreError, Subscriber
from .room import Position, Waiting
from .runner import Runner
from .watching import Watching

__all__ = ["Rooms", "Settings"]

log = logging.getLogger("livetree.topics")

SWEEP_SECONDS: Final = 1.0

USED_SECONDS: Final = 60.0
"""How far apart it is noted which temporary topics are in use."""

PRUNE_SECONDS: Final = 60.0
"""How far apart the rounds are that remove old events and mutations."""


class Settings(Struct, frozen=True, kw_only=True):
    """
    Bounds and times of the rooms.

    Args:
        queue_length: Commands that may wait in one topic; beyond it they are `Busy`.
        idle_seconds: How long a topic that nobody uses stays in memory.
        offer_seconds: How long a reply may wait for a worker before it ends as an error.
        unused_seconds: How long a temporary topic is kept that nobody uses.
        lease_grace_seconds: How long after the start no lease ends, so that writers
            can come back first.

    """

    queue_length: int = 1000
    idle_seconds: float = 60.0
    offer_seconds: float = 60.0
    unused_seconds: float = 3600.0
    lease_grace_seconds: float = 15.0


class Rooms:
    """
    The live topics.

    Args:
        store: The truth.
        fanout: Who tells the subscribers.
        clock: Milliseconds since the epoch.
        new_id: Makes ids.
        settings: Bounds and times.

    Use as an async context manager: leaving it finishes what is queued and stops.
    Every method is to be called on the event loop's thread.

    """

    def __init__(
        self,
        store: Store,
        fanout: Fanout,
        *,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        settings: Settings | None = None,
    ) -> None:
        self.store = store
        self.fanout = fanout
        self.clock = clock
        self.new_id = new_id
        self.settings = settings or Settings()
        self.watching = Watching(store, self.spawn)
        self.marking = Marking(store, self.spawn, self.watching.read)
        self._runners: dict[str, Runner] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._started_at = 0
        self._sweeper: asyncio.Task[None] | None = None
        self._pruned_at = 0
        self._used_at = 0

    async def __aenter__(self) -> Rooms:
        self._started_at = self.clock()
        self._sweeper = asyncio.create_task(self._sweep_for_ever(), name="sweep")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        self.watching.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        # What was accepted is carried out; nothing new is.
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._runners.clear()

    # Coming in ----------------------------------------------------------------------

    def command(
        self,
        command: p.Mutation,
        subject: str | None,
        answer: Callable[[bytes | LivetreeError], None],
    ) -> None:
        """
        Queue a command.

        `answer` is called once, with the result's JSON text after the commit is durable
        and told to everyone, or with the refusal.

        Raises:
            Busy: If the topic's queue is full; nothing happened.

        """
        self._enqueue(command.topic, Waiting(command, subject, once(answer)))

    def duplicate(
        self,
        command: p.TopicDuplicate,
        copy_id: str,
        subject: str | None,
        answer: Callable[[bytes | LivetreeError], None],
    ) -> None:
        """Queue the copy of a path, as a new topic; answered like a command. Raises `Busy`."""

        def made(outcome: Any) -> None:
            if isinstance(outcome, LivetreeError):
                answer(outcome)
                return
            try:
                self._enqueue(copy_id, Waiting(outcome, subject, once(answer), request=command))
            except Busy as error:
                answer(error)

        self._enqueue(command.topic, Copy(command, copy_id, once(made)))

    def ask(self, command: p.Command, topic_id: str, answer: Callable[[Any], None]) -> None:
        """Queue a read; it sees every command that was queued before it. Raises `Busy`."""
        self._enqueue(topic_id, Ask(command, once(answer)))

    def open(
        self, command: p.TopicOpen | p.Resume, subscriber: Subscriber, answer: Callable[[Any], None]
    ) -> None:
        """
        Subscribe a connection and bring it up to date. Raises `Busy`.

        `answer` is called first, then the connection gets what it misses.

        """
        position = Position(command.seq, command.commit, dict(command.streams))
        self._enqueue(command.topic, Open(position, subscriber, once(answer)))

    def close(self, topic_id: str, subscriber: Subscriber, answer: Callable[[Any], None]) -> None:
        """End a subscription, if there is one, after what was asked before. Raises `Busy`."""
        self._enqueue(topic_id, Close(subscriber, once(answer)))

    def append(
        self, command: p.StreamAppend, answer: Callable[[bytes | LivetreeError], None]
    ) -> None:
        """Take live ops; answered by the ``streamAck`` frame. Raises `Busy`."""
        runner = self._runners.get(command.topic)
        if runner is not None and runner.take_now(command, answer):
            return
        self._enqueue(command.topic, Append(command, once(answer)))

    def renew(
        self, command: p.StreamRenew, answer: Callable[[bytes | LivetreeError], None]
    ) -> None:
        """Keep a lease. Raises `Busy`."""
        self._enqueue(command.topic, Renew(command, once(answer)))

    # What the hub reports -------------------------------------------------------------

    def ended(self, topic_id: str, subscriber: Subscriber) -> None:
        """Forget a subscriber whose connection has ended."""
        if (runner := self._runners.get(topic_id)) is not None:
            runner.subscribers.remove(subscriber)

    def reads_again(self, subscriber: Subscriber) -> None:
        """Tell a connection that reads again what it missed of the list."""
        self.watching.reads_again(subscriber)

    def closed(self, subscriber: Subscriber) -> None:
        """Forget a connection that has ended: it watches the list no more."""
        self.watching.forget(subscriber)

    def lagging(self, topic_id: str, subscriber: Subscriber) -> None:
        """Note where a subscriber is that the hub has just stopped sending to."""
        if (runner := self._runners.get(topic_id)) is not None:
            runner.lagging(subscriber)

    def drained(self, topic_id: str, subscriber: Subscriber) -> None:
        """Catch a subscriber up that reads again."""
        runner = self._runners.get(topic_id)
        if runner is not None and runner.subscribers.is_behind(subscriber):
            self._push(runner, CatchUp(subscriber))

    # Running --------------------------------------------------------------------------

    def _enqueue(self, topic_id: str, job: Waiting | Job) -> None:
        if self._closing:
            raise Busy("the server is stopping: connect again in a moment")
        runner = self._runners.get(topic_id)
        if runner is None:
            runner = self._runners[topic_id] = Runner(topic_id, self)
        if len(runner.queue) >= self.settings.queue_length:
            raise Busy(
                f"topic {topic_id} has {len(runner.queue)} requests waiting: repeat in a moment",
                limit=self.settings.queue_length,
            )
        self._push(runner, job)

    def _push(self, runner: Runner, job: Waiting | Job) -> None:
        runner.queue.append(job)
        if not runner.running:
            runner.running = True
            self.spawn(runner.run(), f"topic {runner.topic_id}")

    def spawn(self, work: Any, name: str) -> None:
        """Run something that belongs to a topic; leaving the context waits for it."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Time ---------------------------------------------------------------------------

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep()

    async def sweep(self) -> None:
        """
        End what has outlived its time, once.

        Leases that ended, offers that nobody took, and topics that nobody uses. The
        rooms know leases best: the database hears of a renewal a little later.

        """
        now = self.clock()
        self._evict(now)
        # Apart: where one of them fails, the others go on.
        for part in (self._persist_leases, self._sweep_live, self._sweep_temporary, self._prune):
            await self._guarded(part, now)

    async def _guarded(self, part: Callable[[int], Awaitable[None]], now: int) -> None:
        try:
            await part(now)
        except StoreError as error:
            log.warning("the sweep could not read the database: %s", error)
        except Exception:
            log.exception("a part of the sweep failed; it goes on in a second")

    async def _prune(self, now: int) -> None:
        if now - self._pruned_at >= PRUNE_SECONDS * 1000 and not await self.store.prune(now):
            self._pruned_at = now  # else a round is under way: it goes on in a second

    async def _persist_leases(self, _: int) -> None:
        # Together, so that they share the store's transactions.
        written = [runner for runner in self._runners.values() if runner.is_written]
        await asyncio.gather(*(runner.persist_leases() for runner in written))

    async def _sweep_live(self, now: int) -> None:
        due = await self.store.due(
            lease_before=now, offered_before=now - int(self.settings.offer_seconds * 1000)
        )
        in_grace = now < self._started_at + self.settings.lease_grace_seconds * 1000
        for each in due:
            command: p.Mutation
            if each.epoch:
                if in_grace or self._lease_until(each.topic_id, each.message_id) > now:
                    continue
                command = ExpireLease(
                    topic=each.topic_id, message_id=each.message_id, epoch=each.epoch
                )
            else:
                command = ExpireOffer(topic=each.topic_id, message_id=each.message_id)
            with contextlib.suppress(Busy):
                self.command(command, None, lambda _: None)

    async def _sweep_temporary(self, now: int) -> None:
        """Note which temporary topics are in use, and erase those that nobody has used."""
        if now - self._used_at < USED_SECONDS * 1000:
            return
        self._used_at = now
        used = [
            topic_id
            for topic_id, runner in self._runners.items()
            if runner.is_temporary and runner.is_watched
        ]
        if used:
            await self.store.used(used, now)
        unused_since = now - int(self.settings.unused_seconds * 1000)
        for topic_id in await self.store.unused(unused_since):
            runner = self._runners.get(topic_id)
            if runner is not None and runner.in_use:
                continue  # somebody has come meanwhile
            with contextlib.suppress(Busy):
                command = EraseTopic(topic=topic_id, unused_since=unused_since)
                self.command(command, None, lambda _: None)

    def _lease_until(self, topic_id: str, message_id: str) -> int:
        runner = self._runners.get(topic_id)
        return 0 if runner is None else runner.lease_until(message_id)

    def _evict(self, now: int) -> None:
        for topic_id, runner in list(self._runners.items()):
            if runner.in_use:
                runner.used_at = now
            elif now - runner.used_at >= self.settings.idle_seconds * 1000:
                # Nothing waits and nobody watches: the next who asks loads it anew.
                del self._runners[topic_id]

    def unload(self, topic_id: str) -> None:
        """Forget an unused topic's room now; the next who asks reads the database."""
        runner = self._runners.get(topic_id)
        if runner is not None and not runner.in_use:
            del self._runners[topic_id]

    def statistics(self) -> dict[str, int]:
        """Return figures over all rooms."""
        return {
            "rooms": len(self._runners),
            **self.watching.statistics(),
            "waiting": sum(len(runner.queue) for runner in self._runners.values()),
            "behind": sum(runner.subscribers.behind for runner in self._runners.values()),
        }

    def __repr__(self) -> str:
        return f"<Rooms {self.statistics()}>"
