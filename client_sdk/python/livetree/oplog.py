"""What a writer has written: ops numbered, sent, and kept until they are durable (L4, L6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from .core.protocol import Op, PutOp, TextOp

__all__ = ["Append", "OpLog"]

OP_LENGTH: Final = 16_384
"""The most characters of one text op."""

APPEND_BYTES: Final = 64 * 1024
"""From here on an append takes no further op."""

APPEND_OPS: Final = 1000

FRAMES: Final = 4
"""How many appends may be under way; what is written meanwhile becomes one."""

FULL_BYTES: Final = 64 * 1024
FULL_OPS: Final = 256
"""How much may wait to be received before a writer has to wait."""

KEPT_BYTES: Final = 8 * 1024 * 1024
"""How much may wait to be durable before a writer has to wait."""

_EMPTY_TEXT: Final = Raw(b'{"type":"text","text":""}')
_REPLACEMENT: Final = "\ufffd"


class Append(Struct, frozen=True):
    """Ops to send in one frame, numbered from ``first``."""

    first: int
    ops: list[Op]

    @property
    def last(self) -> int:
        """The number of the last op."""
        return self.first + len(self.ops) - 1


class OpLog:
    """
    The ops of one writer, under one epoch.

    Ops get their numbers when they are first sent: until then text that continues the
    same part is merged. Half a surrogate pair at the end of a text waits for its other
    half, and becomes U+FFFD where none comes.

    Args:
        n: The number of the last op that the reply had when it was claimed.
        parts: What an earlier writer left.
        resume: Write on behind that. Without it the old parts are emptied first, for a
            writer that begins from the start.

    Attributes:
        n: The number of the last op that was sent.
        received: Up to which op the server has them.
        durable: Up to which op they survive the server's end.

    """

    def __init__(
        self, n: int = 0, parts: Sequence[dict[str, Any]] = (), *, resume: bool = False
    ) -> None:
        self.n = self.received = self.durable = n
        self._sent = n
        self._kinds: list[str] = []
        self._half = ""
        self._half_kind = "text"
        self._waiting: deque[Op] = deque()
        self._waiting_bytes = 0
        self._kept: deque[tuple[Op, int]] = deque()  # op `durable` + 1 first
        self._kept_bytes = 0
        self._flying: deque[tuple[int, int]] = deque()  # last op, bytes
        if resume:
            self._kinds = [str(part.get("type", "")) for part in parts]
        else:
            for index in range(len(parts)):
                self._wait(PutOp(index, _EMPTY_TEXT))

    # Writing ----------------------------------------------------------------------------

    def write(self, text: str, kind: str = "text") -> None:
        """Append text to the last part if it is of this kind, else to a new one."""
        if self._half_kind != kind:
            self.flush()
        text = self._whole(self._half + text)
        self._half_kind = kind
        if text:
            self._add(kind, text)

    def _add(self, kind: str, text: str) -> None:
        if self._kinds and self._kinds[-1] == kind:
            self._append(len(self._kinds) - 1, text)
            return
        index = len(self._kinds)
        self._kinds.append(kind)
        if kind == "text":
            self._append(index, text)
        else:
            self._wait(PutOp(index, Raw(_encode({"type": kind, "text": text[:OP_LENGTH]}))))
            self._append(index, text[OP_LENGTH:])

    def put(self, part: dict[str, Any], at: int | None = None) -> int:
        """
        Add a part, or replace the one at an index; returns its index.

        Raises:
            ValueError: If it has no type, can't be written as JSON, or there is no such
                index.

        """
        kind = part.get("type")
        if not isinstance(kind, str):
            raise ValueError('a part needs a type, as in {"type": "text", "text": "…"}')
        try:
            raw = Raw(_encode(part))
        except (TypeError, UnicodeEncodeError, RecursionError) as error:
            raise ValueError(f"the part can't be written as JSON: {error}") from None
        self.flush()
        index = len(self._kinds) if at is None else at
        if not 0 <= index <= len(self._kinds):
            raise ValueError(f"there is no part {index}: the next one is {len(self._kinds)}")
        self._kinds[index : index + 1] = [kind]
        self._wait(PutOp(index, raw))
        return index

    def flush(self) -> None:
        """Give up waiting for the other half of a surrogate pair."""
        if self._half:
            self._half = ""
            self._add(self._half_kind, _REPLACEMENT)

    def _whole(self, text: str) -> str:
        """Return text without half pairs, and hold back one at the end."""
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            self._half = ""
            return text
        self._half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        units = text[: len(text) - len(self._half)].encode("utf-16-le", "surrogatepass")
        return units.decode("utf-16-le", "replace")

    def _append(self, index: int, text: str) -> None:
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, TextOp) and last.part == index and len(last.text) < OP_LENGTH:
            self._waiting.pop()
            self._waiting_bytes -= _size(last)
            text = last.text + text
        for start in range(0, len(text), OP_LENGTH):
            self._wait(TextOp(index, text[start : start + OP_LENGTH]))

    def _wait(self, op: Op) -> None:
        self._waiting.append(op)
        self._waiting_bytes += _size(op)

    # Sending ----------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether the writer must wait until more is received, or durable."""
        unreceived = self._waiting_bytes + sum(size for _, size in self._flying)
        return (
            unreceived > FULL_BYTES
            or len(self._waiting) > FULL_OPS
            or self._kept_bytes > KEPT_BYTES
        )

    @property
    def all_received(self) -> bool:
        """Whether the server has everything."""
        return not self._waiting and not self._half and self.received == self.n

    def next_append(self) -> Append | None:
        """Return what is to be sent now; None if nothing is, or enough is under way."""
        if len(self._flying) >= FRAMES:
            return None
        first = self._sent + 1
        ops: list[Op] = []
        size = 0
        while size < APPEND_BYTES and len(ops) < APPEND_OPS:
            if self._sent == self.n and not self._number():
                break
            op, op_size = self._kept[self._sent - self.durable]
            ops.append(op)
            size += op_size
            self._sent += 1
        if not ops:
            return None
        self._flying.append((self._sent, size))
        return Append(first, ops)

    def _number(self) -> bool:
        """Give the next op that waits its number."""
        if not self._waiting:
            return False
        op = self._waiting.popleft()
        size = _size(op)
        self._waiting_bytes -= size
        self._kept.append((op, size))
        self._kept_bytes += size
        self.n += 1
        return True

    def acknowledge(self, received: int, durable: int) -> bool:
        """
        Take note of what the server has.

        Returns:
            False if it has ops that were never sent: they are another writer's.

        """
        if max(received, durable) > self.n:
            return False
        self.received = max(self.received, received, durable)
        while self._flying and self._flying[0][0] <= self.received:
            self._flying.popleft()
        for _ in range(durable - self.durable):
            self._kept_bytes -= self._kept.popleft()[1]
        self.durable = max(self.durable, durable)
        self._sent = max(self._sent, self.received)
        return True

    def rewind(self, received: int | None = None) -> bool:
        """
        Send again what comes after `received`, or all that isn't durable.

        Returns:
            False if the server has lost ops that it called durable: they are no longer here.

        """
        if received is not None and received < self.durable:
            return False
        self._sent = self.received = min(self.n, self.durable if received is None else received)
        self._flying.clear()
        return True

    def give_up_unreceived(self) -> None:
        """Drop what the server doesn't have: it will not take it."""
        while self.n > self.received:
            self._kept_bytes -= self._kept.pop()[1]
            self.n -= 1
        self._sent = self.n
        self._waiting.clear()
        self._waiting_bytes = 0
        self._half = ""
        self._flying.clear()

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {
            "n": self.n,
            "received": self.received,
            "durable": self.durable,
            "waitingBytes": self._waiting_bytes,
            "keptBytes": self._kept_bytes,
        }

    def __repr__(self) -> str:
        return f"<OpLog n={self.n} received={self.received} durable={self.durable}>"


_encode = msgspec.json.encode


def _size(op: Op) -> int:
    return len(op.text.encode()) if isinstance(op, TextOp) else len(memoryview(op.value))
