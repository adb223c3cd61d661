"""The text of a reply being written: numbered ops, and what a viewer missed (DESIGN §5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from .canonical import check_json
from .content import MAX_DATA_BYTES
from .errors import InvalidOperation, TooLarge, Validation
from .protocol import LiveText, Op, PutOp, Stream, TextOp

__all__ = ["MAX_PARTS", "LiveReply"]

MAX_PARTS: Final = 1000
"""The most parts of one reply."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class _Part:
    """One part: its fields, and its text kept as pieces so that appending is cheap."""

    __slots__ = ("fields", "length", "pieces")

    def __init__(self, fields: dict[str, Any]) -> None:
        text = fields.get("text")
        self.fields = fields
        self.pieces: list[str] | None = [text] if isinstance(text, str) else None
        self.length = len(text) if isinstance(text, str) else 0

    def append(self, text: str) -> None:
        assert self.pieces is not None
        self.pieces.append(text)
        self.length += len(text)

    def text(self) -> str:
        pieces = self.pieces or []
        if len(pieces) > 1:
            pieces[:] = ["".join(pieces)]
        return pieces[0] if pieces else ""

    def value(self) -> dict[str, Any]:
        return self.fields if self.pieces is None else {**self.fields, "text": self.text()}


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
        self.size = sum(len(_encode(part.fields)) for part in self._parts)

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
            TooLarge: If the reply would exceed a message's size.

        All or nothing: a refused call has changed nothing.

        """
        if first > self.n + 1:
            raise InvalidOperation(
                f"ops {self.n + 1} to {first - 1} are missing: send them first", received=self.n
            )
        fresh = list(ops[self.n + 1 - first :])
        size = self._check(fresh)
        for op in fresh:
            self._apply(op)
        self.size = size
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
                ops.append(TextOp(index, part.text()[length:]))
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

    def _check(self, ops: Sequence[Op]) -> int:
        size = self.size
        takes_text = [part.pieces is not None for part in self._parts]
        for op in ops:
            if op.part > len(takes_text):
                raise Validation(f"op names part {op.part}, but the next part is {len(takes_text)}")
            if isinstance(op, PutOp):
                value = check_json(op.value, "a part", max_bytes=MAX_DATA_BYTES)
                if not isinstance(value, dict) or not isinstance(value.get("type"), str):
                    raise Validation("a part is not an object with a type")
                accepts = isinstance(value.get("text"), str)
                size += len(bytes(op.value))
                if op.part < len(takes_text):
                    takes_text[op.part] = accepts
                else:
                    takes_text.append(accepts)
            else:
                size += len(op.text.encode())
                if op.part == len(takes_text):
                    takes_text.append(True)
                elif not takes_text[op.part]:
                    raise Validation(f"part {op.part} has no text to append to")
        if size > MAX_DATA_BYTES:
            raise TooLarge(
                f"the reply would exceed {MAX_DATA_BYTES} bytes: finish it", limit=MAX_DATA_BYTES
            )
        if len(takes_text) > MAX_PARTS:
            raise TooLarge(f"the reply would exceed {MAX_PARTS} parts", limit=MAX_PARTS)
        return size

    def _apply(self, op: Op) -> None:
        if isinstance(op, PutOp):
            part = _Part(_decode(op.value))
            if op.part < len(self._parts):
                self._parts[op.part] = part
            else:
                self._parts.append(part)
            self._log.append((op.part, -1))
        else:
            if op.part == len(self._parts):
                self._parts.append(_Part({"type": "text", "text": ""}))
                self._log.append((op.part, -1))
                self._parts[op.part].append(op.text)
            else:
                part = self._parts[op.part]
                self._log.append((op.part, part.length))
                part.append(op.text)
        self.n += 1

    def __repr__(self) -> str:
        return f"<LiveReply epoch={self.epoch} n={self.n} parts={len(self._parts)}>"
