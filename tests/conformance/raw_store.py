"""A SQLite store of the server's, written to past all rules."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from livetree.core import protocol as p
from livetree.core.errors import LivetreeError, NotFound
from livetree.formats import Conversation
from livetree_server.storage import SqliteStore
from livetree_server.topics.room import Room, Waiting
from msgspec import Raw

from .backend import Refused, Seed, Stored, root_row, row_of
from .core_backend import CoreBackend, import_of

COLUMNS = {
    "parent": "parent_id",
    "role": "role",
    "status": "status",
    "group": "siblings_group_id",
}


class RawStore:
    """
    One database file, as a server leaves it when it stops.

    Args:
        path: The file; it is made if it is missing.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made = 0

    async def seed(self, topics: Sequence[Seed], now: int) -> None:
        """Commit topics to a new file, as a server would."""
        self.path.write_bytes(await empty_database())
        async with await SqliteStore.open(self.path) as store:
            for seed in topics:
                room = Room.unborn(seed.id, seed.root_id, now)
                await self._commit(store, room, import_of(seed), now)

    async def request(self, command: p.Mutation, now: int) -> None:
        """Carry a command out on what the store has now; raises `Refused`."""
        async with await SqliteStore.open(self.path) as store:
            try:
                loaded = await store.load(command.topic)
                if loaded is None:
                    raise NotFound(f"there is no topic {command.topic}")
                await self._commit(store, Room(loaded), command, now)
            except LivetreeError as refusal:
                raise Refused(refusal.code, str(refusal)) from None

    async def _commit(self, store: SqliteStore, room: Room, command: p.Mutation, now: int) -> None:
        waiting = Waiting(command, None, lambda _: None)
        decided, refused, _ = room.decide([waiting], now=now, new_id=self._new_id)
        if refused:
            raise refused[0][1]
        assert decided is not None
        await store.commit(decided.run)

    def _new_id(self) -> str:
        self._made += 1
        return f"stored-{self._made}"

    def write(self, step: dict[str, Any]) -> None:
        """Run a raw statement; raises `Refused` with ``CONSTRAINT`` if the database refuses it."""
        statement, values = statement_of(step)
        with closing(sqlite3.connect(self.path)) as database:
            database.execute("PRAGMA foreign_keys = ON")
            try:
                with database:
                    database.execute(statement, values)
            except sqlite3.IntegrityError as refusal:
                raise Refused("CONSTRAINT", str(refusal)) from None

    def stored(self) -> dict[str, Stored]:
        """Read every row there is, whatever it hangs off."""
        with closing(sqlite3.connect(self.path)) as database:
            database.row_factory = sqlite3.Row
            topics = database.execute(
                "SELECT * FROM topic WHERE deleted_at IS NULL AND temporary = 0"
            ).fetchall()
            return {topic["id"]: self._stored_of(database, topic) for topic in topics}

    @staticmethod
    def _stored_of(database: sqlite3.Connection, topic: sqlite3.Row) -> Stored:
        found = database.execute("SELECT * FROM message WHERE topic_key = ?", (topic["key"],))
        rows = {}
        for row in found:
            # The root's row is told as it is, so that a wrong one is seen.
            made = row_of(node_of_row(row))
            rows[row["id"]] = made if row["parent_id"] else root_row(row["id"]) | made
        return Stored(
            root_id=topic["root_id"],
            active=topic["active_node_id"],
            activity=topic["last_activity_at"],
            rows=rows,
        )


_made: list[bytes] = []


async def empty_database() -> bytes:
    """Return a database without topics; it is made once, since migrations take their time."""
    if not _made:
        with tempfile.TemporaryDirectory(prefix="livetree-conformance-") as folder:
            path = Path(folder) / "livetree.db"
            await (await SqliteStore.open(path)).close()
            _made.append(path.read_bytes())
    return _made[0]


def node_of_row(row: sqlite3.Row) -> p.Node:
    """Return what a row holds; a root is no node, but it has the same columns."""
    text = {name: row[name] for name in ("stats", "timing", "context")}
    return p.Node(
        id=row["id"],
        parent_id=row["parent_id"],
        role=row["role"],
        status=row["status"],
        siblings_group_id=row["siblings_group_id"],
        data=Raw(row["data"]),
        model_id=row["model_id"],
        version=row["version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        **{name: None if value is None else Raw(value) for name, value in text.items()},
    )


def statement_of(step: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that a ``store.raw`` step stands for, and its values."""
    match step:
        case {"insert": row}:
            return (
                "INSERT INTO message (topic_key, id, parent_id, role, status, siblings_group_id,"
                " preview, empty, version, created_at, updated_at, data)"
                " SELECT \"key\", ?, ?, ?, ?, ?, '', 1, 1, 9000000, 9000000, '{\"parts\":[]}'"
                " FROM topic WHERE id = ?",
                (
                    row["id"],
                    row["parent"],
                    row["role"],
                    row.get("status", "success"),
                    row.get("group", 0),
                    row.get("topic", "T"),
                ),
            )
        case {"update": message_id, "set": changes}:
            columns = ", ".join(f"{COLUMNS[name]} = ?" for name in changes)
            return f"UPDATE message SET {columns} WHERE id = ?", (*changes.values(), message_id)
        case {"delete": message_id}:
            return "DELETE FROM message WHERE id = ?", (message_id,)
        case {"pointer": message_id}:
            return "UPDATE topic SET active_node_id = ? WHERE id = ?", (message_id, step["topic"])
        case {"deleteTopic": topic_id}:
            return "DELETE FROM topic WHERE id = ?", (topic_id,)
    raise ValueError(f"store.raw does not say what to do: {sorted(step)}")


class StoreBackend(CoreBackend):
    """
    The core, and below it a store; for cases that write to the store past all rules.

    Nothing is kept loaded: each command finds what the file has.

    """

    features = CoreBackend.features | {"raw-store"}
    lacks = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="livetree-conformance-")
        self._store = RawStore(Path(self._folder.name) / "livetree.db")

    def seed(self, topics: Sequence[Seed]) -> None:
        asyncio.run(self._store.seed(topics, self._clock))

    def request(self, command: dict[str, Any], now: int | None) -> dict[str, Any]:
        decoded = p.decode_command(msgspec.json.encode(command))
        if not isinstance(decoded, p.Mutation):
            raise NotImplementedError("no case reads what was written past all rules")
        asyncio.run(self._store.request(decoded, now or self._clock))
        return {}

    def raw(self, step: dict[str, Any]) -> None:
        self._store.write(step)

    def bring_in(self, conversation: Conversation) -> None:
        raise NotImplementedError("no case imports and writes past all rules")

    def stored(self) -> dict[str, Stored]:
        return self._store.stored()

    def check(self) -> None:
        pass

    def close(self) -> None:
        self._folder.cleanup()
