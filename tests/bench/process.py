"""Servers as processes of their own, and what they cost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def running(*command: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends; it begins when the port answers."""
    process = subprocess.Popen([sys.executable, *command], cwd=Path(__file__).parents[2])
    try:
        end = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command} does not serve")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def livetree(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a livetree server over a folder."""
    port = free_port()
    command = ("-m", "livetree_server.cli", "serve", "--data", str(folder), "--port", str(port))
    with running(*command, port=port) as process:
        yield process, port


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_kib(pid: int) -> int:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS")


async def fanout_limit() -> None:
    """
    Serve the limit of the fan-out: prebuilt bytes to every transport, nothing else.

    The first connection drives: each byte that it sends is one event to all others.

    """
    port = int(sys.argv[1])
    frame = b"\x81\x7e" + (139).to_bytes(2, "big") + b"x" * 139
    writers: list[asyncio.Transport] = []

    class Limit(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.Transport, transport)
            writers.append(self.transport)

        def connection_lost(self, _: Exception | None) -> None:
            writers.remove(self.transport)

        def data_received(self, data: bytes) -> None:
            for _ in data:
                for transport in writers:
                    if transport is not self.transport:
                        transport.write(frame)
            self.transport.write(data)

    server = await asyncio.get_running_loop().create_server(Limit, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(fanout_limit())
