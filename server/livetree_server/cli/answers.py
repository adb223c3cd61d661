"""The answers to one prompt, shown while they are written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import click
from livetree import changes as c
from livetree.core.errors import LivetreeError
from livetree.core.protocol import Node
from livetree.live_topic import LiveTopic

from .terminal import clipped
from .transcript import STATES, Transcript

__all__ = ["Answers"]


class Answers:
    """The replies to one prompt, until each has ended."""

    def __init__(self, live: LiveTopic, replies: Sequence[str]) -> None:
        self._live = live
        self._replies = replies
        self._transcript = Transcript(live)
        self._shown: set[str] = set()
        self._unserved: list[str] = []

    async def follow(self, changes: c.Changes, wait: float) -> None:
        """Show what is written; after `wait` seconds give up what nobody has begun."""
        loop = asyncio.get_running_loop()
        deadline: float | None = loop.time() + wait
        # The mirror is ahead of what is told of it.
        while len(changes) or self._pending():
            if deadline is not None and not self._waiting():
                deadline = None
            try:
                async with asyncio.timeout_at(deadline):
                    change = await anext(changes)
            except TimeoutError:
                deadline = None
                await self._give_up()
            except StopAsyncIteration:
                return
            else:
                changes = self._tell(change, changes)
        self._transcript.end()

    def _tell(self, change: c.Change, changes: c.Changes) -> c.Changes:
        """Show a change; returns what is to be read on."""
        match change:
            case c.Streamed(message_id=message_id) if message_id in self._replies:
                self._shown.add(message_id)
                self._transcript.grown(message_id, change.ops, reset=change.reset)
            case c.Committed(delta=delta):
                self._transcript.passed(delta)
            case c.Reset() | c.Skipped():
                self._transcript.restart()
                changes = self._live.changes()
                for message_id in self._replies:
                    if self._live.parts(message_id):
                        self._shown.add(message_id)
                        self._transcript.message(self._live.node(message_id))
            case c.Offline():
                self._transcript.offline()
            case c.Synced():
                self._transcript.online()
        return changes

    def _pending(self) -> list[str]:
        tree = self._live.tree
        return [each for each in self._replies if each in tree and _pends(tree.node(each))]

    def _waiting(self) -> list[str]:
        """Return the replies that nobody has claimed yet."""
        return [each for each in self._pending() if not self._live.tree.live.get(each)]

    async def _give_up(self) -> None:
        for message_id in self._waiting():
            self._unserved.append(message_id)
            # Else it would keep the topic busy until the server gives it up, too.
            with contextlib.suppress(LivetreeError):
                await self._live.abort(message_id)

    async def check(self) -> None:
        """Show what was not streamed, and fail unless every reply is a success."""
        failed: list[str] = []
        for message_id in self._replies:
            if message_id not in self._live.tree:
                failed.append("an answer was deleted before it was whole")
                continue
            node = self._live.node(message_id)
            model = clipped(node.model_id or "", 60)
            if message_id in self._unserved and node.status != "success":
                failed.append(f"no bot has begun to answer as {model!r}: start one that serves it")
            elif node.status == "success" and message_id not in self._shown:
                await self._live.content([message_id])
                self._transcript.message(node)
            elif node.status != "success":
                failed.append(f"the answer of {model!r} {STATES[node.status]}")
        if failed:
            raise click.ClickException("; ".join(failed))


def _pends(node: Node) -> bool:
    return node.status == "pending"
