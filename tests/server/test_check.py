"""Whole databases, checked and repaired by the program."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from livetree.core import protocol as p
from livetree_server.cli import check as check_module
from livetree_server.cli.program import run
from livetree_server.storage import SqliteStore
from livetree_server.storage.checking import Finding, Passed
from livetree_server.storage.files import StoreRefused

from tests.conformance.raw_store import RawStore
from tests.helpers import check_invariants
from tests.server.damage import (
    check,
    dump,
    make,
    of,
    opened,
    parent,
    pointer,
    query,
    repair,
    write,
)
from tests.server.program import Program, sentence

EVENT = (
    "INSERT INTO event SELECT \"key\", {seq}, 'c{seq}', {prev}, '', 1, x'7b7d'"
    " FROM topic WHERE id = 'T'"
)
ROOTLESS = f"DELETE FROM message WHERE {of('T')} AND id = 'T-root'"
SECOND = (
    "INSERT INTO message (topic_key, id, parent_id, role, status, siblings_group_id, preview,"
    " empty, version, created_at, updated_at, data) SELECT \"key\", 'second', NULL, 'root',"
    " 'success', 0, '', 1, 1, 5, 5, '{data}' FROM topic WHERE id = 'T'"
)
EMPTY = '{"parts":[]}'
SAYS = '{"parts":[{"type":"text","text":"hi"}]}'


def column(name: str, value: Any, message_id: str = "c") -> tuple[str, tuple[Any, ...]]:
    return f"UPDATE message SET {name} = ? WHERE {of('T')} AND id = ?", (value, message_id)


def head(name: str, value: Any) -> tuple[str, tuple[Any, ...]]:
    return f"UPDATE topic SET {name} = ? WHERE id = 'T'", (value,)


DAMAGE: dict[str, tuple[list[Any], list[str]]] = {
    "pointer": ([pointer("T", "nobody")], ["topic T: the active node is 'nobody', which"]),
    "pointer to the root": ([pointer("T", "T-root")], ["the active node is 'T-root', which"]),
    "pointer elsewhere": ([pointer("T", "only-S")], ["the active node is 'only-S', which"]),
    "null": ([pointer("T", None)], ["the stored digest is '"]),
    "orphan": ([parent("T", "b", "nobody")], ["message 'b' has the parent 'nobody', which"]),
    "cycle": ([parent("T", "a", "c")], ["message 'a' is below itself, through its parent 'c'"]),
    "version": ([column("version", 7)], ["message 'c' has the version 7, above the topic's seq"]),
    "digest": ([head("digest", "feed")], ["the stored digest is 'feed', that of the rows '"]),
    "live": (
        ["INSERT INTO live SELECT \"key\", 'ghost', 3, 1, NULL FROM topic WHERE id = 'T'"],
        ["'ghost' is noted as live (epoch 3)"],
    ),
    "role": ([column("role", "bot")], ["message 'c' has the role 'bot'", "CHECK constraint"]),
    "status": ([column("status", "done")], ["message 'c' has the status 'done'"]),
    "group": ([column("siblings_group_id", -2)], ["message 'c' has the group -2"]),
    "no root": ([ROOTLESS], ["its virtual root 'T-root' is missing"]),
    "no root, an orphan": (
        [ROOTLESS, parent("T", "b", "nobody")],
        ["its virtual root 'T-root' is missing", "'b' has the parent 'nobody'"],
    ),
    "another root": ([head("root_id", "R")], ["'T-root' is a second virtual root beside 'R'"]),
    "root below a message": (
        ["DROP INDEX message_one_root", column("parent_id", "c", "T-root")],
        ["its virtual root 'T-root' hangs below 'c'", "index 'message_one_root' is missing"],
    ),
    "root of another role": (
        [column("role", "user", "T-root")],
        ["its virtual root 'T-root' has the role 'user'"],
    ),
    "two roots": (
        ["DROP INDEX message_one_root", SECOND.format(data=EMPTY), parent("T", "b", "second")],
        ["'second' is a second virtual root", "'b' has the parent 'second'"],
    ),
    "a second root that says something": (
        ["DROP INDEX message_one_root", SECOND.format(data=SAYS)],
        ["'second' is a second virtual root beside 'T-root'"],
    ),
    "hole": (
        [
            *(EVENT.format(seq=seq, prev=f"'c{seq - 1}'") for seq in (3, 4)),
            *(head("seq", 4), head("commit_id", "c4")),
        ],
        ["its event log has a hole between 1 and 3"],
    ),
    "chain": (
        [EVENT.format(seq=2, prev="'x'"), head("seq", 2), head("commit_id", "c2")],
        ["event 2 follows on commit 'x', not on '"],
    ),
    "first event": (
        [f"UPDATE event SET prev = 'x' WHERE {of('T')}"],
        ["the first event follows on commit 'x', not on nothing"],
    ),
    "events above": (
        [EVENT.format(seq=2, prev="NULL"), EVENT.format(seq=3, prev="'c2'")],
        ["its event log goes on from 2 to 3, above its seq 1"],
    ),
    "events above, and a pointer": (
        [EVENT.format(seq=2, prev="NULL"), pointer("T", "x")],
        ["its event log goes on from 2 to 2, above its seq 1", "the active node is 'x'"],
    ),
    "end of the log": ([head("seq", 5)], ["its event log ends at 1, before its seq 5"]),
    "commit": ([head("commit_id", "x")], ["the last event is of commit '", "is at 'x'"]),
    "index": (["DROP INDEX message_children"], ["the database: the index 'message_children' is"]),
    "another index": (
        ["DROP INDEX message_children", "CREATE INDEX message_children ON message (role)"],
        ["the index 'message_children' is not as livetree makes it"],
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of two sound topics."""
    path = tmp_path_factory.mktemp("made") / "livetree.db"
    make(path, "S", "T")
    return path


@pytest.fixture
def file(made: Path, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return Path(shutil.copy(made, tmp_path / "data/livetree.db"))


@pytest.fixture
def program(file: Path, tmp_path: Path) -> Program:
    return Program(tmp_path)


def seqs(file: Path) -> dict[str, int]:
    return dict(query(file, "SELECT id, seq FROM topic"))  # type: ignore[arg-type]


def test_a_sound_database_has_no_faults(file: Path):
    with opened(file) as checker:
        assert checker.count() == 2
        assert list(checker.check()) == [Passed(6), Passed(6)]
        assert list(checker.repair()) == [Passed(6), Passed(6)]
    assert seqs(file) == {"S": 1, "T": 1}


def prove_mended(file: Path, name: str) -> None:
    """Do the damage, and demand that it is told, mended once, and nothing else is touched."""
    statements, told = DAMAGE[name]
    write(file, *statements)

    found = check(file)
    mended = repair(file)

    for each in told:
        assert any(each in line for line in found), found
    assert sorted(found) == sorted(mended)
    assert check(file) == []
    before = dump(file)
    assert repair(file) == []
    assert dump(file) == before
    assert seqs(file)["S"] == 1


@pytest.mark.parametrize("name", DAMAGE)
def test_b10_what_is_wrong_is_told_and_mended(file: Path, name: str):
    prove_mended(file, name)

    async def load() -> Any:
        async with await SqliteStore.open(file) as store:
            return await store.load("T"), await store.deltas("T", 0, 100)

    loaded, frames = asyncio.run(load())
    tree = loaded.tree()
    check_invariants(tree)
    assert len(tree) >= 6
    deltas = [p.decode_frame(frame) for frame in frames if frame != b"{}"]
    if loaded.seq == 2 and "event" not in name and name != "chain":
        assert [delta.cause.op for delta in deltas if isinstance(delta, p.Delta)][1:] == [
            "topic.repair"
        ]


@pytest.mark.parametrize(
    "name", ["pointer", "orphan", "cycle", "digest", "role", "no root", "null"]
)
def test_deleted_topics_are_mended_too(file: Path, name: str):
    asyncio.run(RawStore(file).request(p.TopicDelete(topic="T"), 7))
    assert check(file) == []

    prove_mended(file, name)

    assert query(file, "SELECT deleted_at FROM topic WHERE id = 'T'") == [(7,)]


def test_a_trigger_that_is_gone_is_made_again(file: Path):
    with closing(sqlite3.connect(file)) as sql:
        sql.executescript("DROP TRIGGER message_moves; DROP TRIGGER topic_activates")

    found = check(file)
    assert found == [
        "the database: the trigger 'message_moves' is missing",
        "the database: the trigger 'topic_activates' is missing",
    ]
    assert repair(file) == found
    assert check(file) == []


def test_nothing_of_a_repaired_topic_is_lost(file: Path):
    def contents() -> list[Any]:
        of_topic = f"{of('T')} AND role <> 'root' ORDER BY id"
        return query(file, f"SELECT id, data, created_at FROM message WHERE {of_topic}")

    before = contents()
    write(file, ROOTLESS, parent("T", "b", "nobody"), parent("T", "a", "a"), pointer("T", "x"))
    repair(file)

    assert contents() == before
    assert query(file, f"SELECT id, parent_id FROM message WHERE {of('T')} ORDER BY id") == [
        ("T-root", None),
        *(("a", "T-root"), ("b", "T-root"), ("c", "b"), ("d", "b"), ("e", "a"), ("only-T", "a")),
    ]
    assert query(file, "SELECT active_node_id, seq FROM topic WHERE id = 'T'") == [("d", 2)]


def test_what_a_second_root_says_becomes_a_first_turn(file: Path):
    prove_mended(file, "a second root that says something")

    found = query(
        file, f"SELECT parent_id, role, data FROM message WHERE {of('T')} AND id = 'second'"
    )
    assert found == [("T-root", "system", SAYS)]


def test_before_a_hole_nobody_resumes(file: Path):
    prove_mended(file, "hole")

    assert query(file, f"SELECT seq FROM event WHERE {of('T')}") == [(3,), (4,)]


def test_rows_of_no_topic_are_removed(file: Path):
    write(
        file,
        f"UPDATE event SET topic_key = 99 WHERE {of('T')}",
        f"UPDATE message SET topic_key = 99 WHERE {of('T')}",
        "DELETE FROM topic WHERE id = 'T'",
    )

    found = check(file)
    assert found == [
        "the database: 1 row of the table 'event' name no row of 'topic' that is there",
        "the database: 7 rows of the table 'message' name no row of 'topic' that is there",
    ]
    assert repair(file) == found
    assert check(file) == []
    assert query(file, "SELECT count(*) FROM message WHERE topic_key = 99") == [(0,)]


def test_of_a_topic_that_is_not_there_all_is_removed_at_once(file: Path):
    asyncio.run(RawStore(file).request(p.MessageDelete(topic="T", message_id="d"), 7))
    write(
        file,
        "INSERT INTO live SELECT \"key\", 'c', 0, NULL, 1 FROM topic WHERE id = 'T'",
        "INSERT INTO reading SELECT 'ann', \"key\", 1 FROM topic WHERE id = 'T'",
        "DELETE FROM topic WHERE id = 'T'",
    )

    tables = ("event", "live", "message", "reading", "trash", "trash_message")
    found = check(file)
    assert [line.split("'")[1] for line in found] == [*tables]
    assert repair(file) == found
    assert check(file) == []
    for table in tables:
        assert query(file, f"SELECT count(*) FROM {table} WHERE {of('T')}") == [(0,)]


def test_a_table_of_another_make_is_told_and_nothing_is_written(file: Path):
    with closing(sqlite3.connect(file)) as sql:
        sql.executescript(
            "ALTER TABLE live ADD COLUMN mine TEXT;"
            "DROP TRIGGER topic_activates; UPDATE topic SET active_node_id = 'x'"
        )

    found = repair(file)

    assert any("the table 'live' is not as livetree makes it" in line for line in found)
    assert sorted(check(file)) == sorted(found)


@pytest.mark.parametrize("table", ["event", "message", "topic"])
def test_a_damaged_file_is_told_and_left_as_it_is(file: Path, table: str):
    with closing(sqlite3.connect(file)) as sql:
        pages = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = sql.execute(pages, (table,)).fetchone()
        (size,) = sql.execute("PRAGMA page_size").fetchone()
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(file.read_bytes())
    content[(page - 1) * size : page * size] = b"x" * size
    file.write_bytes(content)

    with opened(file) as checker:
        (found, *_) = checker.repair()

    assert isinstance(found, Finding)
    assert not found.mendable
    assert "the file is damaged" in str(found)
    assert "restore it from a backup" in str(found)
    assert file.read_bytes() == content
    assert run(["check", "--repair", "--data", str(file.parent)]) in (1, 2)


def test_what_cannot_be_read_of_one_topic_keeps_no_other_from_being_mended(file: Path):
    write(file, head("seq", 2**53), pointer("S", "x"))

    with opened(file) as checker:
        found = [each for each in checker.repair() if isinstance(each, Finding)]

    assert [(each.topic_id, each.mendable) for each in found if not each.mendable] == [("T", False)]
    assert [each.topic_id for each in map(told_of, check(file))] == ["T"]


def told_of(line: str) -> Finding:
    where, _, text = line.partition(": ")
    return Finding(topic_id=where.removeprefix("topic "), text=text)


def test_a_database_of_another_version_is_refused(file: Path):
    write(file, "UPDATE alembic_version SET version_num = '0000'")

    with pytest.raises(StoreRefused, match="not written by this version"):
        opened(file)


# The command --------------------------------------------------------------------------------


def test_the_command_is_listed_beside_the_server(program: Program):
    assert "\n  check " in program.run("--help").stdout


def test_the_command_tells_repairs_and_proves(program: Program):
    database = program.data / "livetree.db"
    write(database, pointer("T", "nobody"), parent("S", "b", "b"))

    told = program.run("check")
    assert (told.returncode, told.stderr) == (1, "")
    *faults, end = told.stdout.splitlines()
    assert "topic T: the active node is 'nobody', which is no message here" in faults
    assert "topic S: message 'b' is below itself, through its parent 'b'" in faults
    assert end == f"2 topics with 12 messages: {len(faults)} faults"

    mended = program.run("check", "--repair")
    assert (mended.returncode, mended.stderr) == (0, "")
    assert mended.stdout.splitlines() == [*faults, f"{end}, all of them repaired"]

    again = program.run("check", "--repair", "--data", program.data)
    assert (again.returncode, again.stdout) == (0, "2 topics with 12 messages: no faults\n")


def test_the_command_says_what_it_could_not_mend(program: Program):
    write(program.data / "livetree.db", head("seq", 2**53))

    told = program.run("check", "--repair")

    assert told.returncode == 1
    *_, left, end = told.stdout.splitlines()
    assert left.startswith("still there: topic T: its seq is 9007199254740992")
    assert end.endswith("1 fault, of which 1 can't be repaired: restore it from a backup")


def test_the_command_refuses_what_a_server_has_open(program: Program):
    with program.serving():
        for options in ((), ("--repair",)):
            assert "in use by another livetree server" in sentence(
                program.run("check", *options), status=2
            )


def test_the_command_refuses_what_is_no_database(program: Program, tmp_path: Path):
    assert "no database" in sentence(program.run("check", "--data", tmp_path / "no"), status=2)
    assert not (tmp_path / "no").exists()
    (program.data / "livetree.db").write_text("some text of somebody's own")
    assert "is not an SQLite database" in sentence(program.run("check"), status=2)
    assert "--help" in sentence(program.run("check", "--mend"), status=2)


def test_ids_of_strangers_do_not_command_the_terminal(
    file: Path, capsys: pytest.CaptureFixture[str]
):
    write(file, pointer("T", "\x1b[2J\n"), "UPDATE topic SET id = 'T\x1b[2J' WHERE id = 'T'")

    assert run(["check", "--data", str(file.parent)]) == 1

    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "topic T[2J: the active node is '\\x1b[2J\\n'" in told


def test_a_terminal_is_shown_how_far_it_is(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(check_module, "_SHOW_SECONDS", 0)
    write(file, pointer("T", "x"))

    assert run(["check", "--data", str(file.parent)]) == 1

    told = capsys.readouterr()
    assert "\r1 of 2 topics checked" in told.err
    assert told.err.endswith("\r\x1b[K")
    assert "\r" not in told.out
