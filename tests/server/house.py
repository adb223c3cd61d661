"""A server in this process, over a real file and real sockets, on a clock that tests turn."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import livetree
from livetree.client import Client
from livetree_server.app import Application, listen, serve
from livetree_server.storage.sqlite import SqliteStore
from livetree_server.topics.rooms import Settings

from tests.conformance.backend import Seed
from tests.conformance.raw_store import RawStore

START = 1_700_000_000_000
HOUR = 60 * 60 * 1000
DAY = 24 * HOUR


class House:
    """
    A server; ``async with`` starts it.

    Args:
        folder: Where its file is.
        seeds: Topics that are in the file before it starts.

    """

    def __init__(
        self,
        folder: Path,
        seeds: Sequence[Seed] = (),
        *,
        settings: Settings | None = None,
        secret: str | None = None,
    ) -> None:
        self.path = folder / "livetree.db"
        self.now = START
        self.url = ""
        self._seeds = seeds
        self._settings = settings
        self._secret = secret
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> House:
        await RawStore(self.path).seed(self._seeds, self.now)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def start(self) -> None:
        """Serve the file."""
        store = await SqliteStore.open(self.path)
        self.application = Application(
            store, clock=lambda: self.now, settings=self._settings, secret=self._secret
        )
        sock = listen("127.0.0.1", 0)
        started = asyncio.Event()
        serving = asyncio.create_task(serve(self.application, sock, started=started))
        self._stack.push_async_callback(_stop, serving)
        await started.wait()
        self.url = f"ws://127.0.0.1:{sock.getsockname()[1]}"

    async def stop(self) -> None:
        """End the clients and the server; `start` serves the file again."""
        await self._stack.aclose()
        self._stack = contextlib.AsyncExitStack()

    async def client(self, **options: Any) -> Client:
        """Connect a client that stays until the server ends."""
        return await self._stack.enter_async_context(livetree.connect(self.url, **options))

    async def pass_time(self, ms: int) -> None:
        """Turn the clock on, and sweep until there is nothing to sweep."""
        self.now += ms
        await self.application.rooms.sweep()
        while await self.application.store.prune(self.now):
            pass

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Look into the file."""
        with closing(sqlite3.connect(self.path)) as database:
            return database.execute(query, values).fetchall()


async def _stop(serving: asyncio.Task[None]) -> None:
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
