"""
The transaction of a group of runs: who is refused, and what is written for the others.

Every function here takes the transaction it works in, and none of them commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from livetree.core.protocol import Node
from msgspec import Struct
from sqlalchemy import Connection, select, update

from ..topics.ports import MutationKey, MutationTaken, Run, SeqTaken
from .changes import (
    Step,
    changes_state,
    is_birth,
    keys_of,
    live_change,
    steps_of,
    touches_live,
)
from .rows import message_row, root_row, state_row, text_of
from .schema import live, topic
from .statements import Statements

__all__ = ["Refusal", "Renewal", "renew", "write_runs"]

Refusal = MutationTaken | SeqTaken


class Renewal(Struct, frozen=True):
    """A lease's new end."""

    topic_id: str
    message_id: str
    epoch: int
    until: int


@dataclass(frozen=True, slots=True)
class _Head:
    key: int
    seq: int
    deleted: bool


def write_runs(tx: Connection, statements: Statements, runs: Sequence[Run]) -> list[Refusal | None]:
    """
    Write all runs but the refused ones, and return for each run why it was refused.

    Runs are judged in their order: a run may follow on one before it. A mutation id
    that is stored already comes before any other reason.

    Raises:
        Exception: If the database refuses a row; then the transaction is void.

    """
    heads = {
        topic_id: _Head(key, seq, deleted_at is not None)
        for topic_id, key, seq, deleted_at in statements.lock_topics.rows(
            tx, [*{(run.topic_id,) for run in runs}]
        )
    }
    keys = [(key.subject, key.mutation) for run in runs for key in keys_of(run)]
    stored = {MutationKey(row[0], row[1]) for row in statements.find_mutations.rows(tx, keys)}
    refusals = _judge(runs, heads, stored)
    kept = [run for run, refusal in zip(runs, refusals, strict=True) if refusal is None]
    _insert_mutations(tx, statements, kept)
    moving = [run for run in kept if run.seq > run.base_seq]
    _insert_topics(tx, statements, moving, heads)
    moving.sort(key=lambda run: heads[run.topic_id].key)
    _write_messages(tx, statements, moving, heads)
    # The pointer last: it may name a new message, and a removal may have taken it away.
    _advance_topics(tx, statements, moving, heads)
    _insert_events(tx, statements, moving, heads)
    _write_live(tx, statements, moving, heads)
    return refusals


def renew(tx: Connection, renewals: Iterable[Renewal]) -> None:
    """Move the ends of leases; one whose epoch isn't the current one is left alone."""
    for renewal in renewals:
        if renewal.epoch < 1:
            continue
        key = select(topic.c.key).where(topic.c.id == renewal.topic_id).scalar_subquery()
        tx.execute(
            update(live)
            .where(live.c.topic_key == key)
            .where(live.c.message_id == renewal.message_id)
            .where(live.c.epoch == renewal.epoch)
            .values(lease_until=renewal.until)
        )


def _judge(
    runs: Sequence[Run], heads: dict[str, _Head], stored: set[MutationKey]
) -> list[Refusal | None]:
    """Say for each run why it is refused, where each kept one changes what the next one meets."""
    refusals: list[Refusal | None] = []
    taken = set(stored)
    now = {topic_id: (head.seq, head.deleted) for topic_id, head in heads.items()}
    for run in runs:
        keys = keys_of(run)
        if repeated := [key for key in keys if key in taken]:
            refusals.append(MutationTaken(repeated))
        elif now.get(run.topic_id, (0, False)) != (run.base_seq, False):
            refusals.append(SeqTaken())
        else:
            refusals.append(None)
            taken.update(keys)
            now[run.topic_id] = (run.seq, run.state.get("deletedAt") is not None)
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


def _insert_topics(
    tx: Connection, statements: Statements, runs: Sequence[Run], heads: dict[str, _Head]
) -> None:
    births = [run for run in runs if is_birth(run)]
    if not births:
        return
    statements.insert_topic.each(
        tx,
        [
            (run.topic_id, run.root_id, 0, "", "", 0, 0, run.now, *state_row(run.state))
            for run in births
        ],
    )
    for topic_id, key, *_ in statements.lock_topics.rows(tx, [(run.topic_id,) for run in births]):
        heads[topic_id] = _Head(key, 0, deleted=False)
    statements.insert_message.each(
        tx, [root_row(heads[run.topic_id].key, run.root_id, run.now) for run in births]
    )


def _write_messages(
    tx: Connection, statements: Statements, runs: Sequence[Run], heads: dict[str, _Head]
) -> None:
    by_topic: dict[int, list[Step]] = {}
    for run in runs:
        by_topic.setdefault(heads[run.topic_id].key, []).extend(steps_of(run))
    for level in zip_longest(*by_topic.values()):
        steps = [(key, step) for key, step in zip(by_topic, level, strict=True) if step]
        _write_steps(tx, statements, steps)


def _write_steps(tx: Connection, statements: Statements, steps: Sequence[tuple[int, Step]]) -> None:
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
    statements.delete_message.each(
        tx, [(key, message_id) for key, step in steps for message_id in step.gone]
    )


def _changed_row(topic_key: int, node: Node) -> tuple[Any, ...]:
    return (
        node.status,
        node.siblings_group_id,
        text_of(node.decisions),
        node.model_id,
        text_of(node.stats),
        text_of(node.timing),
        text_of(node.context),
        node.version,
        node.updated_at,
        topic_key,
        node.id,
    )


def _advance_topics(
    tx: Connection, statements: Statements, runs: Sequence[Run], heads: dict[str, _Head]
) -> None:
    statements.advance_topic.each(
        tx,
        [
            (
                run.seq,
                run.commit,
                run.digest,
                run.active_node_id,
                run.state["lastActivityAt"],
                run.last_created_at,
                heads[run.topic_id].key,
                run.base_seq,
            )
            for run in runs
        ],
    )
    statements.restate_topic.each(
        tx,
        [
            (*state_row(run.state), heads[run.topic_id].key)
            for run in runs
            if changes_state(run) and not is_birth(run)
        ],
    )


def _insert_events(
    tx: Connection, statements: Statements, runs: Sequence[Run], heads: dict[str, _Head]
) -> None:
    statements.insert_event.each(
        tx,
        [
            (
                heads[run.topic_id].key,
                delta.seq,
                delta.commit,
                delta.prev,
                delta.digest,
                run.now,
                entry.frame,
            )
            for run in runs
            for entry in run.entries
            if (delta := entry.delta) is not None
        ],
    )


def _write_live(
    tx: Connection, statements: Statements, runs: Sequence[Run], heads: dict[str, _Head]
) -> None:
    touching: dict[int, list[Run]] = {}
    for run in runs:
        if touches_live(run):
            touching.setdefault(heads[run.topic_id].key, []).append(run)
    if not touching:
        return
    before: dict[int, dict[str, int]] = {key: {} for key in touching}
    columns = live.c.topic_key, live.c.message_id, live.c.epoch
    for key, message_id, epoch in tx.execute(
        select(*columns).where(live.c.topic_key.in_(touching))
    ):
        before[key][message_id] = epoch
    changes = [(key, live_change(those, before[key])) for key, those in touching.items()]
    statements.delete_live.each(
        tx, [(key, message_id) for key, change in changes for message_id in change.gone]
    )
    statements.insert_live.each(
        tx, [(key, *row) for key, change in changes for row in change.written]
    )
