"""What is left of a database file, and of its log, when a server is killed."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from livetree_server.storage import SqliteStore

from tests.contracts.building import Room, check_stored, create, frames_of, say, tree_in

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("acknowledged", [1, 50, 400])
async def test_X6_what_was_acknowledged_survives_kill_9(path: Path, acknowledged: int):
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.contracts.crashing", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    lines = [server.stdout.readline() for _ in range(acknowledged)]
    server.kill()
    lines += server.stdout.read().splitlines(keepends=True)
    server.wait()
    server.stdout.close()
    assert path.with_name(f"{path.name}-wal").stat().st_size > 0, "there is nothing to recover"

    last: dict[str, int] = {}
    async with await SqliteStore.open(path) as store:
        for line in lines:
            topic_id, seq, commit = line.split()
            last[topic_id] = int(seq)
            assert await store.commit_at(topic_id, int(seq)) == commit
        for topic_id, seq in last.items():
            tree = await tree_in(store, topic_id)
            assert tree.seq >= seq
            assert len(await store.deltas(topic_id, 0, 100_000)) == tree.seq
    sound(path)


def sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as sql:
        assert sql.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert sql.execute("PRAGMA foreign_key_check").fetchall() == []


async def test_the_log_alone_brings_back_what_the_file_has_not_got_yet(path: Path, tmp_path: Path):
    crashed = tmp_path / "crashed" / "livetree.db"
    crashed.parent.mkdir()
    room = Room()
    async with await SqliteStore.open(path) as store:
        await room.do(store, create(), *(say(f"m{place}") for place in range(20)))
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{crashed}{end}")
    assert rows_in_the_file_alone(crashed) == 0

    async with await SqliteStore.open(crashed) as store:
        await check_stored(store, room)
    sound(crashed)


@pytest.mark.parametrize("lost", [1, 30, 5_000, 20_000, 60_000])
async def test_a_torn_log_loses_whole_commits_only(path: Path, tmp_path: Path, lost: int):
    torn = tmp_path / "torn" / "livetree.db"
    torn.parent.mkdir()
    room = Room()
    runs = []
    async with await SqliteStore.open(path) as store:
        runs.append(await room.do(store, create()))
        for place in range(20):
            runs.append(
                await room.do(store, say(f"m{place}", text="x" * 3_000, mutation=f"{place}"))
            )
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{torn}{end}")
    log = torn.with_name(f"{torn.name}-wal")
    log.write_bytes(log.read_bytes()[:-lost])

    async with await SqliteStore.open(torn) as store:
        tree = await tree_in(store, "topic")
        assert 0 < tree.seq < room.tree.seq
        assert {node.id for node in tree.nodes()} == {f"m{place}" for place in range(tree.seq - 1)}
        assert await store.deltas("topic", 0, 100) == frames_of(runs[: tree.seq])
    sound(torn)


async def test_the_log_stays_small_under_constant_load(path: Path):
    rooms = [Room(f"t{place}") for place in range(20)]
    written = 0
    async with await SqliteStore.open(path) as store:
        await asyncio.gather(*(room.do(store, create()) for room in rooms))

        async def write(room: Room) -> None:
            for place in range(40):
                await room.do(store, say(f"m{place}", text="x" * 200_000))

        await asyncio.gather(*map(write, rooms))
        written = 20 * 40 * 200_000
        log = path.with_name(f"{path.name}-wal").stat().st_size

    assert log < written / 2


async def test_the_file_catches_up_with_the_log_when_nobody_writes(path: Path):
    rooms = [Room(f"t{place}") for place in range(250)]
    async with await SqliteStore.open(path) as store:
        await asyncio.gather(*(room.do(store, create()) for room in rooms))

        async with asyncio.timeout(30):
            while rows_in_the_file_alone(path) < 250:
                await asyncio.sleep(0.01)

        await check_stored(store, *rooms)


def rows_in_the_file_alone(path: Path) -> int:
    """Count the topics that are there without the log."""
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as sql:
        (count,) = sql.execute("SELECT count(*) FROM topic").fetchone()
        return int(count)
