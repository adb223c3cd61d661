import asyncio
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from livetree.core.errors import Busy, Internal
from livetree_server.storage import SqliteStore, StoreInUse, StoreRefused, sqlite
from livetree_server.topics.ports import SeqTaken, StoreError
from msgspec.structs import replace

from tests.contracts.building import Room, check_stored, create, frames_of, say, tree_in

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "livetree.db"


async def open_and_close(path: Path) -> None:
    await (await SqliteStore.open(path)).close()


# Opening ----------------------------------------------------------------------------------


async def test_a_new_file_is_made_with_its_folder(tmp_path: Path):
    path = tmp_path / "one" / "two" / "livetree.db"

    await open_and_close(path)

    assert path.is_file()


async def test_what_was_written_is_there_after_opening_again(path: Path):
    room = Room()
    async with await SqliteStore.open(path) as store:
        await room.do(store, create("Trip"), say("a"))

    async with await SqliteStore.open(path) as store:
        await check_stored(store, room)
        await room.do(store, say("b"))
        await check_stored(store, room)


async def test_an_empty_file_becomes_a_database(path: Path):
    path.touch()

    await open_and_close(path)

    assert path.read_bytes().startswith(b"SQLite format 3")


async def test_a_second_server_is_refused_and_the_first_goes_on(path: Path, tmp_path: Path):
    (tmp_path / "link.db").symlink_to(path)
    room = Room()
    async with await SqliteStore.open(path) as store:
        for name in (path, tmp_path / "link.db", tmp_path / "." / "x" / ".." / "livetree.db"):
            with pytest.raises(StoreInUse, match=str(path)):
                await SqliteStore.open(name)

        await room.do(store, create())
        await check_stored(store, room)

    await open_and_close(path)


async def test_a_server_in_another_process_is_refused(path: Path):
    code = (
        "import asyncio, sys\n"
        "from livetree_server.storage import SqliteStore, StoreInUse\n"
        "try: asyncio.run(SqliteStore.open(sys.argv[1]))\n"
        "except StoreInUse as error: print(error)\n"
    )
    async with await SqliteStore.open(path):
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
        )

    assert done.stdout == (
        f"{path} is in use by another livetree server: stop that one, or name another file\n"
    )


async def test_a_database_of_a_newer_livetree_is_refused_and_left_alone(path: Path):
    await open_and_close(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("UPDATE alembic_version SET version_num = '9999'")
    before = path.read_bytes()

    with pytest.raises(StoreRefused, match=r"written by a newer livetree .*9999.*: install that"):
        await SqliteStore.open(path)

    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"no database\n" * 1000, b"x", b"SQLite format 4\0" * 100])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes):
    path.write_bytes(content)

    with pytest.raises(StoreRefused, match=f"{path} is not an SQLite database: name another"):
        await SqliteStore.open(path)

    assert path.read_bytes() == content


async def test_a_damaged_database_is_refused(path: Path):
    await open_and_close(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:16] + b"\xff" * (len(whole) - 16))

    with pytest.raises(StoreRefused, match=f"{path} can't be used as a database .*backup"):
        await SqliteStore.open(path)


@pytest.mark.parametrize("mark", ["PRAGMA application_id = 77", "CREATE TABLE alembic_version (x)"])
async def test_another_program_s_database_is_refused_and_left_alone(path: Path, mark: str):
    with closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("CREATE TABLE theirs (x)")
        sql.execute(mark)
    before = path.read_bytes()

    with pytest.raises(StoreRefused, match="another program"):
        await SqliteStore.open(path)

    assert path.read_bytes() == before


async def test_a_folder_that_can_t_be_written_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()

    with pytest.raises(StoreRefused, match=r"file can't be written to .*: name a file in a folder"):
        await SqliteStore.open(tmp_path / "file" / "livetree.db")


async def test_a_folder_in_place_of_the_file_is_refused(path: Path):
    path.mkdir()

    with pytest.raises(StoreRefused, match=f"{path} can't be read .*: name another file"):
        await SqliteStore.open(path)


async def test_a_refused_file_is_not_kept_locked(path: Path):
    path.write_text("no database")
    for _ in range(2):
        with pytest.raises(StoreRefused, match="not an SQLite database"):
            await SqliteStore.open(path)
    path.unlink()

    await open_and_close(path)


async def test_an_sqlite_that_is_too_old_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))

    with pytest.raises(StoreRefused, match=r"needs 3\.37"):
        await SqliteStore.open(path)


async def test_an_opening_that_is_cancelled_lets_go_of_the_file(path: Path):
    opening = asyncio.create_task(SqliteStore.open(path))
    await asyncio.sleep(0)  # it begins
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening

    # The thread that opens goes on for a while.
    async with asyncio.timeout(30):
        while True:
            try:
                return await open_and_close(path)
            except StoreInUse:
                await asyncio.sleep(0.01)


async def test_the_connections_are_set_up_for_durability(path: Path):
    async with await SqliteStore.open(path) as store:

        def pragmas(tx, *names):
            return [tx.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        for settings in (
            await store._read(pragmas, *names),
            await store._writer.write(lambda tx: pragmas(tx, *names)),
        ):
            assert settings == ["wal", 2, 1, 5000]


# Faults -----------------------------------------------------------------------------------


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
    room = Room()
    async with await SqliteStore.open(path) as store:
        with locked(path), pytest.raises(StoreError, match="can't be written"):
            await room.do(store, create())

        await room.do(store, create())
        await check_stored(store, room)


# Crashes ----------------------------------------------------------------------------------


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
