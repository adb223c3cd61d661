"""A topic's trash in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import UNSET
from msgspec.structs import replace

from ..core.protocol import Node
from ..core.trash import Burial, Revival, TrashEntry, Wanted
from ..results import TrashItem

__all__ = ["MemoryTrash"]


class MemoryTrash:
    """
    What was deleted of one topic and can be brought back.

    Attributes:
        entries: By the `seq` of the commit that deleted: how, and the rows that are still
            there, with the parent and group that they had.

    """

    def __init__(self) -> None:
        self.entries: dict[int, tuple[Burial, dict[str, Node]]] = {}

    def bury(self, burial: Burial | None, nodes: Mapping[str, Node]) -> None:
        """Take in what a commit deletes: `nodes`, as they were before."""
        if burial is not None:
            self.entries[burial.seq] = (burial, dict(nodes))

    def revive(self, revivals: Iterable[Revival]) -> None:
        """Let go of what is back."""
        for revival in revivals:
            _, rows = self.entries[revival.seq]
            for message_id in revival.message_ids:
                del rows[message_id]
            if not rows:
                del self.entries[revival.seq]

    def find(self, wanted: Wanted) -> TrashEntry | None:
        """Return the entry that a plan needs, None if there is none."""
        for seq in sorted(self.entries, reverse=True):
            burial, rows = self.entries[seq]
            if wanted.message_id is not None:
                if wanted.message_id not in rows:
                    continue
                if not wanted.whole:
                    rows = {wanted.message_id: rows[wanted.message_id]}
            elif wanted.seq is not None:
                if wanted.seq != seq:
                    continue
            elif wanted.by != burial.by:
                continue
            return TrashEntry(
                seq=seq,
                active_before=burial.active_before,
                active_after=burial.active_after,
                last_created_at=burial.last_created_at,
                moved=burial.moved,
                nodes=list(rows.values()),
            )
        return None

    def rows(self) -> list[TrashItem]:
        """Return all that is there, the latest deletion first."""
        return [
            TrashItem(
                seq=seq, op=burial.op, by=burial.by, at=burial.at, node=replace(node, data=UNSET)
            )
            for seq, (burial, rows) in sorted(self.entries.items(), reverse=True)
            for node in sorted(rows.values(), key=lambda node: (node.created_at, node.id))
        ]

    def __repr__(self) -> str:
        return f"<MemoryTrash entries={len(self.entries)}>"
