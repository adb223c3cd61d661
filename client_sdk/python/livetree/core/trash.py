"""What a commit deleted, and all that is needed to bring it back."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from .draft import Draft
from .protocol import Cause, Delta, Node

__all__ = [
    "Burial",
    "Moved",
    "Revival",
    "TrashEntry",
    "Wanted",
    "below",
    "burial_of",
    "revivals_of",
]


class Moved(Struct, frozen=True, array_like=True):
    """A child that a deletion handed over: where it hung, and where it was put."""

    parent_id: str
    group: int
    to_parent_id: str
    to_group: int


class Burial(Struct, frozen=True, kw_only=True):
    """
    The trash entry that a commit makes.

    Its rows are the messages that the commit's delta drops, as they were before it.

    Attributes:
        seq: The commit's: it names the entry.
        op: What deleted them, as `Cause.op`.
        by: Who; None for the server.
        at: When, ms since the epoch.
        active_before, active_after: The active node before the commit and after it.
        last_created_at: The topic's then: what was created later was no fellow of theirs.
        moved: The children that were handed over and stayed.

    """

    seq: int
    op: str
    by: str | None
    at: int
    active_before: str | None
    active_after: str | None
    last_created_at: int
    moved: dict[str, Moved]


class TrashEntry(Struct, frozen=True, kw_only=True):
    """
    A trash entry as it is read back; see `Burial`.

    ``nodes`` are those of its rows that were asked for and are still in the trash, with
    ``data``, and with the parent and group that they had.

    """

    seq: int
    active_before: str | None
    active_after: str | None
    last_created_at: int
    moved: dict[str, Moved]
    nodes: list[Node]


class Revival(Struct, frozen=True):
    """Rows that a commit takes out of the trash; an entry without rows goes too."""

    seq: int
    message_ids: list[str]


class Wanted(Struct, frozen=True, kw_only=True):
    """
    Which trash entry a plan needs: exactly one of the first three says.

    Args:
        seq: The entry of this commit.
        by: The last entry of this subject.
        message_id: The entry that has this message.
        whole: With ``message_id``: those of the entry's rows too that hung below it.

    """

    seq: int | None = None
    by: str | None = None
    message_id: str | None = None
    whole: bool = False


def burial_of(draft: Draft, delta: Delta, cause: Cause) -> Burial | None:
    """Return the trash entry of a commit, None if it deletes nothing."""
    if not delta.drop:
        return None
    base = draft.base
    moved = {}
    for message_id, to in draft.handed_over.items():
        node, old = draft.get(message_id), base.get(message_id)
        # What was moved on by hand in the same commit is no longer where the deletion put it.
        if node is not None and old is not None and node.parent_id == to.parent_id:
            moved[message_id] = Moved(old.parent_id, old.siblings_group_id, *to)
    return Burial(
        seq=delta.seq,
        op=cause.op,
        by=cause.by,
        at=draft.now,
        active_before=base.active_node_id,
        active_after=draft.active_node_id,
        last_created_at=base.last_created_at,
        moved=moved,
    )


def below(places: Iterable[tuple[str, str]], top_id: str) -> list[str]:
    """Return the id and those that hang below it, of rows told by their ids and parents' ids."""
    children: dict[str, list[str]] = {}
    for message_id, parent_id in places:
        children.setdefault(parent_id, []).append(message_id)
    found = [top_id]
    for message_id in found:  # which grows meanwhile
        # Taken out, so that rows that are each above the other end it too.
        found.extend(children.pop(message_id, ()))
    return list(dict.fromkeys(found))


def revivals_of(draft: Draft) -> list[Revival]:
    """Return what a commit takes out of the trash: what it brought back and did not delete."""
    back: dict[int, dict[str, None]] = {}
    for revival in draft.revivals:
        for message_id in revival.message_ids:
            if message_id in draft:
                back.setdefault(revival.seq, {})[message_id] = None
    return [Revival(seq, [*message_ids]) for seq, message_ids in back.items()]
