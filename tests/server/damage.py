"""Databases that somebody has written to past all rules, while no server had them open."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from livetree.core import protocol as p
from livetree.core.content import data_of_text
from livetree_server.storage.checking import Checker, Finding
from msgspec import Raw

from tests.conformance.backend import Seed
from tests.conformance.raw_store import RawStore

NOW = 1_000_000


def node(message_id: str, parent_id: str, at: int, **fields: Any) -> p.Node:
    return p.Node(
        id=message_id,
        parent_id=parent_id,
        data=Raw(data_of_text(message_id)),
        version=0,
        created_at=at,
        updated_at=at,
        **fields,
    )


def seed(topic_id: str) -> Seed:
    """Return a topic: ``a > b:1 > c``, ``b > d``, and ``e`` beside ``b``; ``c`` is active."""
    root = f"{topic_id}-root"
    nodes = [
        node("a", root, 100, role="user"),
        node("b", "a", 200, role="assistant", siblings_group_id=1),
        node("c", "b", 300, role="user"),
        node("e", "a", 400, role="assistant", siblings_group_id=1),
        node("d", "b", 500, role="user"),
        node(f"only-{topic_id}", "a", 50, role="user"),
    ]
    return Seed(id=topic_id, root_id=root, active="c", activity=100, nodes=nodes, live=[])


def make(path: Path, *topic_ids: str) -> None:
    """Make a database with these topics, each as `seed` says and at its first commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(RawStore(path).seed([seed(each) for each in topic_ids], NOW))


def write(path: Path, *statements: str | tuple[str, Sequence[Any]]) -> None:
    """
    Run statements that the database would refuse.

    Without its triggers, which are there again in the end, and keeping neither foreign
    keys nor constraints, as far as SQLite lets anybody.

    """
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA foreign_keys = OFF")
        sql.execute("PRAGMA ignore_check_constraints = ON")
        with sql:
            triggers = sql.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            made = triggers.fetchall()
            for name, _ in made:
                sql.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                sql.execute(*([statement] if isinstance(statement, str) else statement))
            for _, text in made:
                sql.execute(text)


def query(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Read from a database that nobody has open."""
    with closing(sqlite3.connect(path)) as sql:
        return sql.execute(statement, values).fetchall()


def of(topic_id: str) -> str:
    """Return the condition for the rows of a topic."""
    return f"topic_key = (SELECT \"key\" FROM topic WHERE id = '{topic_id}')"


def pointer(topic_id: str, value: str | None) -> tuple[str, Sequence[Any]]:
    return "UPDATE topic SET active_node_id = ? WHERE id = ?", (value, topic_id)


def parent(topic_id: str, message_id: str, parent_id: str | None) -> tuple[str, Sequence[Any]]:
    sql = f"UPDATE message SET parent_id = ? WHERE {of(topic_id)} AND id = ?"
    return sql, (parent_id, message_id)


def opened(file: Path) -> Checker:
    numbers = iter(range(1_000))
    return Checker.open(file, clock=lambda: 2 * NOW, new_id=lambda: f"commit-{next(numbers)}")


def check(file: Path) -> list[str]:
    """Return what is wrong, and demand that looking has changed nothing."""
    before = dump(file)
    with opened(file) as checker:
        told = list(checker.check())
    assert dump(file) == before
    return [str(each) for each in told if isinstance(each, Finding)]


def repair(file: Path) -> list[str]:
    with opened(file) as checker:
        return [str(each) for each in checker.repair() if isinstance(each, Finding)]


def dump(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as sql:
        sql.text_factory = lambda text: text.decode(errors="backslashreplace")
        return list(sql.iterdump())
