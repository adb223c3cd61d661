"""
The invariants against raw SQL: the database keeps them, whoever writes.

SQLite keeps foreign keys only on connections that ask for it, and a stranger may not ask. So
each attack is made on both kinds of connection.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from livetree.core import protocol as p
from livetree.core.errors import Internal
from livetree_server.storage import SqliteStore
from msgspec.structs import replace

from tests.contracts.building import Room, ask, create, say, tree_in


async def fill(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        for name in "AB":
            room = Room(name)
            await room.do(store, create(mutation=f"make {name}"), ask(f"{name}u", f"{name}r"))
            await room.do(store, p.StreamAbort(message_id=f"{name}r"))
            await room.do(store, *(say(f"{name}{place}") for place in range(3)))
            await room.do(store, say(f"{name}x", parent="ROOT", set_active=False))
            await room.do(store, say(f"{name}t", parent="ROOT", set_active=False))
            await room.do(store, p.MessageDelete(message_id=f"{name}t"))
            await store.mark_read("ann", name, 3)
        await Room("C").do(store, create())


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "livetree.db"
    asyncio.run(fill(path))
    return path


@pytest.fixture
def file(filled: Path, tmp_path: Path) -> Path:
    """A database with a chain and an active node in topics 1 and 2, A and B; C has a root only."""
    return shutil.copy(filled, tmp_path / "livetree.db")


@pytest.fixture(params=["with foreign keys", "without foreign keys"])
def sql(request: pytest.FixtureRequest, file: Path) -> Iterator[sqlite3.Connection]:
    """A stranger's connection; each statement is a transaction of its own."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute(f"PRAGMA foreign_keys = {'ON' if request.param[:5] == 'with ' else 'OFF'}")
    yield connection
    connection.close()


@pytest.fixture
def keyed(file: Path) -> Iterator[sqlite3.Connection]:
    """A stranger's connection that keeps foreign keys."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    yield connection
    connection.close()


def message(topic_key: int, message_id: str, parent_id: str | None, **fields: object) -> str:
    """Return the statement that adds a message; without fields of its own a sound one."""
    row = {
        "topic_key": topic_key,
        "id": message_id,
        "parent_id": parent_id,
        "role": "user" if parent_id else "root",
        "status": "success",
        "siblings_group_id": 0,
        "preview": "",
        "empty": 0,
        "version": 1,
        "created_at": 1,
        "updated_at": 1,
        "data": "{}",
        **fields,
    }
    values = ", ".join("NULL" if value is None else repr(value) for value in row.values())
    return f"INSERT INTO message ({', '.join(row)}) VALUES ({values})"


def buried(topic_key: int, message_id: str, **fields: object) -> str:
    """Return the statement that adds a message to the trash; a sound one without fields."""
    fields = {"entry_seq": TRASHED, **fields}
    return message(topic_key, message_id, "anywhere", **fields).replace(
        "INTO message", "INTO trash_message"
    )


TRASHED = 9
"""The entry in the trash of topics 1 and 2."""
TOPIC = (
    "INSERT INTO topic (id, root_id, seq, commit_id, digest, active_node_id, last_activity_at,"
    " last_created_at, created_at, name, name_folded, metadata, other_state)"
    " VALUES ({id!r}, 'r', {seq}, '', '', {active}, 0, 0, 0, '', '', '{{}}', '{{}}')"
)
EVENT = "INSERT INTO event VALUES (1, 2, 'c', NULL, 'd', 0, x'00')"


@pytest.mark.parametrize(
    "statement",
    [
        message(1, "new", "A1"),
        message(1, "new", "A-root", role="tool", status="paused", siblings_group_id=3),
        TOPIC.format(id="D", seq=0, active="NULL"),
        EVENT.replace("(1, 2,", "(1, 99,"),
        buried(1, "new"),
        buried(1, "A1"),
        "UPDATE topic SET active_node_id = 'Ax' WHERE id = 'A'",
        "UPDATE topic SET active_node_id = NULL WHERE id = 'A'",
        "UPDATE message SET parent_id = 'Ax' WHERE topic_key = 1 AND id = 'A1'",
    ],
)
def test_a_sound_write_is_not_refused(sql: sqlite3.Connection, statement: str):
    assert sql.execute(statement).rowcount == 1


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        # One virtual root per topic.
        (message(1, "new", None), "has its root"),
        (message(1, "new", None).replace("INSERT", "REPLACE", 1), "has its root"),
        (message(1, "A1", None).replace("INSERT", "INSERT OR REPLACE", 1), "has its root"),
        # role = 'root' if and only if there is no parent.
        (message(1, "new", None, role="user"), "has its root|message_root_role"),
        (message(1, "new", "A1", role="root"), "message_root_role"),
        ("UPDATE message SET role = 'root' WHERE id = 'A1'", "message_root_role"),
        ("UPDATE message SET role = 'user' WHERE id = 'A-root'", "message_root_role"),
        ("UPDATE message SET parent_id = NULL WHERE id = 'A1'", "no message of this topic"),
        (
            "UPDATE message SET parent_id = NULL, role = 'root' WHERE id = 'A2'",
            "no message of this topic",
        ),
        (
            "UPDATE message SET parent_id = 'A1', role = 'user' WHERE id = 'A-root'",
            "no message of this topic",
        ),
        # Role and status are of their lists; groups are not negative, and the root's is 0.
        (message(1, "new", "A1", role="bot"), "message_role"),
        (message(1, "new", "A1", role="User"), "message_role"),
        (message(1, "new", "A1", status="done"), "message_status"),
        ("UPDATE message SET status = '' WHERE id = 'A1'", "message_status"),
        ("UPDATE message SET status = NULL WHERE id = 'A1'", "NOT NULL"),
        (message(1, "new", "A1", siblings_group_id=-1), "message_group"),
        ("UPDATE message SET siblings_group_id = 1 WHERE id = 'A-root'", "message_group"),
        ("UPDATE message SET siblings_group_id = 'x' WHERE id = 'A1'", "cannot store TEXT"),
        # A parent is in the same topic.
        (message(1, "new", "nobody"), "no message of this topic"),
        (message(1, "new", "B1"), "no message of this topic"),
        (message(1, "new", "new"), "no message of this topic"),
        (message(9, "new", "A1"), "no message of this topic"),
        ("UPDATE message SET parent_id = 'nobody' WHERE id = 'A1'", "no message of this topic"),
        ("UPDATE message SET parent_id = 'B1' WHERE id = 'A1'", "no message of this topic"),
        ("UPDATE message SET topic_key = 2 WHERE id = 'A2'", "keeps its id and its topic"),
        ("UPDATE message SET id = 'new' WHERE id = 'A1'", "keeps its id and its topic"),
        # The active node is a content message of its topic.
        ("UPDATE topic SET active_node_id = 'A-root' WHERE id = 'A'", "no content message"),
        ("UPDATE topic SET active_node_id = 'nobody' WHERE id = 'A'", "no content message"),
        ("UPDATE topic SET active_node_id = 'B1' WHERE id = 'A'", "no content message"),
        ("UPDATE topic SET active_node_id = '' WHERE id = 'A'", "no content message"),
        (TOPIC.format(id="D", seq=0, active="'A1'"), "no message that could be active"),
        ("UPDATE message SET id = 'new' WHERE id = 'A2'", "keeps its id and its topic"),
        ("UPDATE OR REPLACE message SET id = 'A2' WHERE id = 'Ax'", "keeps its id"),
        # A seq is there once, and a topic is one.
        (EVENT, "event.topic_key, event.seq"),
        (TOPIC.format(id="A", seq=0, active="NULL"), "topic.id"),
        (TOPIC.format(id="D", seq=-1, active="NULL"), "topic_seq"),
        ("UPDATE topic SET id = 'D' WHERE id = 'A'", "keeps its id and its root"),
        ("UPDATE topic SET key = 9 WHERE id = 'A'", "keeps its id and its root"),
        ("UPDATE topic SET root_id = 'A1' WHERE id = 'A'", "keeps its id and its root"),
        # What is done once, is there once.
        ("INSERT INTO mutation VALUES ('ann', 'make A', x'00', 0, x'00')", "mutation.subject"),
        # A live reply is offered or leased.
        ("INSERT INTO live VALUES (1, 'Ar', 0, 5, NULL)", "live_lease|live_offer"),
        ("INSERT INTO live VALUES (1, 'Ar', 3, NULL, 5)", "live_lease|live_offer"),
        ("INSERT INTO live VALUES (1, 'Ar', 3, 5, 5)", "live_offer"),
        ("INSERT INTO live VALUES (1, 'Ar', -1, NULL, NULL)", "live_epoch"),
        # What is in the trash can come back.
        (buried(1, "At"), "trash_message.topic_key, trash_message.id"),
        (buried(1, "new", role="root"), "trash_message_role"),
        (buried(1, "new", status="gone"), "trash_message_status"),
        (buried(1, "new", siblings_group_id=-1), "trash_message_group"),
        (buried(1, "new", role=None), "NOT NULL"),
        (buried(1, "new", data=None), "NOT NULL"),
        (
            f"INSERT INTO trash VALUES (1, {TRASHED}, 'o', NULL, 1, NULL, NULL, 1, '{{}}')",
            "trash.topic_key, trash.seq",
        ),
        ("INSERT INTO trash VALUES (1, 0, 'o', NULL, 1, NULL, NULL, 1, '{}')", "trash_seq"),
        # A subject has read a topic up to one place.
        ("INSERT INTO reading VALUES ('ann', 1, 4)", "reading.subject, reading.topic_key"),
        ("INSERT INTO reading VALUES ('bea', 1, -1)", "reading_seq"),
        ("UPDATE topic SET temporary = NULL WHERE id = 'A'", "NOT NULL"),
        ("UPDATE topic SET used_at = 'now' WHERE id = 'A'", "cannot store TEXT"),
    ],
)
def test_a_write_that_breaks_an_invariant_is_refused(
    sql: sqlite3.Connection, statement: str, reason: str
):
    before = list(sql.iterdump())

    with pytest.raises(sqlite3.IntegrityError, match=reason):
        sql.execute(statement)

    assert list(sql.iterdump()) == before


@pytest.mark.parametrize(
    "statement",
    [
        message(9, "new", None),
        EVENT.replace("(1, 2,", "(9, 2,"),
        "INSERT INTO live VALUES (1, 'nobody', 3, 5, NULL)",
        buried(1, "new", entry_seq=TRASHED + 1),
        buried(3, "new"),
        "INSERT INTO trash VALUES (9, 1, 'o', NULL, 1, NULL, NULL, 1, '{}')",
        "INSERT INTO reading VALUES ('bea', 9, 1)",
    ],
)
def test_a_row_of_nothing_is_refused(keyed: sqlite3.Connection, statement: str):
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        keyed.execute(statement)


def active(sql: sqlite3.Connection) -> list[str | None]:
    """Return the active node of each topic."""
    return [row[0] for row in sql.execute("SELECT active_node_id FROM topic ORDER BY key")]


def test_deleting_the_active_message_clears_the_pointer(sql: sqlite3.Connection):
    assert active(sql) == ["A2", "B2", None]

    sql.execute("DELETE FROM message WHERE id = 'A2'")

    assert active(sql) == [None, "B2", None]


def test_deleting_another_message_leaves_the_pointer(sql: sqlite3.Connection):
    sql.execute("DELETE FROM message WHERE id = 'Ax'")

    assert active(sql) == ["A2", "B2", None]


def test_deleting_above_the_active_message_cascades_and_clears_the_pointer(
    keyed: sqlite3.Connection,
):
    keyed.execute("DELETE FROM message WHERE id = 'Au'")

    left = keyed.execute("SELECT id FROM message WHERE topic_key = 1 ORDER BY id").fetchall()
    assert left == [("A-root",), ("Ax",)]
    assert active(keyed) == [None, "B2", None]


def test_a_stranger_without_foreign_keys_leaves_no_orphan(file: Path):
    connection = sqlite3.connect(file, isolation_level=None)
    before = list(connection.iterdump())

    with pytest.raises(sqlite3.IntegrityError, match="has children"):
        connection.execute("DELETE FROM message WHERE id = 'Au'")

    assert list(connection.iterdump()) == before
    connection.close()


def test_deleting_the_root_takes_all_messages_and_no_other_topic_s(keyed: sqlite3.Connection):
    keyed.execute("DELETE FROM message WHERE id = 'A-root'")

    assert keyed.execute("SELECT count(*) FROM message WHERE topic_key = 1").fetchone() == (0,)
    assert keyed.execute("SELECT count(*) FROM message WHERE topic_key = 2").fetchone() == (7,)
    assert active(keyed) == [None, "B2", None]


def test_deleting_a_topic_takes_all_of_it_but_what_was_done_once(keyed: sqlite3.Connection):
    keyed.execute("INSERT INTO live VALUES (1, 'Ar', 3, 5, NULL)")

    keyed.execute("DELETE FROM topic WHERE id = 'A'")

    for table in ("message", "event", "live", "trash", "trash_message", "reading"):
        of_topic = f"SELECT count(*) FROM {table} WHERE topic_key = 1"
        assert keyed.execute(of_topic).fetchone() == (0,)
    assert keyed.execute("SELECT mutation FROM mutation ORDER BY 1").fetchall() == [
        ("make A",),
        ("make B",),
    ]
    assert active(keyed) == ["B2", None]


def test_deleting_a_trash_entry_takes_its_messages_and_no_others(keyed: sqlite3.Connection):
    keyed.execute("DELETE FROM trash WHERE topic_key = 1")

    left = keyed.execute("SELECT topic_key, id FROM trash_message").fetchall()
    assert left == [(2, "Bt")]
    assert keyed.execute("SELECT count(*) FROM message WHERE topic_key = 1").fetchone() == (7,)


def test_the_key_of_a_topic_that_is_gone_is_not_given_again(sql: sqlite3.Connection):
    sql.execute("DELETE FROM topic WHERE id = 'C'")

    sql.execute(TOPIC.format(id="D", seq=0, active="NULL"))

    assert sql.execute("SELECT key FROM topic WHERE id = 'D'").fetchone() == (4,)


async def test_a_topic_without_its_root_is_refused_loudly_and_alone(
    file: Path, sql: sqlite3.Connection
):
    sql.execute("DELETE FROM message WHERE id = 'C-root'")

    async with await SqliteStore.open(file) as store:
        with pytest.raises(Internal, match="topic C has lost its virtual root"):
            await store.load("C")

        assert await store.load("A") is not None


async def test_a_pointer_that_dangles_all_the_same_can_be_set_right(
    file: Path, sql: sqlite3.Connection
):
    sql.execute("DROP TRIGGER topic_activates")
    sql.execute("UPDATE topic SET active_node_id = 'nobody' WHERE id = 'A'")

    async with await SqliteStore.open(file) as store:
        loaded = await store.load("A")
        assert loaded is not None
        assert loaded.active_node_id == "nobody"
        room = Room.of(replace(loaded, active_node_id="A2"), maker="repair")

        await room.do(store, p.TopicSetActive(node_id=None))

        assert (await tree_in(store, "A")).active_node_id is None
