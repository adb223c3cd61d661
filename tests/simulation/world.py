"""
A whole system under one seed: a server, its clients, and a network that does its worst.

Nothing here waits for real time. The seed decides who acts, which frame is delivered
next, which is sent twice or out of order, who is cut off, and when the server crashes;
so a seed that fails fails again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence

from livetree.core.errors import LivetreeError
from livetree.live_topic import LiveTopic
from livetree.transport import SocketClosed
from livetree_server.app import Application
from livetree_server.storage.memory import MemoryStore
from livetree_server.topics.rooms import Settings

from tests.simulation.wire import Wire

TOPIC = "topic"


class Time:
    """A clock that moves when it is told to; for clients and server alike."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now * 1000)

    def call_later(self, delay: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        # Real time moves on between a timer and the next that it sets: so does this one.
        at = self.now + max(delay, 0.001)
        heapq.heappush(self._timers, (at, next(self._numbers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            at, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, at)
            timer.fire()
        self.now = end


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Link:
    """One connection: frames on their way in both directions, delivered when the seed says so."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wire: Wire | None = Wire(world.application.gateway)
        self.wire.transport.high = 3_000  # so that a deaf reader soon counts as slow
        self.up: deque[str] = deque()
        self.down: deque[str] = deque()
        self.closed: SocketClosed | None = None
        self.deaf = False
        self._arrived: deque[str] = deque()
        self._waiter: asyncio.Future[None] | None = None

    # The client's socket ----------------------------------------------------------------

    async def send(self, text: str) -> None:
        if self.closed is not None:
            raise self.closed
        self.up.append(text)

    async def recv(self) -> str:
        while not self._arrived:
            if self.closed is not None:
                raise self.closed
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._arrived.popleft()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.cut(code)

    # The network ------------------------------------------------------------------------

    def deliver_up(self, *, twice: bool = False) -> None:
        text = self.up.popleft()
        if self.wire is not None:
            self.wire.send(text)
            self.world.note("up")
            if twice and '"mutation"' in text and self.wire is not None:
                self.world.note("twice")
                self.wire.send(text)

    def collect(self) -> None:
        """Take what the server has written onto the way down."""
        if self.wire is None or self.deaf:
            return
        if self.wire.transport.paused:
            self.world.note("slow")
        for frame in self.wire.frames():
            if frame.opcode == 1:
                self.down.append(bytes(frame.data).decode())
            elif frame.opcode == 8:
                self.cut(int.from_bytes(bytes(frame.data)[:2], "big"))
                return
        if self.wire.transport.closed:
            self.cut(1006)

    def deliver_down(self, rng: random.Random | None) -> None:
        if rng is not None and len(self.down) > 1 and rng.random() < 0.05:
            first, second = self.down[0], self.down[1]
            if _is_delta(first) and _is_delta(second):
                self.down[0], self.down[1] = second, first
                self.world.note("swapped")
        text = self.down.popleft()
        self.world.note("stream" if text.startswith('{"type":"stream"') else "down")
        self._arrived.append(text)
        if rng is not None and _is_delta(text) and rng.random() < 0.05:
            self._arrived.append(text)
        self._wake()

    def cut(self, code: int = 1006) -> None:
        """Lose the connection and everything that was on its way."""
        if self.closed is None:
            self.closed = SocketClosed(code)
            self.up.clear()
            self.down.clear()
            self._arrived.clear()
            self.world.links.remove(self)
            wire, self.wire = self.wire, None
            if wire is not None and not wire.transport.closed:
                wire.cut()
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _is_delta(text: str) -> bool:
    return text.startswith('{"type":"delta"')


class World:
    """
    A server over an in-memory store, and clients that mirror one topic.

    Args:
        seed: Decides everything.
        clients: How many.

    """

    def __init__(self, seed: int, *, clients: int = 8) -> None:
        self.rng = random.Random(seed)
        self.time = Time()
        self.store = MemoryStore()
        self.links: list[Link] = []
        self.calm = False
        self.down = False
        self._ids = random.Random(seed + 1)
        self.client_count = clients
        self.born = asyncio.Event()
        self.events: dict[str, int] = {}
        self.mirrors: list[LiveTopic] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.created: set[str] = set()
        self.deleted: set[str] = set()
        self.restored: set[str] = set()
        self.application = self._start()

    def _start(self) -> Application:
        return Application(
            self.store,
            clock=self.time.now_ms,
            ids=self._new_id,
            settings=Settings(idle_seconds=1.0, lease_grace_seconds=5.0, offer_seconds=20.0),
        )

    def _new_id(self) -> str:
        return f"s{self._ids.getrandbits(64):016x}"

    # The transport of every client ------------------------------------------------------

    async def open(self, _: str) -> Link:
        if self.down or (not self.calm and self.rng.random() < 0.1):
            raise ConnectionError("there is no way to the server")
        link = Link(self)
        self.links.append(link)
        return link

    # Running ----------------------------------------------------------------------------

    def note(self, event: str) -> None:
        """Count something that happened."""
        self.events[event] = self.events.get(event, 0) + 1

    def deliver_all(self) -> None:
        """Deliver everything that is on its way, once, in order."""
        for link in list(self.links):
            while link.up:
                link.deliver_up()
            link.collect()
            while link.down:
                link.deliver_down(None)

    async def stop(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Let the clients and bots end in their own time, then the server."""
        self.calm = True
        for _ in range(2000):
            if all(task.done() for task in tasks):
                break
            self.deliver_all()
            await self.settle(3)
            self.time.advance(0.2)
        else:
            raise AssertionError("a client or a bot does not end")
        for link in list(self.links):
            link.cut()
        await self.application.rooms.__aexit__()

    async def settle(self, turns: int) -> None:
        """Let everyone act on what has arrived."""
        for _ in range(turns):
            await asyncio.sleep(0)
        for link in list(self.links):
            link.collect()

    async def step(self) -> None:
        """Do one thing of those that can happen."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.45:
            self._deliver(rng)
        elif kind < 0.85:
            self._act(rng)
        elif kind < 0.92:
            self.time.advance(rng.choice((0.05, 0.3, 1.5)))
        elif kind < 0.94 and self.links:
            rng.choice(self.links).cut()
            self.note("cut")
        elif kind < 0.96 and self.links:
            link = rng.choice(self.links)
            link.deaf = not link.deaf
        elif kind < 0.97:
            await self.application.rooms.sweep()
        elif kind < 0.98:
            self._break_next_commit(rng)
        elif kind < 0.99:
            await self.crash()
        await self.settle(rng.randrange(1, 8))

    def _deliver(self, rng: random.Random) -> None:
        for _ in range(rng.randrange(1, 12)):
            ways = [link.deliver_up for link in self.links if link.up]
            ways += [link.deliver_down for link in self.links if link.down]
            if not ways:
                return
            way = rng.choice(ways)
            if way.__name__ == "deliver_up":
                way(twice=rng.random() < 0.05)
            else:
                way(rng)

    def _break_next_commit(self, rng: random.Random) -> None:
        self.store.fail_next(after_commit=rng.random() < 0.5)
        self.note("failed commit")

    async def crash(self) -> None:
        """Kill the server: what was not durable is gone, what was comes back."""
        for link in list(self.links):
            link.cut()
        for task in list(self.application.rooms._tasks):
            task.cancel()
        self.application = self._start()
        self.note("crash")

    def _act(self, rng: random.Random) -> None:
        if len(self.tasks) > 60:
            return
        mirror = rng.choice(self.mirrors)
        task = asyncio.create_task(self._command(mirror, rng))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _command(self, mirror: LiveTopic, rng: random.Random) -> None:
        nodes = [node.id for node in mirror.tree.nodes()]
        some = rng.choice(nodes) if nodes else None
        kind = rng.random()
        text = f"text {rng.getrandbits(32):08x}"
        if rng.random() < 0.25:
            await self._rarer_command(mirror, rng, some, text)
            return
        try:
            if kind < 0.12:
                when_live = rng.choice(("reject", "steer"))
                turn = await mirror.submit(
                    text, models=["echo"] * rng.randrange(1, 3), when_live=when_live
                )
                self.created.update([turn.user_id, *turn.placeholder_ids])
            elif some is None or kind < 0.4:
                parent = rng.choice([*nodes, None])
                role = rng.choice(("user", "assistant"))
                made = await mirror.create(text, role=role, parent=parent)
                self.created.add(made.message_id)
            elif kind < 0.5:
                self.created.add((await mirror.edit(some, text)).message_id)
            elif kind < 0.6:
                await mirror.update(some, text=text)
            elif kind < 0.7:
                await mirror.update(some, parent=rng.choice(nodes))
            elif kind < 0.82:
                gone = await mirror.delete(some, cascade=rng.random() < 0.3)
                self.deleted.update(gone.deleted)
            elif kind < 0.9:
                await mirror.set_active(some)
            elif kind < 0.95:
                await mirror.rename(text)
            elif kind < 0.955 and mirror.tree.live:
                await mirror.abort(rng.choice(list(mirror.tree.live)))
            elif kind < 0.96:
                self.deleted.update((await mirror.clear()).deleted)
            else:
                await mirror.set_metadata_namespace(rng.choice("abc"), rng.randrange(100))
            self.note("acknowledged")
        except LivetreeError as error:
            self.note(f"refused {error.code}")

    async def _rarer_command(
        self, mirror: LiveTopic, rng: random.Random, some: str | None, text: str
    ) -> None:
        deleted = sorted(self.deleted)
        waiting = [node.id for node in mirror.tree.nodes() if mirror.awaits_input(node.id)]
        kind = rng.random()
        try:
            if kind < 0.3:
                self.restored.update((await mirror.undo()).restored)
            elif kind < 0.45 and deleted:
                back = await mirror.restore(rng.choice(deleted), cascade=rng.random() < 0.5)
                self.restored.update(back.restored)
            elif some is None:
                return
            elif kind < 0.6:
                self.deleted.update((await mirror.delete_group(some)).deleted)
            elif kind < 0.75:
                reserved = await mirror.reserve(some, activate=rng.random() < 0.5)
                self.created.update(reserved.reserved)
            elif kind < 0.85 and waiting:
                turn = await mirror.fill(rng.choice(waiting), text, models=["echo"])
                self.created.update(turn.placeholder_ids)
            else:
                await mirror.retry(some, when_live=rng.choice(("reject", "steer")))
            self.note("rarer acknowledged")
        except LivetreeError as error:
            if error.code == "UNAVAILABLE":
                self.restored |= self.deleted  # it may have happened all the same
            self.note(f"rarer refused {error.code}")

    async def calm_down(self) -> None:
        """End all faults and let everyone finish."""
        self.calm = True
        for link in self.links:
            link.deaf = False
        self.store.heal()
        for turn in range(3000):
            if turn % 10 == 0:
                await self.application.rooms.sweep()
            self.deliver_all()
            await self.settle(4)
            self.time.advance(0.1)
            if self.tasks or any(link.up or link.down for link in self.links):
                continue
            loaded = await self.store.load(TOPIC)
            if loaded.state["live"]:
                continue  # its writer goes on, or its lease ends, or its offer does
            if all(mirror.is_synced and mirror.seq == loaded.seq for mirror in self.mirrors):
                return
        states = [(mirror.is_synced, mirror.seq) for mirror in self.mirrors]
        raise AssertionError(f"not calm: {len(self.tasks)} tasks, mirrors {states}")
