import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from livetree.core import protocol as p
from livetree.core.trash import Wanted
from livetree_server.storage import SqliteStore, files, migrate
from livetree_server.storage.schema import metadata
from livetree_server.topics.ports import MutationKey
from sqlalchemy import Engine, create_engine, event

from tests.contracts.building import START, Room, ask, check_stored, create, say

OF_OURS = {"SCAN late", "SCAN asked", "SCAN unread"}
VERBS = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")


@pytest.fixture
async def migrated(path: Path) -> Path:
    """A database as the revisions make it."""
    await (await SqliteStore.open(path)).close()
    return path


def ddl(path: Path) -> dict[str, str]:
    """Return what makes each table, index and trigger, but not its spacing."""
    with closing(sqlite3.connect(path)) as sql:
        rows = sql.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {name: " ".join(text.split()) for name, text in rows}


def test_the_revisions_make_what_the_schema_says(migrated: Path, tmp_path: Path):
    made = tmp_path / "made.db"
    engine = create_engine(f"sqlite:///{made}")
    metadata.create_all(engine)
    engine.dispose()

    revised = ddl(migrated)

    assert revised.pop("alembic_version")
    assert revised == ddl(made)
    assert len([name for name in revised if revised[name].startswith("CREATE TRIGGER")]) == 8


def test_alembic_sees_no_difference(migrated: Path):
    engine = create_engine(f"sqlite:///{migrated}")
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_name": lambda name, kind, _: (kind, name) != ("table", "alembic_version")
            },
        )

        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_the_newest_revision_is_the_one_that_the_code_asks_for(migrated: Path):
    config = Config()
    config.set_main_option("script_location", "livetree_server.storage:migrations")

    assert ScriptDirectory.from_config(config).get_heads() == [migrate.HEAD]
    with closing(sqlite3.connect(migrated)) as sql:
        assert sql.execute("SELECT * FROM alembic_version").fetchall() == [(migrate.HEAD,)]
        assert sql.execute("PRAGMA application_id").fetchone() == (files.APPLICATION,)


async def test_a_migration_that_fails_leaves_nothing(path: Path):
    trigger = "CREATE TRIGGER topic_keeps_id"

    def fail(conn, cursor, statement, parameters, context, executemany):
        if statement.startswith(trigger):
            raise sqlite3.OperationalError("the power went out")

    event.listen(Engine, "before_cursor_execute", fail)
    try:
        with pytest.raises(Exception, match="the power went out"):
            await SqliteStore.open(path)
    finally:
        event.remove(Engine, "before_cursor_execute", fail)

    assert ddl(path) == {}
    await (await SqliteStore.open(path)).close()
    assert "topic_keeps_id" in ddl(path)


async def test_a_database_of_the_first_revision_comes_along_with_what_is_in_it(
    path: Path, tmp_path: Path
):
    room, deleted = Room(), Room("deleted")
    source = tmp_path / "source.db"
    async with await SqliteStore.open(source) as store:
        await room.do(store, create("Trip", mutation="m"), say("a"), ask("u", "r"))
        await room.do(store, p.StreamClaim(message_id="r"))
        await deleted.do(store, create("Gone"), say("a"), p.TopicDelete())
    revised(path, "0001")
    with closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("ATTACH ? AS source", (str(source),))
        for table in ("topic", "message", "event", "mutation", "live"):
            names = [row[1] for row in sql.execute(f"PRAGMA main.table_info({table})")]
            columns = ", ".join(f'"{name}"' for name in names)
            taken = columns.replace('"active_node_id"', "NULL")  # there is no message yet
            sql.execute(f"INSERT INTO main.{table} SELECT {taken} FROM source.{table}")
        sql.execute(
            "UPDATE main.topic SET active_node_id = its.active_node_id"
            " FROM source.topic AS its WHERE its.id = main.topic.id"
        )

    async with await SqliteStore.open(path) as store:
        await check_stored(store, room)
        loaded = await store.load("deleted", deleted=True)
        assert loaded is not None
        assert loaded.state == deleted.tree.state
        rows, _ = await store.topics(cursor=None, limit=10, name="")
        assert [row.topic_id for row in rows] == ["topic"]
        assert await store.unused(START * 2) == []
        await room.do(store, p.StreamAbort(message_id="r"), p.MessageDelete(message_id="a"))
        await room.do(store, p.TopicUndo())
        await check_stored(store, room)
    made = tmp_path / "made.db"
    await (await SqliteStore.open(made)).close()
    assert ddl(path) == ddl(made)


def revised(path: Path, revision: str) -> None:
    """Make an empty database of a revision, as the server of its time made it."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as tx:
        config = Config()
        config.set_main_option("script_location", "livetree_server.storage:migrations")
        config.attributes["connection"] = tx
        tx.exec_driver_sql(f"PRAGMA application_id = {files.APPLICATION}")
        command.upgrade(config, revision)
    engine.dispose()


async def test_no_statement_goes_through_a_whole_table(path: Path):
    await (await SqliteStore.open(path)).close()
    statements: list[str] = []

    def listen(connection: sqlite3.Connection, _: object) -> None:
        connection.set_trace_callback(statements.append)

    event.listen(Engine, "connect", listen)
    try:
        async with await SqliteStore.open(path) as store:
            statements.clear()  # those that opened it
            await do_everything(store)
            statements = [each for each in statements if each.startswith(VERBS)]
            assert len({each.split("(")[0] for each in statements}) > 25
    finally:
        event.remove(Engine, "connect", listen)

    with closing(sqlite3.connect(path)) as sql:
        for statement in statements:
            for *_, line in sql.execute(f"EXPLAIN QUERY PLAN {statement}"):
                # A whole index in its order is read for the list and the rounds: up to a limit.
                whole = line.startswith("SCAN") and "USING INDEX" not in line
                of_parameters = "CONSTANT ROW" in line or line in OF_OURS
                assert not whole or of_parameters, f"{line}: {statement}"


async def do_everything(store: SqliteStore) -> None:
    """Use every statement, with more than one key where there can be more."""
    room = Room()
    await room.do(store, create(mutation="m1"), ask("u", "a", "b"), say("c", mutation="m2"))
    await room.do(store, p.StreamClaim(message_id="a"))
    await store.renew("topic", "a", 4, START)
    await room.do(
        store,
        p.StreamAbort(message_id="a"),
        p.MessageUpdate(message_id="a", parent="ROOT", text="changed"),
        p.TopicUpdate(name="new"),
        p.MessageDelete(message_id="c"),
    )
    await store.load("topic")
    await store.contents("topic", ["a", "b"])
    await store.deltas("topic", 0, 10)
    await store.commit_at("topic", 1)
    await store.mutations([MutationKey("ann", "m1"), MutationKey("ann", "m2")])
    await Room("other").do(store, create())
    _, cursor = await store.topics(cursor=None, limit=1, name="")
    assert cursor is not None
    await store.topics(cursor=cursor, limit=1, name="x")
    await store.listed(["topic", "other"])
    await store.offers()
    await store.due(lease_before=0, offered_before=0)
    for seq in (1, 2):
        await store.mark_read("bea", "topic", seq)
    await store.seen("bea", ["topic", "other"])
    await room.do(store, p.StreamAbort(message_id="b"), p.MessageDelete(message_id="b"))
    for wanted in (Wanted(seq=5), Wanted(message_id="c", whole=True), Wanted(message_id="c")):
        await store.trash("topic", wanted)
    _, cursor = await store.trash_page("topic", cursor=None, limit=1)
    assert cursor is not None
    await store.trash_page("topic", cursor=cursor, limit=1)
    await room.do(store, p.TopicUndo(), p.TopicUpdate(name="newer"))
    temporary = Room("temporary")
    await temporary.do(store, create(temporary=True), say("a"))
    await store.used(["temporary", "topic"], START)
    await store.unused(START)
    await temporary.do(store, p.TopicDelete())
    await room.do(store, p.TopicDelete())
    await store.load("topic", deleted=True)
    while await store.prune(START * 10**6):
        pass
