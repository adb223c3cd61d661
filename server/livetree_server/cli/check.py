"""``livetree check``: whether a database holds together, and what a repair makes of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..config import Config
from . import data as data_directory
from .terminal import one_line

if TYPE_CHECKING:
    from ..storage.checking import Checker, Finding, Passed

__all__ = ["check"]

_SHOW_SECONDS: Final = 0.2
"""How far apart the moments are at which progress is shown."""


class _Unreadable(click.ClickException):
    exit_code = 2  # 1 says that it was read, and what was found


@click.command(
    epilog="""
    \b
    Examples:
      livetree check
      livetree check --repair --data ./chats

    Stop the server first, and make a copy of the directory before a repair. The exit
    status is 0 if all is sound, 1 if something is wrong, and 2 if there is no looking
    or the disk is full: then nothing is lost, and it can be repeated.
    """
)
@click.option("--repair", is_flag=True, help="Mend what can be mended, and check again.")
@data_directory.option
def check(repair: bool, data: Path | None) -> int:
    """
    Look a whole database over, and mend it.

    Each fault is told with its topic and the old value. Without --repair nothing is
    changed.
    """
    path = Config.read(data=data).data / data_directory.DATABASE
    if not path.is_file():
        raise _Unreadable(f"there is no database {path}: name its directory with --data")
    from ..app import new_id, now_ms
    from ..storage.checking import Checker
    from ..storage.files import StoreRefused

    try:
        with Checker.open(path, clock=now_ms, new_id=new_id) as checker:
            return _run(checker, repair)
    except StoreRefused as refusal:
        raise _Unreadable(str(refusal)) from refusal


def _run(checker: Checker, repair: bool) -> int:
    count = checker.count()
    first = _Round(count, "checked")
    first.follow(checker.repair() if repair else checker.check())
    faults = _count(first.faults, "fault") if first.faults else "no faults"
    told = f"{_count(first.topics, 'topic')} with {_count(first.messages, 'message')}: {faults}"
    if not repair or not first.faults:
        click.echo(told)
        return 1 if first.faults else 0
    again = _Round(count, "checked again", "still there: ")
    again.follow(checker.check())
    if again.faults:
        left = f"{again.faults:,} can't be repaired"
        click.echo(f"{told}, of which {left}: restore it from a backup")
        return 1
    click.echo(f"{told}, all of them repaired")
    return 0


class _Round:
    """One way through the database: tells the faults as they come, and how far it is."""

    def __init__(self, count: int, what: str, prefix: str = "") -> None:
        self.faults = 0
        self.topics = 0
        self.messages = 0
        self._count = count
        self._what = what
        self._prefix = prefix
        self._shown_at = 0.0
        self._is_shown = False
        self._on_terminal = sys.stderr.isatty()

    def follow(self, told: Iterable[Finding | Passed]) -> None:
        """Take all that is told."""
        from ..storage.checking import Finding

        self._show()  # what comes first, SQLite's own check, may take its time
        for each in told:
            if isinstance(each, Finding):
                self.faults += 1
                self._clear()
                click.echo(one_line(f"{self._prefix}{each}"))
            else:
                self.topics += 1
                self.messages += each.messages
                self._show()
        self._clear()

    def _show(self) -> None:
        now = time.monotonic()
        if self._on_terminal and now - self._shown_at >= _SHOW_SECONDS:
            self._shown_at, self._is_shown = now, True
            line = f"{self.topics:,} of {self._count:,} topics {self._what}"
            click.echo(f"\r{line}\x1b[K", nl=False, err=True)

    def _clear(self) -> None:
        if self._is_shown:
            self._is_shown = False
            click.echo("\r\x1b[K", nl=False, err=True)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
