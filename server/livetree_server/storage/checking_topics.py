"""
One topic of a SQLite database, looked over and mended in one transaction.

First the rows that no commit can change: roots, roles, the event log. Then the tree as a
room would load it, by the commit that a room would make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from livetree.core import protocol as p
from livetree.core.content import EMPTY_DATA
from livetree.core.errors import LivetreeError
from livetree.core.plan import Context, RepairTopic, plan
from livetree.core.repair import Fault, faults
from livetree.core.tree import Tree
from sqlalchemy import Connection, Row, select
from sqlalchemy.exc import DBAPIError

from ..topics.ports import Entry, LoadedTopic, Run
from . import reading
from .rows import root_row
from .schema import topic
from .statements import Statements
from .writing import write_runs

__all__ = ["Examined", "examine", "rows", "unguarded"]

_ROLES: Final = "'user', 'assistant', 'system', 'tool'"
_STATUSES: Final = "'pending', 'success', 'error', 'paused'"

# The triggers that refuse what a repair has to do to rows.
_GUARDS: Final = (
    "message_goes",
    "message_keeps_id",
    "message_moves",
    "message_needs_parent",
    "message_root_stays",
)
_UNREADABLE: Final = (LivetreeError, msgspec.MsgspecError, ValueError, TypeError)


@dataclass(slots=True)
class Examined:
    """
    What was found of a topic.

    Attributes:
        topic_id: The topic.
        texts: What is wrong and can be mended, in sentences.
        hopeless: What is wrong and can't.
        messages: How many it has.

    """

    topic_id: str
    texts: list[str] = field(default_factory=list)
    hopeless: list[str] = field(default_factory=list)
    messages: int = 0


def examine(
    tx: Connection, key: int, statements: Statements, *, now: int, new_id: Callable[[], str]
) -> Examined:
    """
    Find what is wrong with a topic, and mend it; to find only, take the transaction back.

    Deleted topics are mended too: they may be restored.

    """
    head = tx.execute(select(topic).where(topic.c.key == key)).one()
    found = Examined(head.id)
    if head.temporary and head.deleted_at is not None:
        return found  # it is being erased: half of it may be gone
    _check_roots(tx, head, statements, found)
    _check_rows(tx, head, found)
    _check_log(tx, head, found)
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


def rows(tx: Connection, sql: str, *values: Any) -> list[Any]:
    """Run a statement and return all that it gives."""
    return [*tx.exec_driver_sql(sql, values)]


@contextmanager
def unguarded(tx: Connection) -> Iterator[None]:
    """Do without the triggers that keep messages in order; in the end they are there again."""
    names = ", ".join(f"'{name}'" for name in _GUARDS)
    made = rows(
        tx, f"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name IN ({names})"
    )
    for name, _ in made:
        tx.exec_driver_sql(f"DROP TRIGGER {name}")
    yield
    for _, sql in made:
        tx.exec_driver_sql(sql)


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
        tx, "SELECT parent_id, role FROM message WHERE topic_key = ? AND id = ?", key, root_id
    )
    for stray, _ in strays:
        found.texts.append(f"{stray!r} is a second virtual root beside {root_id!r}")
    if not own:
        found.texts.append(f"its virtual root {root_id!r} is missing")
    elif own[0].parent_id is not None:
        found.texts.append(f"its virtual root {root_id!r} hangs below {own[0].parent_id!r}")
    elif own[0].role != "root":
        found.texts.append(f"its virtual root {root_id!r} has the role {own[0].role!r}")
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


def _check_rows(tx: Connection, head: Row[Any], found: Examined) -> None:
    of_topic = "topic_key = ? AND parent_id IS NOT NULL"
    for column, unsound, instead in (
        ("role", f"role NOT IN ({_ROLES})", "'system'"),
        ("status", f"status NOT IN ({_STATUSES})", "'error'"),
        ("siblings_group_id", "siblings_group_id < 0", "0"),
    ):
        wrong = rows(
            tx,
            f"SELECT id, {column} FROM message WHERE {of_topic} AND {unsound} ORDER BY id",
            head.key,
        )
        name = "group" if column == "siblings_group_id" else column
        found.texts += [f"message {each!r} has the {name} {value!r}" for each, value in wrong]
        if wrong:
            tx.exec_driver_sql(
                f"UPDATE message SET {column} = {instead} WHERE {of_topic} AND {unsound}",
                (head.key,),
            )


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
