"""How the one writer of a database file shares its transactions, and fails."""

import asyncio
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from livetree.core.errors import Busy, Internal
from livetree_server.storage import SqliteStore, sqlite
from livetree_server.topics.ports import SeqTaken, StoreError
from msgspec.structs import replace

from tests.contracts.building import Room, check_stored, create, say, tree_in


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep the writer waiting for the database."""
    with closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("BEGIN IMMEDIATE")
        yield
        sql.execute("ROLLBACK")


async def wait_until_writing(store: SqliteStore) -> None:
    """Wait until the writer has taken what was put into its queue."""
    async with asyncio.timeout(30):
        while store.statistics()["waiting"]:
            await asyncio.sleep(0)


async def test_what_waits_is_written_together(path: Path):
    rooms = [Room(f"t{place}") for place in range(100)]
    async with await SqliteStore.open(path) as store:
        with locked(path):
            commits = [asyncio.create_task(rooms[0].do(store, create()))]
            await asyncio.sleep(0)
            await wait_until_writing(store)
            commits += [asyncio.create_task(room.do(store, create())) for room in rooms[1:]]
            await asyncio.sleep(0)
            assert store.statistics()["waiting"] == 99

        await asyncio.gather(*commits)

        assert store.statistics()["groups"] == 2
        await check_stored(store, *rooms)


async def test_one_bad_run_of_a_group_fails_alone(path: Path):
    rooms = [Room(f"t{place}") for place in range(40)]
    async with await SqliteStore.open(path) as store:
        await asyncio.gather(*(room.do(store, create()) for room in rooms))
        runs = [room.plan(say("a", mutation=room.tree.topic_id)) for room in rooms]
        runs[20] = replace(runs[20], active_node_id="nobody")
        stale = replace(runs[30], base_seq=7)
        runs[30] = stale
        with locked(path):
            first = asyncio.create_task(Room("first").do(store, create()))
            await asyncio.sleep(0)
            await wait_until_writing(store)
            commits = [asyncio.create_task(store.commit(run)) for run in runs]
            await asyncio.sleep(0)

        outcomes = await asyncio.gather(*commits, return_exceptions=True)

        await first
        assert [place for place, each in enumerate(outcomes) if each is not None] == [20, 30]
        assert isinstance(outcomes[20], Internal)
        assert isinstance(outcomes[30], SeqTaken)
        for place, room in enumerate(rooms):
            if outcomes[place] is None:
                room.keep(runs[place])
        await check_stored(store, *rooms)


async def test_R6_a_full_queue_is_busy_and_what_waits_is_written(path: Path):
    rooms = [Room(f"t{place}") for place in range(5)]
    async with await SqliteStore.open(path, max_waiting=3) as store:
        with locked(path):
            commits = [asyncio.create_task(rooms[0].do(store, create()))]
            await asyncio.sleep(0)
            await wait_until_writing(store)
            commits += [asyncio.create_task(room.do(store, create())) for room in rooms[1:4]]
            await asyncio.sleep(0)

            with pytest.raises(Busy, match="3 commits wait"):
                await rooms[4].do(store, create())

        await asyncio.gather(*commits)

        await rooms[4].do(store, create())
        await check_stored(store, *rooms)


async def test_closing_writes_what_waits(path: Path):
    rooms = [Room(f"t{place}") for place in range(10)]
    store = await SqliteStore.open(path)
    with locked(path):
        commits = [asyncio.create_task(room.do(store, create())) for room in rooms]
        await asyncio.sleep(0)
        closing_it = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        with pytest.raises(StoreError, match="closed"):
            await Room("late").do(store, create())

    await closing_it

    await asyncio.gather(*commits)
    async with await SqliteStore.open(path) as again:
        await check_stored(again, *rooms)


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Let no file grow beyond the size of the write-ahead log."""
    size = path.with_name(f"{path.name}-wal").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_a_disk_that_is_full_fails_commits_and_nothing_else(path: Path):
    room, other = Room(), Room("other")
    async with await SqliteStore.open(path) as store:
        await room.do(store, create(), say("a"))
        await other.do(store, create())
        with full_disk(path):
            outcomes = await asyncio.gather(
                store.commit(room.plan(say("lost"))),
                store.commit(other.plan(say("lost", text="x" * 100_000))),
                return_exceptions=True,
            )

            assert [type(outcome) for outcome in outcomes] == [StoreError, StoreError]
            assert "a" in await tree_in(store, "topic")

        await room.do(store, say("b"))
        await other.do(store, say("b"))
        await check_stored(store, room, other)
    async with await SqliteStore.open(path) as store:
        await check_stored(store, room, other)


async def test_a_database_that_is_locked_for_long_is_unavailable(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    pragmas = ["busy_timeout = 1" if each.startswith("busy") else each for each in sqlite._PRAGMAS]
    monkeypatch.setattr(sqlite, "_PRAGMAS", pragmas)
    rooms = [Room(f"t{place}") for place in range(20)]
    async with await SqliteStore.open(path) as store:
        with locked(path):
            commits = [store.commit(room.plan(create())) for room in rooms]
            for outcome in await asyncio.gather(*commits, return_exceptions=True):
                assert isinstance(outcome, StoreError)
                assert "can't be written" in str(outcome)
        # Whoever waited with another has not waited for each other once more.
        assert store.statistics()["failures"] <= 2

        await asyncio.gather(*(room.do(store, create()) for room in rooms))
        await check_stored(store, *rooms)


async def test_a_cancelled_caller_of_a_group_does_not_keep_the_others_waiting(path: Path):
    rooms = [Room(f"t{place}") for place in range(10)]
    async with await SqliteStore.open(path) as store:
        with locked(path):
            runs = [room.plan(create()) for room in rooms]
            commits = [asyncio.create_task(store.commit(run)) for run in runs]
            await asyncio.sleep(0)
            for cancelled in (commits[0], commits[4]):
                cancelled.cancel()

        outcomes = await asyncio.gather(*commits, return_exceptions=True)

        assert [place for place, each in enumerate(outcomes) if each is not None] == [0, 4]
        for room, run in zip(rooms, runs, strict=True):
            room.keep(run)
        await check_stored(store, *rooms)
