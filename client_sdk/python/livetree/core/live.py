"""The text of a reply being written: numbered ops, and what a viewer missed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from .canonical import check_json
from .content import MAX_DATA_BYTES
from .errors import InvalidOperation, TooLarge, Validation
from .protocol import LiveText, Op, PutOp, Stream, TextOp

__all__ = ["MAX_OPS", "MAX_PARTS", "LiveReply"]

MAX_PARTS: Final = 1000
"""The most parts of one reply."""

MAX_OPS: Final = 1_000_000
"""The most ops of one reply: each leaves an entry in the log, even one that adds no text."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def _text_size(text: str) -> int:
    """Return the bytes of a text in JSON, without its quotes."""
    return len(_encode(text)) - 2


class _Part:
    """One part: its fields, and its text kept as pieces so that appending is cheap."""

    __slots__ = ("fields", "length", "pieces", "size")

    def __init__(self, fields: dict[str, Any]) -> None:
        text = fields.get("text")
        self.fields = fields
        self.size = len(_encode(fields))
        self.pieces: list[str] | None = [text] if isinstance(text, str) else None
        self.length = len(text) if isinstance(text, str) else 0

    def append(self, text: str) -> None:
        assert self.pieces is not None
        self.pieces.append(text)
        self.length += len(text)
        self.size += _text_size(text)

    def text(self) -> str:
        pieces = self.pieces or []
        if len(pieces) > 1:
            pieces[:] = ["".join(pieces)]
        return pieces[0] if pieces else ""

    def text_after(self, length: int) -> str:
        """Return the text behind the first `length` characters, without joining all of it."""
        missing = self.length - length
        found: list[str] = []
        for piece in reversed(self.pieces or []):
            if missing <= 0:
                break
            found.append(piece if len(piece) <= missing else piece[-missing:])
            missing -= len(piece)
        return "".join(reversed(found))

    def value(self) -> dict[str, Any]:
        return self.fields if self.pieces is None else {**self.fields, "text": self.text()}


_NEW_TEXT_SIZE: Final = len(_encode({"type": "text", "text": ""}))


class LiveReply:
    """
    A reply as far as it is written, by one epoch.

    Args:
        epoch: The `seq` of the writer's claim.
        n: The number of the last op that `parts` already hold.
        parts: What is there to begin with.

    The accumulated parts are the buffer: for each op the text length before it is
    known, so `tail` gives exactly what is missing, however long a viewer was away.

    """

    __slots__ = ("_first", "_log", "_parts", "epoch", "n", "size")

    def __init__(self, epoch: int, n: int = 0, parts: Iterable[dict[str, Any]] = ()) -> None:
        self.epoch = epoch
        self.n = n
        self._parts = [_Part(dict(part)) for part in parts]
        # Of op first + i: the part it touched, and the text length before; -1 for a put.
        self._log: list[tuple[int, int]] = []
        self._first = n + 1
        self.size = sum(part.size for part in self._parts)

    @classmethod
    def of(cls, live: LiveText) -> LiveReply:
        """Return the reply that a snapshot describes."""
        return cls(live.epoch, live.n, [_decode(part) for part in live.parts])

    def take(self, first: int, ops: Sequence[Op]) -> list[Op]:
        """
        Append the ops numbered from `first`; those that are here already are dropped.

        Returns:
            The ops that were new; with none the call has changed nothing.

        Raises:
            InvalidOperation: If ops between are missing; the details say which is awaited.
            Validation: If an op names a part that isn't there, or can't take text.
            TooLarge: If the reply would exceed a message's size, `MAX_PARTS` or `MAX_OPS`.

        All or nothing: a refused call has changed nothing.

        """
        if first > self.n + 1:
            raise InvalidOperation(
                f"ops {self.n + 1} to {first - 1} are missing: send them first", received=self.n
            )
        fresh = list(ops[self.n + 1 - first :])
        self._check(fresh)
        for op in fresh:
            self._apply(op)
        return fresh

    def follow(self, frame: Stream) -> bool:
        """
        Take a ``stream`` frame as a viewer.

        Returns:
            False if ops between are missing or the frame is of another epoch: what was
            missed must be asked for.

        """
        if frame.epoch != self.epoch:
            return False
        if frame.reset:
            self._parts.clear()
            self.size = 0
        elif frame.to <= self.n:
            return True
        elif frame.first != self.n + 1:
            return False
        for op in frame.ops:
            self._apply(op)
        # Merged ops are fewer than their numbers; a viewer serves no tails.
        self.n = frame.to
        self._first = self.n + 1
        self._log.clear()
        return True

    def tail(self, after: int) -> list[Op]:
        """
        Return ops that lead from the state after op `after` to now, merged.

        Its size and cost are those of what was missed. `after` must be between the
        first op known here and `n`; see `has`.

        """
        touched: dict[int, int] = {}
        for index, length in self._log[after + 1 - self._first :]:
            if length < 0 or index not in touched:
                touched[index] = length
        ops: list[Op] = []
        for index in sorted(touched):
            part, length = self._parts[index], touched[index]
            if length < 0:
                ops.append(PutOp(index, Raw(_encode(part.value()))))
            else:
                ops.append(TextOp(index, part.text_after(length)))
        return ops

    def has(self, epoch: int, n: int) -> bool:
        """Tell whether a viewer at this position can be given a tail."""
        return epoch == self.epoch and self._first - 1 <= n <= self.n

    def whole(self) -> list[Op]:
        """Return ops that make the reply from nothing."""
        return [PutOp(index, Raw(_encode(part.value()))) for index, part in enumerate(self._parts)]

    def parts(self) -> list[dict[str, Any]]:
        """Return the parts as they are now."""
        return [part.value() for part in self._parts]

    def snapshot(self, message_id: str) -> LiveText:
        """Return the reply as a snapshot carries it."""
        parts = [Raw(_encode(part)) for part in self.parts()]
        return LiveText(message_id=message_id, epoch=self.epoch, n=self.n, parts=parts)

    def _check(self, ops: Sequence[Op]) -> None:
        count, size = len(self._parts), self.size
        # Of the parts that these ops touch: the bytes, and whether they take text.
        touched: dict[int, tuple[int, bool]] = {}

        def part_at(index: int) -> tuple[int, bool]:
            if index in touched or index == count:
                return touched.get(index, (0, True))
            part = self._parts[index]
            return part.size, part.pieces is not None

        for op in ops:
            if op.part > count:
                raise Validation(f"op names part {op.part}, but the next part is {count}")
            before, takes_text = part_at(op.part)
            if isinstance(op, PutOp):
                value = check_json(op.value, "a part", max_bytes=MAX_DATA_BYTES)
                if not isinstance(value, dict) or not isinstance(value.get("type"), str):
                    raise Validation("a part is not an object with a type")
                takes_text = isinstance(value.get("text"), str)
                if value["type"] == "text" and not takes_text:
                    raise Validation("a text part has no text")
                after = len(_encode(value))
            elif not takes_text:
                raise Validation(f"part {op.part} has no text to append to")
            else:
                after = (before or _NEW_TEXT_SIZE) + _text_size(op.text)
            touched[op.part] = after, takes_text
            count = max(count, op.part + 1)
            size += after - before
        if size > MAX_DATA_BYTES:
            raise TooLarge(
                f"the reply would exceed {MAX_DATA_BYTES} bytes: finish it", limit=MAX_DATA_BYTES
            )
        if count > MAX_PARTS:
            raise TooLarge(f"the reply would exceed {MAX_PARTS} parts", limit=MAX_PARTS)
        if self.n + len(ops) > MAX_OPS:
            raise TooLarge(f"the reply would exceed {MAX_OPS} ops", limit=MAX_OPS)

    def _apply(self, op: Op) -> None:
        if isinstance(op, PutOp):
            self._put(op.part, _Part(_decode(op.value)))
        elif op.part == len(self._parts):
            self._put(op.part, _Part({"type": "text", "text": op.text}))
        else:
            part = self._parts[op.part]
            self._log.append((op.part, part.length))
            self.size -= part.size
            part.append(op.text)
            self.size += part.size
        self.n += 1

    def _put(self, index: int, part: _Part) -> None:
        if index < len(self._parts):
            self.size -= self._parts[index].size
            self._parts[index] = part
        else:
            self._parts.append(part)
        self.size += part.size
        self._log.append((index, -1))

    def __repr__(self) -> str:
        return f"<LiveReply epoch={self.epoch} n={self.n} parts={len(self._parts)}>"
