"""The server as a process: started, killed and started again where its clients look for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = ("livetree_server.cli",)
ROOT = Path(__file__).parents[2]
SECONDS = 60
"""More than anything here may take, however busy the machine is."""


class Server:
    """
    A server that comes back on the same port with the same data.

    Args:
        home: An empty folder.
        program: The module to run and what comes before its command.

    Leaving ``async with`` kills what runs.

    """

    def __init__(self, home: Path, *, program: Sequence[str] = PROGRAM) -> None:
        self.home = home
        self.data = home / "data"
        self.database = self.data / "livetree.db"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None
        self._program = program
        self._errors = home / "stderr"

    async def spawn(self) -> asyncio.subprocess.Process:
        """Start it, without waiting until it serves."""
        with self._errors.open("a") as errors:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *self._program),
                *("serve", "--port", str(self.port), "--data", str(self.data)),
                cwd=ROOT,
                env=environment(self.home),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        return self.process

    async def start(self) -> None:
        """Start it; it serves when this returns."""
        process = await self.spawn()
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            line = await process.stdout.readline()
        assert b" serves " in line, f"it said {line!r} and {self.complaints()}"

    def kill(self) -> None:
        """Have the kernel end it at once; it may be dead already."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()

    async def wait(self) -> int:
        """Wait until it has ended; returns its exit status."""
        assert self.process is not None
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()

    async def stop(self) -> int:
        """Ask it to end, and wait; returns its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return await self.wait()

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        await self.wait()

    async def statistics(self) -> dict[str, Any]:
        """Ask it for its figures."""
        return await asyncio.to_thread(self._statistics)

    def _statistics(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/readyz", timeout=SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    async def until(self, **figures: int) -> None:
        """Wait until its figures are these."""
        async with asyncio.timeout(SECONDS):
            while (found := await self.statistics()) and not figures.items() <= found.items():
                await asyncio.sleep(0.05)

    @property
    def resident_bytes(self) -> int:
        """How much memory it has now."""
        assert self.process is not None
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def open_sockets(self) -> int:
        """How many sockets it holds."""
        assert self.process is not None
        found = 0
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it may be closed by now
                found += os.readlink(descriptor).startswith("socket:")
        return found

    def complaints(self) -> str:
        """Return what it has written to standard error, over all its lives."""
        return self._errors.read_text("utf-8")


def environment(home: Path) -> dict[str, str]:
    """Return what the program may know of the machine: nothing of this user's own."""
    kept = {name: value for name, value in os.environ.items() if "LIVETREE" not in name}
    return {**kept, "HOME": str(home)}


def free_port() -> int:
    """
    Find a port that stays this server's while it is down.

    Not one of those that the kernel gives to whoever connects: a client that tries such a port
    again and again is one day given the same one, and is connected to itself.

    """
    chance = random.SystemRandom()  # so that runs side by side don't meet
    for _ in range(1_000):
        port = chance.randrange(10_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("there is no free port")
