"""A network in between that loses connections, or only their bytes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Literal

CHUNK = 16 * 1024


class Proxy:
    """
    Passes TCP connections on to a server, as long as it likes.

    Args:
        port: Where the server listens.
        rng: Decides when a connection is cut, in the middle of what it was sent.
        cuts: How often that happens, of all chunks that pass; 0 is never.

    Attributes:
        calm: Set to cut nothing more.
        cut_count: How many were cut so far.
        bytes_down: How much the server has sent, over all connections.

    """

    def __init__(self, port: int, *, rng: random.Random | None = None, cuts: float = 0.0) -> None:
        self.calm = False
        self.cut_count = 0
        self.bytes_down = 0
        self._port = port
        self._rng = rng or random.Random(0)
        self._cuts = cuts
        self._links: set[_Link] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"ws://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut_all()
        while self._links:
            await asyncio.sleep(0.01)

    def cut_all(self) -> None:
        """Cut every connection that there is."""
        for link in list(self._links):
            link.cut()

    def mute_all(self, *, up: bool = True, down: bool = True) -> None:
        """Swallow from now on what comes on these connections, and tell nobody."""
        for link in self._links:
            link.mute = {"up": up, "down": down}

    def cut_one(self) -> None:
        """Cut one of the connections, if there is any."""
        if self._links:
            link = self._rng.choice(sorted(self._links, key=lambda each: each.number))
            link.cut()
            self.cut_count += 1

    def draw(self) -> bool:
        """Decide whether the chunk at hand is the last of its connection."""
        if self.calm or self._rng.random() >= self._cuts:
            return False
        self.cut_count += 1
        return True

    def part_of(self, data: bytes) -> bytes:
        """Return as much of a chunk as still arrives."""
        return data[: self._rng.randrange(len(data))]

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run(self._port)
        finally:
            self._links.discard(link)


class _Link:
    count = 0

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        _Link.count += 1
        self.number = _Link.count
        self.mute = {"up": False, "down": False}
        self._proxy = proxy
        self._reader = reader
        self._writers = [writer]

    async def run(self, port: int) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            self.cut()
            return
        self._writers.append(writer)
        if self._writers[0].is_closing():  # it was cut meanwhile
            self.cut()
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump("up", self._reader, writer))
                group.create_task(self._pump("down", reader, self._writers[0]))
        finally:
            self.cut()

    async def _pump(
        self, way: Literal["up", "down"], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if way == "down":
                    self._proxy.bytes_down += len(data)
                if self.mute[way]:
                    continue
                if self._proxy.draw():
                    writer.write(self._proxy.part_of(data))
                    self.cut()
                    return
                writer.write(data)
                await writer.drain()
            # The other side may have a last word.
            if not self.mute[way] and not writer.is_closing():
                writer.write_eof()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
