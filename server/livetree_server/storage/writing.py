"""
The transaction of a group of runs: who is refused, and what is written for the others.

Every function here takes the transaction it works in, and none of them commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, TypeAlias

from livetree.core.protocol import Node
from msgspec import Struct
from sqlalchemy import Connection, func, insert, select, true, update

from ..topics.ports import MutationKey, MutationTaken, Run, SeqTaken
from .changes import (
    Step,
    changes_state,
    is_birth,
    keys_of,
    live_change,
    may_restore,
    steps_of,
    touches_live,
)
from .rows import entry_row, message_row, root_row, state_row, text_of
from .schema import live, reading, topic
from .statements import BURIED_AT_ONCE, Statements

__all__ = ["Mark", "Note", "Refusal", "Renewal", "Use", "note", "write_runs"]

Refusal = MutationTaken | SeqTaken

_AT_ONCE: Final = 500  # ids in one statement


class Renewal(Struct, frozen=True):
    """A lease's new end."""

    topic_id: str
    message_id: str
    epoch: int
    until: int


class Mark(Struct, frozen=True):
    """A subject's read position; noted as the position that it has then, None of no topic."""

    subject: str
    topic_id: str
    seq: int


class Use(Struct, frozen=True):
    """That topics are open at a time."""

    topic_ids: Sequence[str]
    now: int


Note: TypeAlias = Renewal | Mark | Use
"""What is noted beside the tree, without a commit."""


@dataclass(frozen=True, slots=True)
class _Head:
    key: int
    seq: int
    deleted: bool
    temporary: bool


def write_runs(tx: Connection, statements: Statements, runs: Sequence[Run]) -> list[Refusal | None]:
    """
    Write all runs but the refused ones, and return for each run why it was refused.

    Runs are judged in their order: a run may follow on one before it. A mutation id
    that is stored already comes before any other reason.

    Raises:
        Exception: If the database refuses a row; then the transaction is void.

    """
    heads = {
        topic_id: _Head(key, seq, deleted_at is not None, bool(temporary))
        for topic_id, key, seq, deleted_at, temporary in statements.lock_topics.rows(
            tx, [*{(run.topic_id,) for run in runs}]
        )
    }
    keys = [(key.subject, key.mutation) for run in runs for key in keys_of(run)]
    stored = {MutationKey(row[0], row[1]) for row in statements.find_mutations.rows(tx, keys)}
    refusals = _judge(runs, heads, stored)
    kept = [run for run, refusal in zip(runs, refusals, strict=True) if refusal is None]
    _insert_mutations(tx, statements, kept)
    topics = _topics(tx, statements, [run for run in kept if run.seq > run.base_seq], heads)
    _write_messages(tx, statements, topics)
    # The pointer last: it may name a new message, and a removal may have taken it away.
    _advance_topics(tx, statements, topics)
    _insert_events(tx, statements, topics)
    _write_live(tx, statements, topics)
    return refusals


def note(tx: Connection, what: Note) -> int | None:
    """Write it; returns the read position that a `Mark` leads to, None if it has no topic."""
    match what:
        case Renewal():
            _renew(tx, what)
        case Mark():
            return _mark(tx, what)
        case Use():
            _use(tx, what)
    return None


def _renew(tx: Connection, renewal: Renewal) -> None:
    """Move the end of a lease; one whose epoch isn't the current one is left alone."""
    if renewal.epoch < 1:
        return
    key = select(topic.c.key).where(topic.c.id == renewal.topic_id).scalar_subquery()
    tx.execute(
        update(live)
        .where(live.c.topic_key == key)
        .where(live.c.message_id == renewal.message_id)
        .where(live.c.epoch == renewal.epoch)
        .values(lease_until=renewal.until)
    )


def _mark(tx: Connection, mark: Mark) -> int | None:
    present = topic.c.deleted_at.is_(None)
    head = tx.execute(
        select(topic.c.key, topic.c.seq).where(topic.c.id == mark.topic_id, present)
    ).one_or_none()
    if head is None:
        return None
    key, seq = head
    position: int = max(0, min(mark.seq, seq))
    of_subject = (reading.c.subject == mark.subject) & (reading.c.topic_key == key)
    known: int | None = tx.scalar(select(reading.c.seq).where(of_subject))
    if known is not None and known >= position:
        return known
    if known is None:
        tx.execute(insert(reading).values(subject=mark.subject, topic_key=key, seq=position))
    else:
        tx.execute(update(reading).where(of_subject).values(seq=position))
    return position


def _use(tx: Connection, use: Use) -> None:
    # Of other topics nobody asks when they were used.
    temporary = topic.c.temporary == true()
    for start in range(0, len(use.topic_ids), _AT_ONCE):
        tx.execute(
            update(topic)
            .where(topic.c.id.in_(use.topic_ids[start : start + _AT_ONCE]), temporary)
            .values(used_at=func.max(topic.c.used_at, use.now))
        )


def _judge(
    runs: Sequence[Run], heads: dict[str, _Head], stored: set[MutationKey]
) -> list[Refusal | None]:
    """Say for each run why it is refused, where each kept one changes what the next one meets."""
    refusals: list[Refusal | None] = []
    taken = set(stored)
    now = {topic_id: (head.seq, head.deleted, head.temporary) for topic_id, head in heads.items()}
    for run in runs:
        keys = keys_of(run)
        if repeated := [key for key in keys if key in taken]:
            refusals.append(MutationTaken(repeated))
            continue
        seq, deleted, temporary = now.get(run.topic_id, (0, False, False))
        # A temporary topic is being erased once it is deleted.
        if seq != run.base_seq or (deleted and (temporary or not may_restore(run))):
            refusals.append(SeqTaken())
            continue
        refusals.append(None)
        taken.update(keys)
        now[run.topic_id] = (run.seq, "deletedAt" in run.state, "temporary" in run.state)
    return refusals


def _insert_mutations(tx: Connection, statements: Statements, runs: Sequence[Run]) -> None:
    statements.insert_mutation.each(
        tx,
        [
            (
                entry.key.subject,
                entry.key.mutation,
                entry.mutation.request_hash,
                run.now,
                entry.mutation.result,
            )
            for run in runs
            for entry in run.entries
            if entry.key is not None and entry.mutation is not None
        ],
    )


def _topics(
    tx: Connection, statements: Statements, runs: Sequence[Run], heads: dict[str, _Head]
) -> dict[int, list[Run]]:
    """Make the topics that are new, and return the runs of each topic by its key, in key order."""
    keys = {topic_id: head.key for topic_id, head in heads.items()}
    births = [run for run in runs if is_birth(run)]
    statements.insert_topic.each(
        tx,
        [
            (run.topic_id, run.root_id, 0, "", "", 0, 0, run.now, *state_row(run.state))
            for run in births
        ],
    )
    made = statements.lock_topics.rows(tx, [(run.topic_id,) for run in births])
    keys |= {topic_id: key for topic_id, key, *_ in made}
    statements.insert_message.each(
        tx, [root_row(keys[run.topic_id], run.root_id, run.now) for run in births]
    )
    topics: dict[int, list[Run]] = {}
    for run in sorted(runs, key=lambda run: keys[run.topic_id]):
        topics.setdefault(keys[run.topic_id], []).append(run)
    return topics


def _write_messages(tx: Connection, statements: Statements, topics: dict[int, list[Run]]) -> None:
    by_topic = [[step for run in runs for step in steps_of(run)] for runs in topics.values()]
    for level in zip_longest(*by_topic):
        steps = [(key, step) for key, step in zip(topics, level, strict=True) if step]
        _write_steps(tx, statements, steps)


def _write_steps(tx: Connection, statements: Statements, steps: Sequence[tuple[int, Step]]) -> None:
    _revive(tx, statements, steps)
    statements.insert_message.each(
        tx, [message_row(key, node) for key, step in steps for node in step.new]
    )
    statements.move_message.each(
        tx,
        [(node.parent_id, key, node.id) for key, step in steps for node in step.moved.values()],
    )
    statements.change_message.each(
        tx, [_changed_row(key, node) for key, step in steps for node in step.changed.values()]
    )
    statements.rewrite_message.each(
        tx,
        [
            (node.preview, node.empty, text_of(node.data), key, node.id)
            for key, step in steps
            for node in step.rewritten.values()
        ],
    )
    _bury(tx, statements, steps)
    statements.delete_message.each(
        tx, [(key, message_id) for key, step in steps for message_id in step.gone]
    )


def _revive(tx: Connection, statements: Statements, steps: Sequence[tuple[int, Step]]) -> None:
    rows = [(key, each, seq) for key, step in steps for seq, each in step.revived]
    if not rows:
        return
    # One may have outlived its time since the plan read it; the delta has it all the same.
    statements.revive_message.any(tx, rows)
    statements.delete_empty_trash.any(tx, [*{(key, seq): None for key, _, seq in rows}])


def _bury(tx: Connection, statements: Statements, steps: Sequence[tuple[int, Step]]) -> None:
    burials = [(key, step.burial) for key, step in steps if step.burial is not None]
    statements.insert_trash.each(tx, [entry_row(key, burial) for key, burial in burials])
    for key, step in steps:
        if step.burial is None:
            continue
        seq, gone = step.burial.seq, step.gone
        whole = len(gone) - len(gone) % BURIED_AT_ONCE
        statements.bury_many.each(
            tx,
            [
                (seq, key, *gone[start : start + BURIED_AT_ONCE])
                for start in range(0, whole, BURIED_AT_ONCE)
            ],
            touching=whole,
        )
        statements.bury_message.each(tx, [(seq, key, each) for each in gone[whole:]])


def _changed_row(topic_key: int, node: Node) -> tuple[Any, ...]:
    return (
        node.status,
        node.siblings_group_id,
        text_of(node.decisions),
        node.model_id,
        node.author,
        text_of(node.stats),
        text_of(node.timing),
        text_of(node.context),
        node.version,
        node.updated_at,
        topic_key,
        node.id,
    )


def _advance_topics(tx: Connection, statements: Statements, topics: dict[int, list[Run]]) -> None:
    statements.advance_topic.each(
        tx,
        [
            (
                runs[-1].seq,
                runs[-1].commit,
                runs[-1].digest,
                runs[-1].active_node_id,
                runs[-1].state["lastActivityAt"],
                runs[-1].last_created_at,
                runs[-1].now,
                key,
                runs[0].base_seq,
            )
            for key, runs in topics.items()
        ],
    )
    statements.restate_topic.each(
        tx,
        [
            (*state_row(runs[-1].state), key)
            for key, runs in topics.items()
            # A new topic's row was made with the state after its first run.
            if any(changes_state(run) and not is_birth(run) for run in runs)
        ],
    )


def _insert_events(tx: Connection, statements: Statements, topics: dict[int, list[Run]]) -> None:
    statements.insert_event.each(
        tx,
        [
            (key, delta.seq, delta.commit, delta.prev, delta.digest, run.now, entry.frame)
            for key, runs in topics.items()
            for run in runs
            for entry in run.entries
            if (delta := entry.delta) is not None
        ],
    )


def _write_live(tx: Connection, statements: Statements, topics: dict[int, list[Run]]) -> None:
    touching = {key: runs for key, runs in topics.items() if any(map(touches_live, runs))}
    if not touching:
        return
    before: dict[int, dict[str, int]] = {key: {} for key in touching}
    columns = live.c.topic_key, live.c.message_id, live.c.epoch
    for key, message_id, epoch in tx.execute(
        select(*columns).where(live.c.topic_key.in_(touching))
    ):
        before[key][message_id] = epoch
    changes = [(key, live_change(runs, before[key])) for key, runs in touching.items()]
    statements.delete_live.each(
        tx, [(key, message_id) for key, change in changes for message_id in change.gone]
    )
    statements.insert_live.each(
        tx, [(key, *row) for key, change in changes for row in change.written]
    )
