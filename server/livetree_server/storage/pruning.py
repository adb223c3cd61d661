"""
What has outlived its time: events and mutations here, and what `Erasing` erases.

There is no index by the age of events and mutations. Rounds go over both tables, a bounded
part at each call.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, bindparam, delete, select, tuple_

from .erasing import Erasing
from .schema import mutation, topic, topic_event

__all__ = ["EVENTS_PER_TOPIC", "EVENT_AGE", "MUTATION_AGE", "Pruning"]

_DAY: Final = 24 * 60 * 60 * 1000
EVENT_AGE: Final = 7 * _DAY
"""How long an event is kept at most, in ms."""
EVENTS_PER_TOPIC: Final = 10_000
"""How many events of a topic are kept at most."""
MUTATION_AGE: Final = 30 * _DAY
"""How long a mutation is kept, in ms."""

_TOPICS: Final = 200  # looked at in one call
_ROWS: Final = 1_000  # removed or looked at in one call, of each table

# One by one: for a list of pairs SQLite would go through the whole table.
_delete_mutation: Final = (
    delete(mutation)
    .where(mutation.c.subject == bindparam("of_subject"))
    .where(mutation.c.mutation == bindparam("this"))
)


class Pruning:
    """
    The rounds over one database; a call is one transaction's part of them.

    ``erased`` counts the calls that erased content; something of it may stand in the log.

    """

    __slots__ = ("_after_key", "_after_mutation", "_erasing", "erased")

    def __init__(self) -> None:
        self._after_key: int | None = None
        self._after_mutation: tuple[str, str] | None = None
        self._erasing = Erasing()
        self.erased = 0

    def __call__(self, tx: Connection, now: int) -> bool:
        """Remove what is too old, up to a bound, and tell whether the round goes on."""
        self._prune_events(tx, now)
        self._prune_mutations(tx, now)
        erased, more = self._erasing(tx, now)
        self.erased += erased
        return more or self._after_key is not None or self._after_mutation is not None

    def _prune_events(self, tx: Connection, now: int) -> None:
        first = topic_event.alias()
        oldest = (
            select(first.c.seq)
            .where(first.c.topic_key == topic.c.key)
            .order_by(first.c.seq)
            .limit(1)
            .scalar_subquery()
        )
        rows = tx.execute(
            select(topic.c.key, topic.c.seq, topic_event.c.seq, topic_event.c.created_at)
            .select_from(topic)
            .join(
                topic_event,
                (topic_event.c.topic_key == topic.c.key) & (topic_event.c.seq == oldest),
                isouter=True,
            )
            .where(topic.c.key > (-1 if self._after_key is None else self._after_key))
            .order_by(topic.c.key)
            .limit(_TOPICS)
        ).all()
        room = _ROWS
        for key, seq, oldest_seq, created_at in rows:
            self._after_key = key
            if oldest_seq is None:
                continue
            if oldest_seq > seq - EVENTS_PER_TOPIC and created_at >= now - EVENT_AGE:
                continue
            room -= self._trim(tx, key, seq, now, room)
            if not room:
                self._after_key = key - 1  # it may have more
                return
        if len(rows) < _TOPICS:
            self._after_key = None

    def _trim(self, tx: Connection, key: int, seq: int, now: int, most: int) -> int:
        """Remove a topic's oldest events: from its log's start, so that no hole opens."""
        last: int | None = None
        count = 0
        events = select(topic_event.c.seq, topic_event.c.created_at).where(
            topic_event.c.topic_key == key
        )
        for each, created_at in tx.execute(events.order_by(topic_event.c.seq).limit(most)):
            if each > seq - EVENTS_PER_TOPIC and created_at >= now - EVENT_AGE:
                break
            last = each
            count += 1
        if last is not None:
            tx.execute(
                delete(topic_event)
                .where(topic_event.c.topic_key == key)
                .where(topic_event.c.seq <= last)
            )
        return count

    def _prune_mutations(self, tx: Connection, now: int) -> None:
        name = mutation.c.subject, mutation.c.mutation
        looked_at = select(*name, mutation.c.created_at).order_by(*name).limit(_ROWS)
        if self._after_mutation is not None:
            looked_at = looked_at.where(tuple_(*name) > self._after_mutation)
        rows = tx.execute(looked_at).all()
        old = [
            {"of_subject": subject, "this": each}
            for subject, each, at in rows
            if at < now - MUTATION_AGE
        ]
        if old:
            tx.execute(_delete_mutation, old)
        last = rows[-1] if len(rows) == _ROWS else None
        self._after_mutation = None if last is None else (last[0], last[1])
