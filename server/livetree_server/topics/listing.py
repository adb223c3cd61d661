"""The list of topics as one subject sees it, in pages that fit a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from livetree.core import protocol as p

from .ports import Seen, Store, TopicRow
from .reading import ANSWER_BYTES

__all__ = ["LOOKED_THROUGH", "Allowed", "entries_of", "frames_of", "listed_entries", "page"]

LOOKED_THROUGH: Final = 10_000
"""How many topics are looked through for one page of the list, of which few may be shown."""

LARGEST_PAGE: Final = 200
"""How many topics are read together when most of them are not for this reader."""

Allowed = Callable[[str], bool]
"""Tells whether a topic may be seen."""


async def page(
    store: Store, allowed: Allowed, *, cursor: str | None, limit: int, name: str
) -> tuple[list[TopicRow], str | None]:
    """
    Return a page of those topics in the list that may be seen, and the cursor of the next.

    It is short where topics are not for this reader, or have much metadata. It is empty
    amid the list only after `LOOKED_THROUGH` topics of which none is for this reader.

    """
    size = limit
    looked = 0
    while True:
        rows, after = await store.topics(cursor=cursor, limit=size, name=name)
        found = [row for row in rows if allowed(row.topic_id)]
        if len(fitting := next(frames_of(found[:limit]), [])) < len(found):
            # The cursor must be the one of the last that is shown, and only the store makes it.
            size = rows.index(fitting[-1]) + 1
            continue
        looked += len(rows)
        if found or after is None or looked >= LOOKED_THROUGH:
            return found, after
        cursor, size = after, LARGEST_PAGE


async def listed_entries(
    store: Store, allowed: Allowed, subject: str, command: p.TopicList
) -> tuple[list[p.TopicEntry], str | None]:
    """Return a page of the list as a subject sees it, and the cursor of the next."""
    rows, cursor = await page(
        store, allowed, cursor=command.cursor, limit=command.limit, name=command.name
    )
    return await entries_of(store, subject, rows), cursor


async def entries_of(store: Store, subject: str, rows: Sequence[TopicRow]) -> list[p.TopicEntry]:
    """Return topics as a subject sees them; one that went meanwhile is left out."""
    seen = await store.seen(subject, [row.topic_id for row in rows]) if rows else {}
    return [entry_of(row, seen[row.topic_id]) for row in rows if row.topic_id in seen]


def frames_of(rows: Sequence[TopicRow]) -> Iterator[list[TopicRow]]:
    """Divide topics into those whose metadata together fits one frame."""
    some: list[TopicRow] = []
    size = 0
    for row in rows:
        weight = len(p.encode(row.metadata))
        if some and size + weight > ANSWER_BYTES:
            yield some
            some, size = [], 0
        some.append(row)
        size += weight
    if some:
        yield some


def entry_of(row: TopicRow, seen: Seen) -> p.TopicEntry:
    return p.TopicEntry(
        id=row.topic_id,
        root_id=row.root_id,
        name=row.name,
        seq=row.seq,
        commit=row.commit,
        active_node_id=row.active_node_id,
        metadata=row.metadata,
        created_at=row.created_at,
        last_activity_at=row.last_activity_at,
        read_seq=seen.read_seq,
        unread=seen.unread,
    )
