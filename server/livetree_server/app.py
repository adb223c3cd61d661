"""Wires the rooms of the house together: store, topics, hub, gateway, HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, cast

import uvicorn
from livetree.core.errors import TooLarge
from livetree.core.ids import uuid7
from livetree.formats import FormatError

from .auth import Authenticator
from .gateway.endpoint import Endpoint, Gateway
from .gateway.requests import Requests
from .http.door import Door
from .http.site import make_site
from .hub.hub import Hub
from .importing import Importer
from .topics.ports import Store
from .topics.rooms import Rooms, Settings

__all__ = ["Application", "FileChunks", "listen", "serve"]

log = logging.getLogger("livetree")

MAX_IMPORT_BYTES = 4 * 1024**3
"""The largest file that may be brought in over HTTP."""


class Application:
    """
    The server without a socket: everything behind the door.

    Args:
        store: An open store; the application closes it.
        secret: The HS256 secret, None for one local user.
        origins: Browser origins that may connect besides the server's own.
        settings: Bounds and times of the rooms.
        clock: Milliseconds since the epoch.
        ids: Makes ids that nobody else makes.

    Use as an async context manager: leaving it carries out what is queued.

    """

    def __init__(
        self,
        store: Store,
        *,
        secret: str | None = None,
        origins: frozenset[str] = frozenset(),
        settings: Settings | None = None,
        clock: Callable[[], int] | None = None,
        ids: Callable[[], str] | None = None,
    ) -> None:
        clock, ids = clock or now_ms, ids or new_id
        self.store = store
        self.version = package_version("livetree")
        self.auth = Authenticator(secret)
        self.hub = Hub()
        self.rooms = Rooms(store, self.hub, clock=clock, new_id=ids, settings=settings)
        self.hub.listener = self.rooms
        self.importer = Importer(self.rooms)
        self.gateway = Gateway(
            hub=self.hub,
            requests=Requests(self.rooms, self.hub, self.rooms.spawn),
            auth=self.auth,
            version=self.version,
            clock=clock,
            new_id=ids,
            spawn=self.rooms.spawn,
            origins=origins,
        )
        self.site = make_site(
            auth=self.auth, version=self.version, ready=self._ready, bring_in=self._bring_in
        )
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Application:
        await self.rooms.__aenter__()
        self._ticker = asyncio.create_task(
            self.hub.tick_for_ever(self.gateway.overloaded), name="heartbeat"
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        await self.rooms.__aexit__(*exc)
        await self.store.close()

    def endpoint(
        self, config: Any, server_state: Any, app_state: Any, _loop: Any = None
    ) -> Endpoint:
        """Make the protocol of one websocket; uvicorn calls it as its ``ws`` class."""
        return Endpoint(self.gateway, server_state.connections)

    async def _ready(self) -> dict[str, Any]:
        await self.store.topics(cursor=None, limit=1, name="")
        return {**self.hub.statistics(), **self.rooms.statistics()}

    async def _bring_in(
        self, body: AsyncIterator[bytes], name: str, subject: str, strict: bool
    ) -> AsyncIterator[dict[str, Any]]:
        """Take a whole file to disk before anything of it is read: half a file imports nothing."""
        with tempfile.TemporaryDirectory(prefix="livetree-import-") as folder:
            path = Path(folder) / "file"
            try:
                await _keep(body, path)
                chunks = FileChunks(path)
                async for each in self.importer.bring_in(chunks, name, subject, strict=strict):
                    yield each
            except (FormatError, TooLarge) as error:
                yield {"type": "error", "reason": str(error)}
            except OSError as error:
                yield {"type": "error", "reason": f"the server can't keep the file: {error}"}


async def _keep(body: AsyncIterator[bytes], path: Path) -> None:
    """Write an upload to a file; raises `TooLarge` and OSError."""
    size = 0
    with path.open("wb") as file:
        async for chunk in body:
            size += len(chunk)
            if size > MAX_IMPORT_BYTES:
                raise TooLarge(f"the file is larger than {MAX_IMPORT_BYTES} bytes")
            file.write(chunk)


class FileChunks:
    """A file's bytes in chunks, from the start each time."""

    def __init__(self, path: Path, size: int = 256 * 1024) -> None:
        self._path = path
        self._size = size
        self.read = 0

    def __iter__(self) -> Any:
        self.read = 0
        with self._path.open("rb") as file:
            while chunk := file.read(self._size):
                self.read += len(chunk)
                yield chunk


def now_ms() -> int:
    """Return the time in ms since the epoch, UTC."""
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """Return a time-ordered id that nobody else makes."""
    return uuid7(now_ms(), os.urandom(10))


def listen(host: str, port: int) -> socket.socket:
    """Bind the port at once, so that a port in use is known before anything starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(4096)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process before the drain."""

    def __init__(self, config: uvicorn.Config, started: asyncio.Event | None) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets=sockets)
        if self._started is not None:
            self._started.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Leave signals alone; `serve` sets what they do."""
        yield


async def serve(
    application: Application, sock: socket.socket, *, started: asyncio.Event | None = None
) -> None:
    """
    Serve until SIGTERM or SIGINT, then finish what is being done and return.

    Args:
        application: Not yet entered.
        sock: A listening socket.
        started: Set once requests are answered.

    """
    config = uvicorn.Config(
        application.site,
        http=Door,
        ws=cast(Any, application.endpoint),
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
    )
    server = _Server(config, started)
    loop = asyncio.get_running_loop()
    handled: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, server.handle_exit, number, None)
            handled.append(number)
    try:
        async with application:
            serving = asyncio.create_task(server.serve(sockets=[sock]))
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:
                server.should_exit = True
                await serving
                raise
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run on the fastest loop that is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)
