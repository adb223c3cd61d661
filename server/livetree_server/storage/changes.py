"""What a run changes in the rows of its topic: decided here, without a database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from livetree.core.protocol import Node
from livetree.core.trash import Burial
from msgspec import UNSET

from ..topics.ports import Entry, MutationKey, Run

__all__ = [
    "LiveChange",
    "Step",
    "changes_state",
    "is_birth",
    "keys_of",
    "live_change",
    "may_restore",
    "revived_of",
    "steps_of",
    "touches_live",
]

_OFTEN = frozenset(("lastActivityAt", "live"))
_LIVE_KEYS = frozenset(("live", "deletedAt"))


@dataclass(slots=True)
class Step:
    """
    Changes that may be written kind by kind, in the order of the fields.

    New rows have parents before children, and those that go have children before
    parents. A changed row is there once, as it is after the last of its changes: under
    ``moved`` if its parent changed, under ``rewritten`` if its data did. ``revived`` are
    the entries and ids of rows that leave the trash; ``burial`` says how ``gone`` goes there.

    """

    revived: list[tuple[int, str]] = field(default_factory=list)
    new: list[Node] = field(default_factory=list)
    moved: dict[str, Node] = field(default_factory=dict)
    changed: dict[str, Node] = field(default_factory=dict)
    rewritten: dict[str, Node] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    burial: Burial | None = None


@dataclass(slots=True)
class LiveChange:
    """
    Which live rows to take out, and which to write anew.

    A written row is ``message_id, epoch, lease_until, offered_at``: epoch 0 is an offer.

    """

    gone: list[str]
    written: list[tuple[str, int, int | None, int | None]]


def is_birth(run: Run) -> bool:
    """Tell whether the run makes its topic."""
    return run.base_seq == 0 and run.seq > 0


def keys_of(run: Run) -> list[MutationKey]:
    """Return the mutation ids that the run stores."""
    return [entry.key for entry in run.entries if entry.key is not None]


def changes_state(run: Run) -> bool:
    """Tell whether the run sets keys of the topic's state that seldom change."""
    return any(
        entry.delta is not None and not _OFTEN.issuperset(entry.delta.set) for entry in run.entries
    )


def may_restore(run: Run) -> bool:
    """Tell whether the run begins by taking the deletion of its topic back."""
    first = next((entry.delta for entry in run.entries if entry.delta is not None), None)
    return first is not None and first.set.get("deletedAt", False) is None


def revived_of(entry: Entry) -> list[tuple[int, str]]:
    """
    Return which rows leave the trash, and of which entries.

    What a batch brings back and deletes again, its delta doesn't put: it stays where it is.

    """
    if not entry.revivals or entry.delta is None:
        return []
    new = {put.id for put in entry.delta.put if put.role is not UNSET}
    return [
        (revival.seq, message_id)
        for revival in entry.revivals
        for message_id in revival.message_ids
        if message_id in new
    ]


def steps_of(run: Run) -> list[Step]:
    """
    Return what the run does to messages.

    The commands that follow on a removal begin a new step: they may bring back an id
    that was removed.

    Raises:
        ValueError: If rows would be lost: removed, but not into the trash.

    """
    steps: list[Step] = []
    for entry in run.entries:
        if (delta := entry.delta) is None:
            continue
        if not steps or steps[-1].gone:
            steps.append(Step())
        step = steps[-1]
        rows = {node.id: node for node in entry.nodes}
        if entry.revivals:
            step.revived += revived_of(entry)
        for put in delta.put:
            node = rows[put.id]
            # Only the put of a new row says its role: a role never changes.
            if put.role is not UNSET:
                step.new.append(node)
                continue
            step.changed[put.id] = node
            if put.parent_id is not UNSET:
                step.moved[put.id] = node
            if put.data is not UNSET:
                step.rewritten[put.id] = node
        for message_id in delta.ended:
            step.rewritten[message_id] = rows[message_id]
        if delta.drop:
            if entry.burial is None:
                raise ValueError(f"commit {delta.seq} of {run.topic_id} removes without a trace")
            step.gone = delta.drop
            step.burial = entry.burial
    return steps


def live_change(runs: Sequence[Run], before: dict[str, int]) -> LiveChange:
    """
    Return what runs of one topic, each following on the one before, do to its live rows.

    A reply that was claimed and offered again in between is offered anew. Of a deleted
    topic nothing is live.

    """
    now = before
    changed_by: dict[str, Run] = {}
    for run in runs:
        for entry in run.entries:
            if entry.delta is None:
                continue
            after = _live_after(entry.delta.set, now)
            for message_id, epoch in after.items():
                if now.get(message_id) != epoch:
                    changed_by[message_id] = run
            now = after
    return LiveChange(
        gone=[each for each in before if each not in now or each in changed_by],
        written=[
            (each, epoch, *_times(changed_by[each], each, epoch))
            for each, epoch in now.items()
            if each in changed_by
        ],
    )


def touches_live(run: Run) -> bool:
    """Tell whether the run may change what is live in its topic."""
    return any(
        entry.delta is not None and not _LIVE_KEYS.isdisjoint(entry.delta.set)
        for entry in run.entries
    )


def _live_after(changed: dict[str, Any], live: dict[str, int]) -> dict[str, int]:
    if changed.get("deletedAt") is not None:
        return {}
    after: dict[str, int] = changed.get("live", live)
    return after


def _times(run: Run, message_id: str, epoch: int) -> tuple[int | None, int | None]:
    return (run.leases[message_id], None) if epoch else (None, run.now)
