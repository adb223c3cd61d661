"""What a topic's trash holds and how far its readers are, looked over and mended."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from livetree.core.trash import Moved
from sqlalchemy import Connection, Row

from .checking_content import check_contents
from .checking_rows import Examined, check_values, clipped, rows
from .erasing import TRASH_AGE

__all__ = ["check_positions", "check_trash"]

_decode_moved = msgspec.json.Decoder(dict[str, Moved]).decode
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)

# What nobody can tell any more of an entry that is gone.
_ENTRY: Final = (
    "INSERT INTO trash (topic_key, seq, op, at, last_created_at, moved)"
    " VALUES (?, ?, 'message.delete', ?, ?, '{}')"
)


def check_trash(tx: Connection, head: Row[Any], found: Examined, now: int) -> None:
    """Look at the deleted messages of a topic, whose own row is in order."""
    check_values(tx, head.key, "trash_message", found)
    check_contents(tx, head.key, "trash_message", found)
    _check_rows_without_entry(tx, head, found, now)
    _check_entries_without_rows(tx, head, found, now)
    _check_numbers(tx, head, found)
    _check_moved(tx, head, found)
    _check_circles(tx, head, found)
    # Last: an entry that loses its rows to the tree is no further fault.
    _check_twice(tx, head, found)


def check_positions(tx: Connection, head: Row[Any], found: Examined) -> None:
    """Look at how far each subject has read."""
    outside = "topic_key = ? AND seq NOT BETWEEN 0 AND ?"
    for subject, seq in rows(
        tx,
        f"SELECT subject, seq FROM reading WHERE {outside} ORDER BY subject",
        *(head.key, head.seq),
    ):
        told = f"{subject!r} has read up to {seq}, and the topic is at {head.seq}"
        found.texts.append(told)
    tx.exec_driver_sql(
        f"UPDATE reading SET seq = max(0, min(seq, ?)) WHERE {outside}",
        (head.seq, head.key, head.seq),
    )


def _check_rows_without_entry(tx: Connection, head: Row[Any], found: Examined, now: int) -> None:
    """Give rows an entry again: the one whose number was changed, if there is one, or another."""
    lost = rows(
        tx,
        "SELECT entry_seq, count(*) FROM trash_message AS of_entry WHERE topic_key = ? AND NOT"
        " EXISTS (SELECT 1 FROM trash WHERE topic_key = of_entry.topic_key"
        " AND seq = of_entry.entry_seq) GROUP BY 1 ORDER BY 1",
        head.key,
    )
    strays = [seq for seq, _ in _empty(tx, head) if not 1 <= seq <= head.seq]
    for seq, count in lost:
        if strays and 1 <= seq <= head.seq:
            stray = strays.pop(0)
            found.texts.append(
                f"the trash entry {stray} lies outside of 1 to {head.seq}: it is that of the "
                f"{_messages(count)} with the number {seq}"
            )
            _renumber(tx, head, stray, seq)
        else:
            found.texts.append(f"the trash has {_messages(count)} of an entry {seq} that is gone")
            tx.exec_driver_sql(_ENTRY, (head.key, seq, now, head.last_created_at))


def _check_entries_without_rows(tx: Connection, head: Row[Any], found: Examined, now: int) -> None:
    for seq, at in _empty(tx, head):
        if 1 <= seq <= head.seq and at < now - TRASH_AGE:
            continue  # it is being erased, and its rows went first
        found.texts.append(f"the trash entry {seq} has no messages")
        tx.exec_driver_sql("DELETE FROM trash WHERE topic_key = ? AND seq = ?", (head.key, seq))


def _empty(tx: Connection, head: Row[Any]) -> list[tuple[int, int]]:
    found = rows(
        tx,
        "SELECT seq, at FROM trash WHERE topic_key = ? AND NOT EXISTS (SELECT 1 FROM trash_message"
        " WHERE topic_key = trash.topic_key AND entry_seq = trash.seq) ORDER BY seq",
        head.key,
    )
    return [(seq, at) for seq, at in found]


def _check_numbers(tx: Connection, head: Row[Any], found: Examined) -> None:
    """Give entries a number that the topic has had, and keep them in their order."""
    entries = [seq for (seq,) in rows(tx, "SELECT seq FROM trash WHERE topic_key = ?", head.key)]
    taken = {seq for seq in entries if 1 <= seq <= head.seq}
    below = sorted(seq for seq in entries if seq < 1)
    above = sorted((seq for seq in entries if seq > head.seq), reverse=True)
    for seqs, numbers in ((below, range(1, head.seq + 1)), (above, range(head.seq, 0, -1))):
        number = iter(numbers)
        for seq in seqs:
            told = f"the trash entry {seq} lies outside of 1 to {head.seq}"
            free = next((each for each in number if each not in taken), None)
            if free is None:
                # Its messages can still be had one by one.
                nearest = numbers[0]
                found.texts.append(f"{told}, and no number is free: its messages join {nearest}")
            else:
                found.texts.append(f"{told}: it becomes {free}")
                taken.add(free)
            _renumber(tx, head, seq, numbers[0] if free is None else free, join=free is None)


def _renumber(tx: Connection, head: Row[Any], seq: int, new: int, *, join: bool = False) -> None:
    tx.exec_driver_sql(
        "UPDATE trash_message SET entry_seq = ? WHERE topic_key = ? AND entry_seq = ?",
        (new, head.key, seq),
    )
    if join:
        tx.exec_driver_sql("DELETE FROM trash WHERE topic_key = ? AND seq = ?", (head.key, seq))
        return
    tx.exec_driver_sql(
        "UPDATE trash SET seq = ? WHERE topic_key = ? AND seq = ?", (new, head.key, seq)
    )


def _check_moved(tx: Connection, head: Row[Any], found: Examined) -> None:
    for seq, raw in rows(
        tx,
        "SELECT seq, CAST(moved AS BLOB) FROM trash WHERE topic_key = ? ORDER BY seq",
        head.key,
    ):
        try:
            _decode_moved(raw)
        except _UNREADABLE:
            told = f"the trash entry {seq} says of moved children {clipped(raw)}, which can't be"
            found.texts.append(f"{told} read")
            tx.exec_driver_sql(
                "UPDATE trash SET moved = '{}' WHERE topic_key = ? AND seq = ?", (head.key, seq)
            )


def _check_circles(tx: Connection, head: Row[Any], found: Examined) -> None:
    """
    Look for rows of one entry that are above themselves.

    Across entries that is sound: messages may have been moved between two deletions.

    """
    entries: dict[int, dict[str, str]] = {}
    for seq, message_id, parent_id in rows(  # by age: the first that is met is the oldest
        tx,
        "SELECT entry_seq, id, parent_id FROM trash_message WHERE topic_key = ?"
        " ORDER BY entry_seq, created_at, id",
        head.key,
    ):
        entries.setdefault(seq, {})[message_id] = parent_id
    for seq, parents in entries.items():
        for message_id in _oldest_of_circles(parents):
            found.texts.append(
                f"deleted message {message_id!r} of the trash entry {seq} is below itself, "
                f"through its parent {parents[message_id]!r}"
            )
            tx.exec_driver_sql(
                "UPDATE trash_message SET parent_id = ? WHERE topic_key = ? AND id = ?",
                (head.root_id, head.key, message_id),
            )


def _oldest_of_circles(parents: dict[str, str]) -> list[str]:
    """Return the first row of each circle, of rows in their order with their parents."""
    order = {message_id: place for place, message_id in enumerate(parents)}
    known: set[str] = set()
    oldest: list[str] = []
    for message_id in parents:
        way: dict[str, None] = {}
        above: str | None = message_id
        while above is not None and above in parents and above not in known and above not in way:
            way[above] = None
            above = parents[above]
        known.update(way)
        if above in way:
            ids = [*way]
            oldest.append(min(ids[ids.index(above) :], key=order.__getitem__))
    return oldest


def _check_twice(tx: Connection, head: Row[Any], found: Examined) -> None:
    twice = rows(
        tx,
        "SELECT id, entry_seq FROM trash_message WHERE topic_key = ? AND EXISTS (SELECT 1 FROM"
        " message WHERE topic_key = trash_message.topic_key AND id = trash_message.id)"
        " ORDER BY id",
        head.key,
    )
    for message_id, seq in twice:
        told = f"message {message_id!r} is in the tree and in the trash entry {seq}"
        found.texts.append(f"{told}: it stays in the tree")
        tx.exec_driver_sql(
            "DELETE FROM trash_message WHERE topic_key = ? AND id = ?", (head.key, message_id)
        )
    for seq in {seq for _, seq in twice}:
        tx.exec_driver_sql(
            "DELETE FROM trash WHERE topic_key = ? AND seq = ? AND NOT EXISTS (SELECT 1 FROM"
            " trash_message WHERE topic_key = trash.topic_key AND entry_seq = trash.seq)",
            (head.key, seq),
        )


def _messages(count: int) -> str:
    return f"{count:,} message" + ("" if count == 1 else "s")
