"""
One topic of a SQLite database, looked over and mended in one transaction.

First the rows that no commit can change: roots, roles, the event log. Then the tree as a
room would load it, by the commit that a room would make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from livetree.core import protocol as p
from livetree.core.canonical import MAX_INTEGER
from livetree.core.content import EMPTY_DATA
from livetree.core.errors import LivetreeError
from livetree.core.plan import Context, RepairTopic, plan
from livetree.core.repair import Fault, faults
from livetree.core.tree import Tree
from sqlalchemy import Connection, Row, select
from sqlalchemy.exc import DBAPIError

from ..topics.ports import Entry, LoadedTopic, Run
from . import reading
from .checking_content import check_contents, check_state
from .checking_rows import Examined, check_values, rows, unguarded
from .checking_trash import check_positions, check_trash
from .rows import root_row
from .schema import topic
from .statements import Statements
from .writing import write_runs

__all__ = ["examine"]

_STATUSES: Final = ("pending", "success", "error", "paused")
_UNREADABLE: Final = (LivetreeError, msgspec.MsgspecError, ValueError, TypeError)


def examine(
    tx: Connection, key: int, statements: Statements, *, now: int, new_id: Callable[[], str]
) -> Examined:
    """
    Find what is wrong with a topic, and mend it; to find only, take the transaction back.

    Deleted topics are mended too: they may be restored.

    """
    head = _head(tx, key)
    found = Examined(head.id)
    if head.temporary and head.deleted_at is not None:
        return found  # it is being erased: half of it may be gone
    check_state(tx, key, found)
    _check_seq(tx, head, found)
    head = _head(tx, key)
    if found.hopeless:
        return found
    _check_roots(tx, head, statements, found)
    check_values(tx, key, "message", found)
    check_contents(tx, key, "message", found)
    if found.hopeless:
        return found  # what would be written by such an id reaches no row
    _check_live(tx, head, found, now)
    _check_log(tx, head, found)
    check_trash(tx, head, found, now)
    check_positions(tx, head, found)
    # A deleted topic is absent for all that reads or writes: for this moment it is there.
    if head.deleted_at is not None:
        _set_deleted(tx, key, None)
    try:
        _check_tree(tx, head, statements, found, now, new_id)
    except _UNREADABLE as error:
        found.hopeless.append(f"it can't be read ({error}): restore it from a backup")
    if head.deleted_at is not None:
        _set_deleted(tx, key, head.deleted_at)
    return found


def _head(tx: Connection, key: int) -> Row[Any]:
    return tx.execute(select(topic).where(topic.c.key == key)).one()


def _set_deleted(tx: Connection, key: int, at: int | None) -> None:
    tx.exec_driver_sql('UPDATE topic SET deleted_at = ? WHERE "key" = ?', (at, key))


# Rows that no commit can change -----------------------------------------------------------


def _check_roots(tx: Connection, head: Row[Any], statements: Statements, found: Examined) -> None:
    key, root_id = head.key, head.root_id
    strays = rows(
        tx,
        "SELECT id, data FROM message WHERE topic_key = ? AND parent_id IS NULL AND id <> ?",
        *(key, root_id),
    )
    own = rows(
        tx,
        "SELECT parent_id, role, status, siblings_group_id FROM message"
        " WHERE topic_key = ? AND id = ?",
        *(key, root_id),
    )
    for stray, _ in strays:
        found.texts.append(f"{stray!r} is a second virtual root beside {root_id!r}")
    if not own:
        found.texts.append(f"its virtual root {root_id!r} is missing")
    elif own[0].parent_id is not None:
        found.texts.append(f"its virtual root {root_id!r} hangs below {own[0].parent_id!r}")
    elif own[0].role != "root":
        found.texts.append(f"its virtual root {root_id!r} has the role {own[0].role!r}")
    elif own[0].status not in _STATUSES:
        found.texts.append(f"its virtual root {root_id!r} has the status {own[0].status!r}")
    elif own[0].siblings_group_id:
        told = f"its virtual root {root_id!r} has the group {own[0].siblings_group_id}"
        found.texts.append(told)
    elif not strays:
        return
    with unguarded(tx):
        for stray, data in strays:
            _set_right(tx, head, stray, is_empty=data.encode() == EMPTY_DATA)
        tx.exec_driver_sql("DELETE FROM message WHERE topic_key = ? AND id = ?", (key, root_id))
        statements.insert_message.each(tx, [root_row(key, root_id, head.created_at)])


def _set_right(tx: Connection, head: Row[Any], stray: str, *, is_empty: bool) -> None:
    """Remove a second root, unless it says something: then it becomes a first turn."""
    if is_empty:
        sql = "DELETE FROM message WHERE topic_key = ? AND id = ?"
        tx.exec_driver_sql(sql, (head.key, stray))
        return
    sql = (
        "UPDATE message SET parent_id = ?, role = 'system', siblings_group_id = 0"
        " WHERE topic_key = ? AND id = ?"
    )
    tx.exec_driver_sql(sql, (head.root_id, head.key, stray))


def _check_live(tx: Connection, head: Row[Any], found: Examined, now: int) -> None:
    """Look for notes of live replies that are neither an offer nor a claim."""
    unsound = "(epoch < 0 OR (epoch > 0) <> (lease_until IS NOT NULL)"
    unsound += " OR (epoch = 0) <> (offered_at IS NOT NULL))"
    for message_id, epoch, lease, offer in rows(
        tx,
        "SELECT message_id, epoch, lease_until, offered_at FROM live WHERE topic_key = ?"
        f" AND {unsound} ORDER BY message_id",
        head.key,
    ):
        told = f"{message_id!r} is noted as live with epoch {epoch}, a lease until {lease}"
        found.texts.append(f"{told} and an offer at {offer}, which don't go together")
    tx.exec_driver_sql(
        "UPDATE live SET epoch = max(epoch, 0),"
        " lease_until = CASE WHEN epoch > 0 THEN coalesce(lease_until, ?) END,"
        " offered_at = CASE WHEN epoch > 0 THEN NULL ELSE coalesce(offered_at, ?) END"
        f" WHERE topic_key = ? AND {unsound}",
        (now, now, head.key),
    )


def _check_seq(tx: Connection, head: Row[Any], found: Examined) -> None:
    """Look whether the topic's seq is one that a topic which was made can have."""
    if head.seq >= MAX_INTEGER:
        found.hopeless.append(
            f"its seq is {head.seq}, and no commit can follow: they end at 2^53-1. Restore it "
            "from a backup, or export it and import it anew"
        )
    if head.seq >= 1:
        return
    # The log knows best; without one, what was written last came no later than the topic is.
    known = "SELECT max(seq) FROM ("
    known += " UNION ALL ".join(
        f"SELECT {column} AS seq FROM {table} WHERE topic_key = ?1"
        for table, column in (("message", "version"), ("trash", "seq"))
    )
    for sql in ("SELECT max(seq) FROM event WHERE topic_key = ?1 AND seq", f"{known}) WHERE seq"):
        (seq,) = rows(tx, f"{sql} BETWEEN 1 AND ?2", head.key, MAX_INTEGER - 1)[0]
        if seq is not None:
            break
    seq = seq or 1
    found.texts.append(f"its seq is {head.seq}, below 1: it becomes {seq}")
    tx.exec_driver_sql('UPDATE topic SET seq = ? WHERE "key" = ?', (seq, head.key))


def _check_log(tx: Connection, head: Row[Any], found: Examined) -> None:
    """Look for holes in the event log; whoever would resume before one gets a snapshot."""
    above = rows(
        tx,
        "SELECT min(seq), max(seq) FROM event WHERE topic_key = ? AND seq > ?",
        *(head.key, head.seq),
    )[0]
    if above[0] is not None:
        found.texts.append(
            f"its event log goes on from {above[0]} to {above[1]}, above its seq {head.seq}"
        )
        tx.exec_driver_sql(
            "DELETE FROM event WHERE topic_key = ? AND seq > ?", (head.key, head.seq)
        )
    first = 0
    last: tuple[int, str] | None = None
    for seq, commit, prev in rows(
        tx, "SELECT seq, commit_id, prev FROM event WHERE topic_key = ? ORDER BY seq", head.key
    ):
        if last is not None and seq != last[0] + 1:
            found.texts.append(f"its event log has a hole between {last[0]} and {seq}")
            first = seq
        elif last is not None and prev != last[1]:
            found.texts.append(f"event {seq} follows on commit {prev!r}, not on {last[1]!r}")
            first = seq
        elif seq == 1 and prev is not None:
            found.texts.append(f"the first event follows on commit {prev!r}, not on nothing")
            first = 2
        last = seq, commit
    if last is not None and last[0] < head.seq:
        found.texts.append(f"its event log ends at {last[0]}, before its seq {head.seq}")
        first = head.seq + 1
    elif last is not None and last[1] != head.commit_id:
        found.texts.append(
            f"the last event is of commit {last[1]!r}, and the topic is at {head.commit_id!r}"
        )
        first = head.seq + 1
    if first:
        tx.exec_driver_sql("DELETE FROM event WHERE topic_key = ? AND seq < ?", (head.key, first))


# The tree ---------------------------------------------------------------------------------


def _check_tree(
    tx: Connection,
    head: Row[Any],
    statements: Statements,
    found: Examined,
    now: int,
    new_id: Callable[[], str],
) -> None:
    loaded = reading.load(tx, head.id)
    assert loaded is not None
    if head.deleted_at is not None:
        loaded.state["deletedAt"] = head.deleted_at
    tree = loaded.tree()
    found.messages = len(tree)
    wrong = faults(tree, loaded.digest)
    found.texts += map(str, wrong)
    if not wrong:
        return
    try:
        with tx.begin_nested():
            (refusal,) = write_runs(tx, statements, [_run(loaded, tree, wrong, now, new_id)])
            if refusal is not None:
                raise RuntimeError("it was changed meanwhile")
    except (DBAPIError, RuntimeError) as error:
        found.hopeless.append(f"the repair is refused ({error}): restore it from a backup")


def _run(
    loaded: LoadedTopic, tree: Tree, wrong: list[Fault], now: int, new_id: Callable[[], str]
) -> Run:
    """Return the commit that a room would make of the same rows."""
    command = RepairTopic(topic=tree.topic_id, seq=tree.seq, faults=wrong)
    planned = plan(tree, command, Context(now=now, commit=new_id(), new_id=new_id))
    delta, draft = planned.delta, planned.draft
    assert delta is not None
    entry = Entry(
        delta=delta,
        frame=p.encode(delta),
        nodes=[draft.node(put.id) for put in delta.put],
        key=None,
        mutation=None,
    )
    return Run(
        topic_id=loaded.topic_id,
        root_id=loaded.root_id,
        base_seq=loaded.seq,
        entries=[entry],
        seq=delta.seq,
        commit=delta.commit,
        digest=delta.digest,
        active_node_id=draft.active_node_id,
        state=draft.state,
        last_created_at=draft.last_created_at,
        leases={},
        now=now,
    )
