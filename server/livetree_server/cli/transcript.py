"""A conversation as lines of a terminal: what was said, what changes, text as it grows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click
import msgspec
from livetree.core import protocol as p
from msgspec import UNSET

from .terminal import clipped, harmless

if TYPE_CHECKING:
    from livetree.live_topic import LiveTopic

__all__ = ["STATES", "Transcript", "speaker"]

SHORT: Final = 70
"""How many characters of a text are enough to know it by."""

STATES: Final = {
    "pending": "to be written",
    "success": "done",
    "error": "ended as an error",
    "paused": "stopped",
}

Op: TypeAlias = p.TextOp | p.PutOp

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def speaker(node: p.Node) -> str:
    """Say who speaks: the role, and the person or model where it is known."""
    who = node.model_id if node.role == "assistant" else node.author
    return f"{node.role} {clipped(who, 40)}" if who else node.role


class Transcript:
    """
    Writes a topic's lines to standard output.

    Text that grows stays on its line until something else is to be said. Of several
    replies that grow at a time one is shown; the others follow when it has ended, or
    when they have.

    """

    def __init__(self, topic: LiveTopic) -> None:
        self._topic = topic
        self._growing: tuple[str, int] | None = None
        """The message and the part whose text the last line ends with."""
        self._at_start = True
        self._offline = False
        self._current: str | None = None
        """The reply that is shown as it grows."""
        self._held: dict[str, list[Op]] = {}
        """What others have grown by meanwhile."""

    def line(self, text: str) -> None:
        """Write a line."""
        self.end()
        click.echo(text)

    def end(self) -> None:
        """End the line that text was growing on, if there is one."""
        if not self._at_start:
            click.echo()
        self._at_start = True
        self._growing = None

    def restart(self) -> None:
        """Forget which replies grow: all is written anew."""
        self.end()
        self._current = None
        self._held.clear()

    def offline(self) -> None:
        """Write that the connection is lost."""
        if not self._offline:
            self.line("-- the connection is lost: trying again")
        self._offline = True

    def online(self) -> None:
        """Write that it is back, and nothing is missing, if it was lost."""
        if self._offline:
            self.line("-- connected again")
        self._offline = False

    def message(self, node: p.Node) -> None:
        """Write a message with its whole text; one that is being written stays open."""
        parts = self._topic.parts(node.id)
        if parts is None:  # its content isn't here
            parts = [{"type": "text", "text": node.preview}]
        for place, part in enumerate(parts):
            self._part(node, place, part)
        if node.status == "pending" and parts:
            self._current = node.id
            return
        if node.status != "success":
            self.line(f"{speaker(node)}: ({STATES[node.status]})")
        elif not parts:
            self.line(f"{speaker(node)}: (empty)")
        self.end()

    def grown(self, message_id: str, ops: Iterable[Op], *, reset: bool) -> None:
        """Write what a reply has grown by, at once or when it is its turn."""
        if reset:
            self._held.pop(message_id, None)
        self._held.setdefault(message_id, []).extend(ops)
        if self._current in (None, message_id):
            if reset:
                self.end()
            self._release(message_id)

    def delta(self, delta: p.Delta) -> None:
        """Write what a commit has changed, after what was written of the replies it ended."""
        over = self._release_ended(delta)
        by = f" by {clipped(delta.cause.by, 40)}" if delta.cause.by else ""
        changes = [*self._put(delta), *self._rest(delta)]
        if changes:
            self.line(f"#{delta.seq} {delta.cause.op}{by}")
        for change in changes:
            self.line(f"  {change}")
        self._go_on(over)

    def passed(self, delta: p.Delta) -> None:
        """Take note of a commit that isn't to be written."""
        self._go_on(self._release_ended(delta))

    # Whose turn it is -------------------------------------------------------------------

    def _release(self, message_id: str) -> None:
        ops = self._held.pop(message_id, [])
        if message_id not in self._topic.tree:
            return
        self._current = message_id
        node = self._topic.node(message_id)
        for op in ops:
            if isinstance(op, p.TextOp):
                self._text(node, op.part, op.text)
            else:
                self.end()  # whatever was there is replaced
                self._part(node, op.part, _decode(op.value))

    def _release_ended(self, delta: p.Delta) -> set[str]:
        over = {put.id for put in delta.put if put.status is not UNSET and put.role is UNSET}
        over.update(delta.drop)
        current = self._current
        for message_id in over & self._held.keys():
            self._release(message_id)
        self._current = current
        return over

    def _go_on(self, over: set[str]) -> None:
        if self._current in over:
            self._current = None
            self.end()
        if self._current is None and self._held:
            self._release(next(iter(self._held)))

    # What changed -----------------------------------------------------------------------

    def _put(self, delta: p.Delta) -> Iterable[str]:
        for put in delta.put:
            if put.id not in self._topic.tree:
                continue  # a later commit, which the mirror has already, took it away
            node = self._topic.node(put.id)
            if put.role is not UNSET:
                said = "(to be written)" if node.status == "pending" else self._short(node)
                yield f"+ {speaker(node)}: {said}".rstrip()
                continue
            if put.data is not UNSET:
                yield f"~ {speaker(node)} now says: {self._short(node)}"
            if put.parent_id is not UNSET:
                yield f"~ {speaker(node)} moved: {self._short(node)}"
            if put.status is not UNSET:
                yield f"~ {speaker(node)}: {STATES[put.status]}"

    def _rest(self, delta: p.Delta) -> Iterable[str]:
        if delta.drop:
            yield f"- {len(delta.drop)} message{'s' if len(delta.drop) > 1 else ''} deleted"
        if "name" in delta.set:
            yield f"~ the topic is called {clipped(delta.set['name'], SHORT)}"
        if "metadata" in delta.set:
            yield "~ the topic's metadata changed"
        new = {put.id for put in delta.put if put.role is not UNSET}
        active = delta.active_node_id
        if delta.cause.op == "topic.setActive" or (delta.drop and active not in new):
            yield f"> {self._shown(active)}"

    def _shown(self, message_id: str | None) -> str:
        if message_id is None:
            return "nothing is selected"
        if message_id not in self._topic.tree:
            return f"{message_id} is selected"
        node = self._topic.node(message_id)
        return f"selected is {speaker(node)}: {self._short(node)}"

    def _short(self, node: p.Node) -> str:
        return clipped(node.preview or self._topic.text(node.id) or "", SHORT)

    # Text -------------------------------------------------------------------------------

    def _part(self, node: p.Node, place: int, part: dict[str, Any]) -> None:
        text = part.get("text")
        if isinstance(text, str):
            self._text(node, place, text, kind=part.get("type"))
        else:
            what = f"{part.get('type')} {part.get('filename') or ''}"
            self.line(f"{speaker(node)}: [{clipped(what, SHORT)}]")

    def _text(self, node: p.Node, place: int, text: str, *, kind: Any = None) -> None:
        if self._growing != (node.id, place):
            self.end()
            if kind is None:
                kind = self._kind(node.id, place)
            label = f"{speaker(node)}, thinking" if kind == "reasoning" else speaker(node)
            click.echo(f"{label}: ", nl=False)
            self._growing = (node.id, place)
            self._at_start = False
        if text := harmless(text):
            click.echo(text, nl=False)
            self._at_start = text.endswith("\n")

    def _kind(self, message_id: str, place: int) -> Any:
        parts = self._topic.parts(message_id) or []
        return parts[place].get("type") if place < len(parts) else "text"
