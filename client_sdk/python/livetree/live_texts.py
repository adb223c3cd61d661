"""The live replies of a mirror: their text as it comes, and where some is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

from .changes import Streamed
from .core import protocol as p
from .core.content import merge_data, parts_checksum
from .core.live import LiveReply
from .core.tree import Tree

__all__ = ["LiveTexts"]

HELD_BYTES: Final = 4 * 1024 * 1024
"""How much live text is kept whose writer isn't known yet."""

FRAME_BYTES: Final = 200
"""What a frame costs beside its text, about."""

_encode = msgspec.json.encode


class LiveTexts:
    """
    What is known of the replies that are being written.

    Attributes:
        replies: The text as it is here, by message.
        doubted: Replies of which something is missing. Until their text comes whole,
            they stay as they are.

    """

    def __init__(self) -> None:
        self.replies: dict[str, LiveReply] = {}
        self.doubted: set[str] = set()
        self._asked_about: set[str] = set()
        self._held: list[p.Stream] = []
        self._held_bytes = 0
        self._unheld: set[str] = set()

    def load(self, live: Iterable[p.LiveText]) -> None:
        """Begin anew with what a snapshot has; frames that are held may still follow it."""
        self.replies = {each.message_id: LiveReply.of(each) for each in live}
        self.doubted.clear()
        self._unheld.clear()

    def take(self, frame: p.Stream, tree: Tree | None) -> list[Streamed]:
        """Take ops, now or, with a writer whose claim the tree hasn't seen, after that."""
        if tree is None or frame.epoch > tree.seq:
            self._hold(frame)
            return []
        if tree.live.get(frame.message_id) != frame.epoch:
            return []  # of a writer that was replaced, or of a reply that has ended
        return self._follow(frame)

    def follow(self, tree: Tree, rewritten: Iterable[str] = ()) -> list[Streamed]:
        """
        Bring the replies in line with the tree's, and take what was held for them.

        Of a reply that a command has rewritten, nobody goes on with what was streamed.

        """
        gone = [each for each in self.replies if each not in tree.live]
        for message_id in (*gone, *rewritten):
            self.replies.pop(message_id, None)
        self.doubted &= tree.live.keys()
        known = [frame for frame in self._held if frame.epoch <= tree.seq]
        if known:
            self._held = [frame for frame in self._held if frame.epoch > tree.seq]
            self._held_bytes = sum(map(_size, self._held))
        for message_id in [each for each in self._unheld if tree.live.get(each)]:
            self._unheld.remove(message_id)
            self.doubted.add(message_id)
        return [change for frame in known for change in self.take(frame, tree)]

    def written(self, node: p.Node | None, checksum: int) -> Raw | None:
        """Return the data of a reply that ended, if what was streamed here is all of it."""
        reply = None if node is None else self.replies.get(node.id)
        if node is None or reply is None or not isinstance(node.data, Raw):
            return None
        parts = reply.parts()
        if parts_checksum(parts) != checksum:
            return None
        return Raw(merge_data(bytes(node.data), _encode({"parts": parts})))

    def ask(self) -> dict[str, tuple[int, int]]:
        """Return what is here, for ``streams``; what is missing comes with the answer."""
        self._asked_about = set(self.doubted)
        positions = {key: (reply.epoch, reply.n) for key, reply in self.replies.items()}
        # Of no epoch, so that the whole text comes.
        return positions | dict.fromkeys(self.doubted, (0, 0))

    def answered(self) -> None:
        """Take note that all that was asked for has come."""
        self.doubted -= self._asked_about
        self._asked_about = set()

    def drop_held(self) -> None:
        """Forget the frames that wait: what they wait for isn't coming."""
        self._held.clear()
        self._held_bytes = 0
        self._unheld.clear()

    @property
    def held(self) -> int:
        """How many frames wait for their writer's claim."""
        return len(self._held)

    def _hold(self, frame: p.Stream) -> None:
        if self._held_bytes < HELD_BYTES:
            self._held.append(frame)
            self._held_bytes += _size(frame)
        else:
            self._unheld.add(frame.message_id)

    def _follow(self, frame: p.Stream) -> list[Streamed]:
        if frame.message_id in self.doubted and not frame.reset:
            return []
        reply = self.replies.get(frame.message_id)
        if reply is None or reply.epoch != frame.epoch:
            # A new writer goes on where the last one ended.
            n, parts = (reply.n, reply.parts()) if reply is not None else (0, [])
            if not frame.reset and frame.first != n + 1:
                self.doubted.add(frame.message_id)
                return []
            reply = LiveReply(frame.epoch, n, parts)
        before = reply.n
        if not reply.follow(frame):
            self.doubted.add(frame.message_id)
            return []
        self.replies[frame.message_id] = reply
        self.doubted.discard(frame.message_id)
        if not frame.reset and reply.n == before:
            return []
        return [Streamed(frame.message_id, frame.epoch, frame.to, frame.ops, frame.reset)]

    def __repr__(self) -> str:
        return f"<LiveTexts {len(self.replies)} doubted={len(self.doubted)} held={self.held}>"


def _size(frame: p.Stream) -> int:
    texts = (op.text if isinstance(op, p.TextOp) else memoryview(op.value) for op in frame.ops)
    return FRAME_BYTES + sum(map(len, texts))
