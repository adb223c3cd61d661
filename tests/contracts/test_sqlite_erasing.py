"""What is erased is nowhere in the file, and nobody waits long for it."""

import asyncio
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from livetree.core import protocol as p
from livetree.core.trash import Wanted
from livetree_server.storage import SqliteStore, erasing

from tests.contracts.building import START, Room, chain, check_stored, create, say

DAY = 24 * 60 * 60 * 1000
LATER = START + 31 * DAY
TABLES = ("topic", "message", "event", "live", "trash", "trash_message", "reading")


async def prune(store: SqliteStore, now: int) -> None:
    while await store.prune(now):
        pass


def rows_of(path: Path, topic_key: int) -> dict[str, int]:
    """Count what each table has of a topic."""
    with closing(sqlite3.connect(path)) as sql:
        return {
            table: sql.execute(
                f"SELECT count(*) FROM {table} WHERE {'key' if table == 'topic' else 'topic_key'}"
                f" = {topic_key}"
            ).fetchone()[0]
            for table in TABLES
        }


def sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as sql:
        assert sql.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert sql.execute("PRAGMA foreign_key_check").fetchall() == []


def found(path: Path, word: str) -> list[str]:
    """Tell which of the database's files have a word in them."""
    files = [path, *(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))]
    return [file.name for file in files if file.exists() and word.encode() in file.read_bytes()]


async def fill(store: SqliteStore, room: Room, word: str) -> None:
    """Make a topic with a word in content, names and log: in short rows and in long ones."""
    await room.do(store, create(f"{word} name"))
    for place in range(60):
        text = f"{word} " * (1 + place * place)
        await room.do(store, say(f"{room.tree.topic_id}{place}", text=text, model=word))
        if place % 3 == 0:
            changed = p.MessageUpdate(
                message_id=f"{room.tree.topic_id}{place}", text=f"{place}: {word}"
            )
            await room.do(store, changed)


async def test_nothing_of_what_was_erased_is_left_in_the_files(path: Path):
    gone, cut, kept, temporary = map(Room, ("gone", "cut", "kept", "temporary"))
    words = {"gone": "Zwieselbaum", "cut": "Quittenmus", "temporary": "Haselgerte"}
    async with await SqliteStore.open(path) as store:
        # Their rows lie between each other's, on the same pages.
        await asyncio.gather(
            *(fill(store, room, words[room.tree.topic_id]) for room in (gone, cut)),
            fill(store, kept, "Kamille"),
        )
        await cut.do(store, p.TopicUpdate(name="cut"))
        await cut.do(store, p.MessageDelete(message_id="cut5", cascade=True))
        await cut.do(store, p.TopicClear())
        await gone.do(store, p.MessageDelete(message_id="gone3"))
        await gone.do(store, p.TopicDelete())
        await store._writer.write(lambda tx: tx.exec_driver_sql("DELETE FROM mutation").rowcount)
        for word in ("Zwieselbaum", "Quittenmus", "Kamille"):
            assert found(path, word)

        await prune(store, LATER)

        # While the store is open, and its log is there.
        assert found(path, "Zwieselbaum") == []
        assert found(path, "Quittenmus") == []
        assert found(path, "Kamille")
        await temporary.do(store, create("Haselgerte", temporary=True), say("a", text="Haselgerte"))
        await temporary.do(store, p.TopicDelete())
        await prune(store, LATER)
        assert found(path, "Haselgerte") == []
        await check_stored(store, kept)
    for word in words.values():
        assert found(path, word) == []
    assert set(rows_of(path, 1).values()) == {0}
    sound(path)


async def test_a_log_that_somebody_reads_is_emptied_later(path: Path):
    room = Room()
    async with await SqliteStore.open(path) as store:
        await room.do(store, create(temporary=True), say("a", text="Haselgerte"))
        with closing(sqlite3.connect(path, isolation_level=None)) as sql:
            sql.execute("BEGIN")
            sql.execute("SELECT count(*) FROM message").fetchone()
            await room.do(store, p.TopicDelete())

            for _ in range(3):
                assert await store.prune(START)

            assert found(path, "Haselgerte")
            sql.execute("ROLLBACK")
        await prune(store, START)
        assert found(path, "Haselgerte") == []


@pytest.mark.parametrize("left", ["a missing root", "orphans"])
async def test_a_damaged_topic_is_erased_too(path: Path, left: str):
    room = Room()
    async with await SqliteStore.open(path) as store:
        await room.do(store, chain("topic-root", 3_000))
        await room.do(store, p.TopicDelete())
    with closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("DROP TRIGGER message_goes")
        sql.execute(f"DELETE FROM message WHERE id = '{'topic-root' if left[0] == 'a' else 'm9'}'")

    async with await SqliteStore.open(path) as store:
        await prune(store, LATER)

    assert set(rows_of(path, 1).values()) == {0}
    sound(path)


async def test_a_topic_that_is_half_erased_is_erased_after_a_restart(path: Path):
    room = Room()
    async with await SqliteStore.open(path) as store:
        await room.do(store, chain("topic-root", 5_000))
        await room.do(store, p.TopicDelete())
        for _ in range(3):
            assert await store.prune(LATER)
    assert 0 < rows_of(path, 1)["message"] < 5_001
    sound(path)

    async with await SqliteStore.open(path) as store:
        assert await store.load("topic", deleted=True) is None
        # It isn't given back, whatever the clock says now.
        await prune(store, START)

    assert set(rows_of(path, 1).values()) == {0}


async def test_a_slice_that_failed_is_done_again(path: Path):
    room = Room()
    async with await SqliteStore.open(path) as store:
        await room.do(store, chain("topic-root", 3_000))
        await room.do(store, p.TopicDelete())
        assert await store.prune(LATER)
        before = rows_of(path, 1)

        def fail(tx):
            store._pruning(tx, LATER)
            raise RuntimeError("the power went out")

        with pytest.raises(Exception, match="report this"):
            await store._writer.write(fail)

        assert rows_of(path, 1) == before
        await prune(store, LATER)
    assert set(rows_of(path, 1).values()) == {0}
    sound(path)


async def test_one_call_removes_a_thousand_rows_at_most(path: Path, monkeypatch):
    monkeypatch.setattr(erasing, "_SECONDS", 60.0)
    room = Room()
    async with await SqliteStore.open(path) as store:
        await room.do(store, chain("topic-root", 5_000))
        await room.do(store, p.TopicClear(), say("a"), p.TopicDelete())
        before = 5_000
        calls = 0
        while await store.prune(LATER):
            left = rows_of(path, 1)["trash_message"]
            assert before - left <= 1_000
            before = left
            calls += 1
        assert calls >= 5


async def test_one_call_ends_after_a_while_though_its_rows_are_few(path: Path, monkeypatch):
    monkeypatch.setattr(erasing, "_SECONDS", 0.0)
    room = Room()
    async with await SqliteStore.open(path) as store:
        await room.do(store, create(), say("a"), p.MessageDelete(message_id="a"))
        assert await store.prune(LATER)
        assert await store.trash("topic", Wanted(seq=3)) is not None
        monkeypatch.undo()
        await prune(store, LATER)
        assert await store.trash("topic", Wanted(seq=3)) is None


async def test_the_twin_of_a_file_without_its_log_has_nothing_either(path: Path, tmp_path: Path):
    room = Room()
    async with await SqliteStore.open(path) as store:
        await room.do(store, create(temporary=True), say("a", text="Haselgerte"))
        await room.do(store, p.TopicDelete())
        await prune(store, START)
        copy = tmp_path / "copy.db"
        shutil.copy(path, copy)
    assert set(rows_of(copy, 1).values()) == {0}


async def test_commits_go_on_while_a_hundred_thousand_messages_are_erased(path: Path):
    room, other = Room(), Room("other")
    async with await SqliteStore.open(path) as store:
        await room.do(store, chain("topic-root", 100_000))
        await room.do(store, p.TopicDelete())
        await other.do(store, create())
        longest = 0.0
        erasing_it = asyncio.create_task(prune(store, LATER))
        while not erasing_it.done():
            began = time.monotonic()
            await other.do(store, say(f"m{other.tree.seq}"))
            longest = max(longest, time.monotonic() - began)
        await erasing_it
        await check_stored(store, other)
    assert set(rows_of(path, 1).values()) == {0}
    assert longest < 2, "seconds: it was held up by what is erased"
