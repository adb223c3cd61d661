"""The program as users start it: real processes, ports that are free, data that is thrown away."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

COMMAND = [sys.executable, "-m", "livetree_server.cli"]
SECONDS = 60
"""More than anything here may take, however busy the machine is."""


class Program:
    """
    Starts the program with a home of its own.

    Args:
        home: An empty folder; data is put below it unless a command says otherwise.

    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        self._started = 0

    def environment(self, extra: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "LIVETREE" not in name}
        return {**kept, "HOME": str(self.home), "LIVETREE_DATA": str(self.data), **extra}

    def run(
        self, *arguments: str | Path, text: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            env=self.environment(environment),
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
        )

    @contextlib.contextmanager
    def start(self, *arguments: str | Path, **environment: str) -> Iterator[Running]:
        """Start a command that goes on; it is killed with the block."""
        self._started += 1
        with (self.home / f"stderr-{self._started}").open("w+", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [*COMMAND, *map(str, arguments)],
                env=self.environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
            )
            assert process.stdout is not None
            with process.stdout:
                try:
                    yield Running(process, process.stdout, Path(errors.name))
                finally:
                    process.kill()
                    process.wait()

    @contextlib.contextmanager
    def serving(self, *options: str | Path, **environment: str) -> Iterator[Running]:
        """Serve on a free port; the block begins when the server is ready."""
        with self.start("serve", "--port", "0", *options, **environment) as server:
            ready = server.line()
            address = re.search(r"serves (http://\S+)", ready)
            assert address is not None, f"it said {ready!r} and {server.complaints()!r}"
            server.url = address[1]
            yield server


class Running:
    """A process that goes on."""

    def __init__(self, process: subprocess.Popen[str], output: IO[str], errors: Path) -> None:
        self.process = process
        self.url = ""
        self._output = output
        self._errors = errors

    def line(self) -> str:
        """Wait for a line of its output; empty if it has ended."""
        return self._output.readline()

    def lines_until(self, *words: str) -> list[str]:
        """Read on until one line holds all of these words; returns what was read."""
        lines: list[str] = []
        while line := self.line():
            lines.append(line.rstrip("\n"))
            if all(word in line for word in words):
                return lines
        raise AssertionError(f"no {words} in {lines}; {self.complaints()}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def complaints(self) -> str:
        """Return what it has written to standard error so far."""
        return self._errors.read_text("utf-8")


def sentence(done: subprocess.CompletedProcess[str], *, status: int = 1) -> str:
    """Demand that a command failed in one sentence, and return it."""
    assert (done.returncode, done.stdout) == (status, ""), done
    lines: Sequence[str] = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("livetree: "), done.stderr
    return lines[0].removeprefix("livetree: ")
