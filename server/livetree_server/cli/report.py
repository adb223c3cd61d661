"""What became of a file that was imported, told while it is read and in the end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from .terminal import clipped, one_line
from .ways_in import Outcome

__all__ = ["Report"]


class Report:
    """What became of one file: told while it is read, and summed up in the end."""

    def __init__(self, path: Path, strict: bool) -> None:
        self.failure: str | None = None
        self._path = path
        self._strict = strict
        self._refused: list[str] = []
        self._sums = {"imported": 0, "messages": 0, "skipped": 0}
        self._advance: Callable[[int], None] | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show a bar on a terminal, else a line for each conversation."""
        if not (sys.stdout.isatty() and sys.stderr.isatty()):
            yield
            return
        size = self._path.stat().st_size
        with click.progressbar(length=size, label=self._path.name, file=sys.stderr) as bar:
            self._advance = lambda offset: bar.update(offset - bar.pos)
            yield
            if self.failure is None:
                bar.update(size - bar.pos)

    def take(self, outcome: Outcome) -> None:
        """Count what became of a conversation, and show it."""
        kind = outcome["type"]
        if kind == "end":
            return
        if kind == "refused":
            self._refused.append(_place(outcome))
        elif kind == "skipped":
            self._sums["skipped"] += 1
        else:
            self._sums["imported"] += 1
            self._sums["messages"] += outcome["messages"]
        if self._advance is not None:
            self._advance(outcome["offset"])
        elif kind != "refused":  # those are named in the end
            done = "imported" if kind == "topic" else "already there:"
            click.echo(f"{done} {outcome['topic']} {clipped(outcome['name'], 60)}".rstrip())

    @property
    def sound(self) -> bool:
        """Whether all of the file has come in, now or before."""
        return self.failure is None and not self._refused

    def end(self) -> None:
        """Sum up."""
        if self.failure is not None:
            click.echo(f"livetree: {self._path}: {one_line(self.failure)}", err=True)
            if not self._sums["imported"]:
                return
        topics, messages = self._sums["imported"], self._sums["messages"]
        line = f"{self._path}: {_count(topics, 'topic')} imported"
        if topics:
            line += f" with {_count(messages, 'message')}"
        click.echo(
            f"{line}, {self._sums['skipped']:,} already there, {len(self._refused):,} refused"
        )
        for refusal in self._refused:
            click.echo(f"  refused: {refusal}", err=True)
        if self._refused and self._strict and not topics:
            click.echo("  nothing was imported: --strict takes a file whole", err=True)


def _place(outcome: Outcome) -> str:
    reason = one_line(outcome["reason"])
    if reason.startswith(("record ", "line ", "byte ")):
        return reason
    return f"record {outcome['index']}, byte {outcome['offset']}: {reason}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
