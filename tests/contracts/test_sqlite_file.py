"""Opening a database file: whose it is, and what is refused."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from livetree_server.storage import SqliteStore, StoreInUse, StoreRefused

from tests.contracts.building import Room, check_stored, create, say


async def open_and_close(path: Path) -> None:
    await (await SqliteStore.open(path)).close()


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
                await open_and_close(path)
                break
            except StoreInUse:
                await asyncio.sleep(0.01)
    assert not [each for each in threading.enumerate() if each.name == "livetree-writer"]


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
