"""What the database has, read with nothing but SQLite: the truth that copies are compared with."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from livetree.core import protocol as p
from livetree.core.tree import Tree
from msgspec import Raw

from tests.helpers import check_folds, check_invariants, recomputed_digest

KEPT_EVENTS = 10_000

_FIELDS = p.Node.__struct_fields__
_JSON = ("data", "decisions", "stats", "timing", "context")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of a server that runs or has ended in peace; nothing is written."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        yield connection


@contextlib.contextmanager
def left_by_the_dead(path: Path) -> Iterator[sqlite3.Connection]:
    """
    Open what a killed server has left, as it will be found by the next.

    On a copy: whoever opens it first repairs it, and that is to be the server.

    """
    with tempfile.TemporaryDirectory() as folder:
        for name in (path.name, f"{path.name}-wal"):
            if path.with_name(name).exists():
                shutil.copy(path.with_name(name), folder)
        with contextlib.closing(sqlite3.connect(Path(folder) / path.name)) as connection:
            yield connection


def topic_ids(database: sqlite3.Connection) -> list[str]:
    """Return the ids of the topics that are there."""
    return [row[0] for row in database.execute("SELECT id FROM topic WHERE deleted_at IS NULL")]


def read_topic(database: sqlite3.Connection, topic_id: str) -> Tree:
    """Read a topic with all its content."""
    head = database.execute(
        "SELECT key, root_id, seq, commit_id, digest, active_node_id, last_activity_at, "
        "last_created_at, name, metadata, other_state FROM topic WHERE id = ?",
        (topic_id,),
    ).fetchone()
    key, root_id, seq, commit, digest, active, activity, created, name, metadata, other = head
    rows = database.execute(
        f"SELECT {', '.join(_FIELDS)} FROM message WHERE topic_key = ? AND parent_id IS NOT NULL",
        (key,),
    )
    live = database.execute("SELECT message_id, epoch FROM live WHERE topic_key = ?", (key,))
    tree = Tree.load(
        topic_id=topic_id,
        root_id=root_id,
        seq=seq,
        commit=commit,
        active_node_id=active,
        state={
            "name": name,
            "metadata": msgspec.json.decode(metadata),
            "lastActivityAt": activity,
            "live": dict(live.fetchall()),
            **msgspec.json.decode(other),
        },
        nodes=[_node(dict(zip(_FIELDS, row, strict=True))) for row in rows],
        last_created_at=created,
    )
    assert digest == recomputed_digest(tree), f"the digest stored with {topic_id} is another"
    return tree


def _node(row: dict[str, Any]) -> p.Node:
    raw = {name: Raw(row[name]) for name in _JSON if row[name] is not None}
    return p.Node(**{**row, **raw, "empty": bool(row["empty"])})


def read_log(database: sqlite3.Connection, topic_id: str) -> list[p.Delta]:
    """Read a topic's event log, and demand that it is one: no holes, each on the one before."""
    rows = database.execute(
        "SELECT event.seq, event.commit_id, event.prev, event.digest, event.frame, "
        "topic.seq, topic.commit_id FROM event JOIN topic ON topic.key = event.topic_key "
        "WHERE topic.id = ? ORDER BY event.seq",
        (topic_id,),
    ).fetchall()
    last_seq, last_commit = rows[-1][5:]
    first_seq = rows[0][0] if last_seq > KEPT_EVENTS else 1
    assert [row[0] for row in rows] == list(range(first_seq, last_seq + 1)), "the log has a hole"
    deltas: list[p.Delta] = []
    for seq, commit, prev, digest, frame, *_ in rows:
        delta = p.decode_frame(frame)
        assert isinstance(delta, p.Delta)
        told = (delta.topic, delta.seq, delta.commit, delta.prev, delta.digest)
        assert told == (topic_id, seq, commit, prev, digest)
        if deltas:
            assert prev == deltas[-1].commit, f"commit {seq} does not follow on {seq - 1}"
        deltas.append(delta)
    assert deltas[-1].commit == last_commit, "the log ends elsewhere than the topic"
    return deltas


def check_database(database: sqlite3.Connection) -> dict[str, tuple[Tree, list[p.Delta]]]:
    """
    Demand that the database is sound, and return its topics with their logs.

    Each log makes its topic when it is told from the start, and names no mutation twice.

    """
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    found: dict[str, tuple[Tree, list[p.Delta]]] = {}
    for topic_id in topic_ids(database):
        tree, log = read_topic(database, topic_id), read_log(database, topic_id)
        check_invariants(tree)
        assert len(tree) == sum(1 for _ in tree.nodes())
        times = Counter(delta.cause.mutation for delta in log if delta.cause.mutation)
        assert [each for each, count in times.items() if count > 1] == [], "done more than once"
        if log[0].seq == 1 and not log[0].large:
            written = {node.id: node.data for node in tree.nodes() if isinstance(node.data, Raw)}
            check_folds(nothing(tree), log, tree, written)
        found[topic_id] = (tree, log)
    return found


def nothing(tree: Tree) -> Tree:
    """Return a topic before its first commit."""
    return Tree.load(
        topic_id=tree.topic_id,
        root_id=tree.root_id,
        seq=0,
        commit=None,  # type: ignore[arg-type]  # there is none yet
        active_node_id=None,
        state={},
        nodes=[],
    )
