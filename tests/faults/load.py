"""Clients that write into two topics at once, and a hand on the trigger."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from livetree.client import Client
from livetree.core.content import text_of
from livetree.live_topic import LiveTopic

from tests.faults.clock import hurried
from tests.faults.database import check_database, read_topic
from tests.faults.process import SECONDS, Server
from tests.faults.writer import Writer
from tests.helpers import assert_equal_everywhere, canonical_form, check_invariants

CLIENTS = 3
TOPICS = ("north", "south")


class Load:
    """
    Clients that write into two topics, and a hand on the trigger.

    Args:
        server: A running server without topics.
        seed: Decides what is written.

    """

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.rng = random.Random(seed)
        self.clients: list[Client] = []
        self.writers: list[Writer] = []
        self.acknowledged = 0
        self._since = 0
        self._forms: dict[str, dict[str, Any]] = {}
        self._trigger: tuple[int, Callable[[], None]] | None = None
        self._fired = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have them write until the block ends."""
        async with contextlib.AsyncExitStack() as stack:
            for number in range(CLIENTS):
                client = hurried(
                    self.server.url, client=f"client {number}", random_bytes=self.rng.randbytes
                )
                self.clients.append(await stack.enter_async_context(client))
                for topic in TOPICS:
                    if number == 0:
                        await client.create_topic(topic, topic_id=topic)
                    live = await stack.enter_async_context(client.open(topic))
                    name = f"{number} in {topic}"
                    rng = random.Random(self.rng.getrandbits(32))
                    self.writers.append(Writer(name, client, live, rng, self._count))
            self._tasks = [asyncio.create_task(writer.write()) for writer in self.writers]
            try:
                yield
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def _count(self) -> None:
        self.acknowledged += 1
        self._since += 1
        if self._trigger is not None and self._since >= self._trigger[0]:
            _, act = self._trigger
            self._trigger = None
            act()
            self._fired.set()

    async def after(self, count: int, act: Callable[[], None]) -> None:
        """Act with the acknowledgement of the `count`th command from now, at once."""
        self._since = 0
        self._fired.clear()
        self._trigger = (count, act)
        fired = asyncio.create_task(self._fired.wait())
        async with asyncio.timeout(SECONDS):
            await asyncio.wait([fired, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        self.raise_what_failed()

    def raise_what_failed(self) -> None:
        """A writer never ends by itself, but of an error."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def finish(self) -> None:
        """Let every writer end its last command, and keep what every mirror has then."""
        for writer in self.writers:
            writer.stopping = True
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*self._tasks)
            for writer in self.writers:
                info = await self.clients[0].topic(writer.live.id)
                await writer.live.wait_seq(info.seq)
                await writer.live.wait_synced()
                self._forms[writer.name] = await whole(writer.live)
                assert writer.live.statistics()["drifts"] == 0

    def check(self, database: sqlite3.Connection) -> None:
        """Demand that the database is sound and has all that was acknowledged, once."""
        topics = check_database(database)
        stored = {row[0] for row in database.execute("SELECT mutation FROM mutation")}
        for tree, _ in topics.values():
            texts = Counter(text_of(node.data) for node in tree.nodes())  # type: ignore[arg-type]
            assert [text for text, count in texts.items() if count > 1] == [], "said twice"
        for writer in self.writers:
            writer.check(*topics[writer.live.id], stored)

    def check_mirrors(self, database: sqlite3.Connection) -> None:
        """Demand that every mirror had what the database has."""
        for topic in TOPICS:
            mirrors = {writer.name for writer in self.writers if writer.live.id == topic}
            assert len(mirrors) == CLIENTS
            forms = {name: self._forms[name] for name in mirrors}
            assert_equal_everywhere(**{"the database": read_topic(database, topic)}, **forms)


async def whole(live: LiveTopic) -> dict[str, Any]:
    """Return a mirror's form with all its content."""
    check_invariants(live.tree)
    nodes = await live.content([node.id for node in live.tree.nodes()])
    return canonical_form(live.tree, {node.id: node.data for node in nodes})  # type: ignore[misc]
