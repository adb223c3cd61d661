"""What rows hold, in the tree and in the trash, checked and repaired by the program."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from livetree.core import protocol as p
from livetree_server.cli.program import run
from livetree_server.storage import checking
from livetree_server.storage.checking import Finding
from msgspec import Raw

from tests.conformance.raw_store import RawStore
from tests.helpers import check_invariants
from tests.server.damage import NOW, check, dump, make, of, opened, query, repair, write
from tests.server.house import House

SEQ = 4
LONG = "x" * 500


def head(name: str, value: Any) -> tuple[str, tuple[Any, ...]]:
    return f"UPDATE topic SET {name} = ? WHERE id = 'T'", (value,)


def row(name: str, value: Any, message_id: str = "a") -> tuple[str, tuple[Any, ...]]:
    return f"UPDATE message SET {name} = ? WHERE {of('T')} AND id = ?", (value, message_id)


def buried(name: str, value: Any, message_id: str = "c") -> tuple[str, tuple[Any, ...]]:
    return f"UPDATE trash_message SET {name} = ? WHERE {of('T')} AND id = ?", (value, message_id)


def entry(name: str, value: Any, seq: int = 2) -> tuple[str, tuple[Any, ...]]:
    return f"UPDATE trash SET {name} = ? WHERE {of('T')} AND seq = ?", (value, seq)


def numbered(seq: int, new: int) -> list[Any]:
    """Give an entry and its rows another number."""
    rows = f"UPDATE trash_message SET entry_seq = ? WHERE {of('T')} AND entry_seq = ?"
    return [entry("seq", new, seq), (rows, (new, seq))]


def text(raw: bytes, of_table: str = "message", message_id: str = "a", name: str = "data") -> Any:
    """Put bytes where a text belongs."""
    sql = f"UPDATE {of_table} SET {name} = CAST(? AS TEXT) WHERE {of('T')} AND id = ?"
    return sql, (raw, message_id)


def reader(seq: int) -> tuple[str, tuple[Any, ...]]:
    return "INSERT INTO reading SELECT 'ann', \"key\", ? FROM topic WHERE id = 'T'", (seq,)


def noted(epoch: int, lease: int | None, offer: int | None) -> list[Any]:
    note = "INSERT INTO live SELECT \"key\", 'e', ?, ?, ? FROM topic WHERE id = 'T'"
    return [row("status", "pending", "e"), (note, (epoch, lease, offer))]


COLUMNS = (
    "parent_id, role, status, siblings_group_id, preview, empty, decisions, model_id, author,"
    " stats, timing, context, version, created_at, updated_at, data"
)
TWICE = (
    f"INSERT INTO trash_message (topic_key, id, entry_seq, {COLUMNS})"
    f" SELECT topic_key, 'e', 2, {COLUMNS} FROM message WHERE {of('T')} AND id = 'e'"
)
EMPTIED = f"DELETE FROM trash_message WHERE {of('T')} AND entry_seq = 2"
NO_SEQ = "topic T: its seq is {}, below 1: it becomes {}"

DAMAGE: dict[str, tuple[list[Any], list[str]]] = {
    "metadata": ([head("metadata", "[1]")], ["topic T: its metadata '[1]' is no JSON object"]),
    "metadata cut off": ([head("metadata", '{"a":')], ["its metadata '{\"a\":' is no JSON object"]),
    "other state": ([head("other_state", "5")], ["topic T: its other_state '5' is no JSON object"]),
    "a long value": (
        [head("metadata", LONG)],
        [f"its metadata '{LONG[:60]}'… is no JSON object"],
    ),
    "name": (
        ["UPDATE topic SET name = CAST(x'6eff' AS TEXT) WHERE id = 'T'"],
        ["topic T: its name 'n\\\\xff' is not UTF-8"],
    ),
    "both": ([TWICE], ["message 'e' is in the tree and in the trash entry 2: it stays in the"]),
    "moved": ([entry("moved", "[]")], ["the trash entry 2 says of moved children '[]', which"]),
    "moved cut off": ([entry("moved", '{"c":["a",')], ["the trash entry 2 says of moved children"]),
    "buried role": (
        [buried("role", "root")],
        ["deleted message 'c' has the role 'root'", "failed in trash_message, trash_message_role"],
    ),
    "buried status": ([buried("status", "?")], ["deleted message 'c' has the status '?'"]),
    "buried group": ([buried("siblings_group_id", -1)], ["deleted message 'c' has the group -1"]),
    "buried, all of it": (
        [buried("role", "x"), buried("status", "y"), buried("siblings_group_id", -3)],
        ["deleted message 'c' has the role 'x'", "has the status 'y'", "has the group -3"],
    ),
    "all of a row": (
        [row("role", "x"), row("status", "y"), row("siblings_group_id", -3), row("data", "")],
        ["message 'a' has the role 'x'", "the status 'y'", "the group -3", "the data '', which"],
    ),
    "below itself": (
        [buried("parent_id", "c")],
        ["deleted message 'c' of the trash entry 2 is below itself, through its parent 'c'"],
    ),
    "circle": (
        [buried("parent_id", "d", "b")],
        ["deleted message 'b' of the trash entry 2 is below itself, through its parent 'd'"],
    ),
    "entry without rows": ([EMPTIED], ["topic T: the trash entry 2 has no messages"]),
    "rows without an entry": (
        [f"DELETE FROM trash WHERE {of('T')} AND seq = 2"],
        ["topic T: the trash has 3 messages of an entry 2 that is gone"],
    ),
    "entry 0": (
        numbered(2, 0),
        ["the trash entry 0 lies outside of 1 to 4: it becomes 1", "failed in trash, trash_seq"],
    ),
    "entry above": (numbered(2, 77), ["the trash entry 77 lies outside of 1 to 4: it becomes 4"]),
    "entry without its rows": (
        [entry("seq", -7)],
        ["the trash entry -7 lies outside of 1 to 4: it is that of the 3 messages with the num"],
    ),
    "no number is free": (
        [
            *(head("seq", 1), row("version", 1), "DELETE FROM event"),
            *(*numbered(2, 1), f"UPDATE message SET version = 1 WHERE {of('T')}"),
        ],
        ["the trash entry 3 lies outside of 1 to 1, and no number is free: its messages join 1"],
    ),
    "read below 0": ([reader(-1)], ["topic T: 'ann' has read up to -1, and the topic is at 4"]),
    "read above": ([reader(9)], ["topic T: 'ann' has read up to 9, and the topic is at 4"]),
    "data of another form": (
        [row("data", "[1]")],
        ["topic T: message 'a' has the data '[1]', which can't be read: it becomes text"],
    ),
    "data without parts": ([row("data", "{}")], ["message 'a' has the data '{}', which can't"]),
    "parts of another form": (
        [row("data", '{"parts":[3]}')],
        ["message 'a' has the data '{\"parts\":[3]}', which can't be read"],
    ),
    "data cut off": ([row("data", '{"parts":[')], ["message 'a' has the data '{\"parts\":['"]),
    "data that is no text": ([text(b'{"parts":[\xff')], ["has the data '{\"parts\":[\\\\xff', w"]),
    "buried data": (
        [text(b'{"parts":[\xff', "trash_message", "c")],
        ["topic T: deleted message 'c' has the data '{\"parts\":[\\\\xff', which can't be read"],
    ),
    "preview": ([text(b"\xff", name="preview")], ["has the preview '\\\\xff', which is no UTF-8"]),
    **{
        name: ([row(name, "{")], [f"topic T: message 'a' has the {name} '{{', which is no JSON o"])
        for name in ("stats", "timing", "context", "decisions")
    },
    "buried stats": ([buried("stats", "7")], ["deleted message 'c' has the stats '7', which is"]),
    "stats that are no text": (
        [text(b"\xff", name="stats")],
        ["message 'a' has the stats '\\\\xff', which is no JSON object"],
    ),
    "seq 0": ([head("seq", 0)], [NO_SEQ.format(0, SEQ)]),
    "seq below 0": (
        [head("seq", -1)],
        [NO_SEQ.format(-1, SEQ), "CHECK constraint failed in topic, topic_seq at key"],
    ),
    "seq 0 without a log": ([head("seq", 0), "DELETE FROM event"], [NO_SEQ.format(0, SEQ)]),
    "seq 0 of another commit": (
        [head("seq", 0), head("commit_id", "x")],
        [NO_SEQ.format(0, SEQ), "and the topic is at 'x'"],
    ),
    "root of another status": (
        [row("status", "?", "T-root")],
        ["its virtual root 'T-root' has the status '?'"],
    ),
    "root in a group": (
        [row("siblings_group_id", 3, "T-root")],
        ["its virtual root 'T-root' has the group 3"],
    ),
    "live below 0": (noted(-1, 5, None), ["'e' is noted as live with epoch -1, a lease until 5"]),
    "live without a lease": (
        noted(3, None, 9),
        ["'e' is noted as live with epoch 3, a lease until None and an offer at 9"],
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A database of two topics; ``T`` has a trash.

    Of it, ``a > e`` is left: commit 2 deleted ``b`` with ``c`` and ``d``, commit 3
    ``only-T``. Commit 4 gave ``a`` its stats.

    """
    path = tmp_path_factory.mktemp("made") / "livetree.db"
    make(path, "S", "T")
    store = RawStore(path)
    for number, command in enumerate(
        (
            p.MessageDelete(topic="T", message_id="b", cascade=True),
            p.MessageDelete(topic="T", message_id="only-T"),
            p.MessageUpdate(topic="T", message_id="a", stats=Raw(b"{}")),
        )
    ):
        asyncio.run(store.request(command, NOW + number))
    return path


@pytest.fixture
def file(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "livetree.db"))


async def use(folder: Path) -> None:
    """Do with the topic, through a server, all that its rows are needed for."""
    house = House(folder)
    await house.start()
    try:
        client = await house.client()
        async with client.open("T") as live, client.open("S") as other:
            check_invariants(live.tree)
            content = await live.content([node.id for node in live.tree.nodes()])
            assert all(json.loads(bytes(each.data))["parts"] is not None for each in content)
            await live.set_metadata({**live.metadata, "seen": True})
            await live.create(role="user", text="more", status="success", parent="a")
            await client.ask(p.TrashList(topic="T"), dict)
            for (message_id,) in house.ask(f"SELECT id FROM trash_message WHERE {of('T')}"):
                if message_id not in live.tree:
                    await live.restore(message_id)
            await live.content([node.id for node in live.tree.nodes()])
            for message_id in live.tree.live:
                await live.abort(message_id)
            await live.delete("a", cascade=True)
            await other.create(role="user", text="more", status="success")
    finally:
        await house.stop()


@pytest.mark.parametrize("name", DAMAGE)
def test_b10_what_rows_hold_is_told_mended_and_served(file: Path, name: str):
    statements, told = DAMAGE[name]
    assert check(file) == []
    write(file, *statements)

    found = check(file)
    mended = repair(file)

    for each in told:
        assert any(each in line for line in found), found
    assert all(line.startswith("topic T: ") for line in found)
    assert sorted(found) == sorted(mended)
    assert check(file) == []
    before = dump(file)
    assert repair(file) == []
    assert dump(file) == before
    asyncio.run(use(file.parent))
    assert check(file) == []


@pytest.mark.parametrize("name", ["metadata", "buried role", "data cut off", "seq 0"])
def test_the_command_says_of_rows_what_it_has_mended(
    file: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    statements, told = DAMAGE[name]
    write(file, *statements)
    data = ["--data", str(file.parent)]

    assert [run(["check", *data]), run(["check", "--repair", *data]), run(["check", *data])] == [
        *(1, 0, 0)
    ]

    assert capsys.readouterr().out.count(told[0]) == 2


def value_of(file: Path, name: str, message_id: str, table: str = "message") -> Any:
    sql = f"SELECT {name} FROM {table} WHERE {of('T')} AND id = ?"
    return query(file, sql, message_id)[0][0]


@pytest.mark.parametrize("table", ["message", "trash_message"])
@pytest.mark.parametrize(
    ("raw", "instead"),
    [
        (b'{"parts":[{"type":"text","text":"so f', '{"parts":[{"type":"text","text":"so f'),
        (b"no JSON \xe2\x82", "no JSON \ufffd"),
        (b"[1]", "[1]"),
        (b'{"a":"\\ud800","parts":[]}', '{"a":"\\ud800","parts":[]}'),
    ],
)
def test_what_text_there_is_stays(file: Path, table: str, raw: bytes, instead: str):
    message_id = "a" if table == "message" else "c"
    write(file, text(raw, table, message_id))

    repair(file)

    data = json.loads(value_of(file, "data", message_id, table))
    assert data == {"parts": [{"type": "text", "text": instead}]}
    assert value_of(file, "preview", message_id, table) == instead
    assert value_of(file, "empty", message_id, table) == 0


def test_of_nothing_nothing_is_made(file: Path):
    write(file, row("data", ""))

    repair(file)

    assert value_of(file, "data", "a") == '{"parts":[]}'
    assert (value_of(file, "preview", "a"), value_of(file, "empty", "a")) == ("", 1)


def test_where_only_bytes_are_wrong_parts_stay_apart(file: Path):
    parts = b'{"parts":[{"type":"text","text":"\xff!"},{"type":"file","id":1}],"more":2}'
    write(file, text(parts))

    repair(file)

    data = json.loads(value_of(file, "data", "a"))
    assert [each["type"] for each in data["parts"]] == ["text", "file"]
    assert (data["parts"][0]["text"], data["more"]) == ("\ufffd!", 2)


@pytest.mark.parametrize(
    "data",
    [
        '{"parts":[{"type":"text","text":"' + "x" * 2_000_000 + '"}]}',
        '{"parts":[{"text":1},{}],"big":123456789012345678901}',
        '{"parts":"once","parts":[]}',
    ],
    ids=["large", "odd", "twice"],
)
def test_what_the_server_can_read_is_sound(file: Path, data: str):
    write(file, row("data", data))

    assert check(file) == []


def test_of_what_is_deleted_nothing_is_lost(file: Path):
    def contents() -> list[Any]:
        of_topic = f"{of('T')} ORDER BY id"
        return query(file, f"SELECT id, data, created_at FROM trash_message WHERE {of_topic}")

    before = contents()
    write(file, entry("seq", 0), *numbered(3, 50), buried("parent_id", "c"), buried("role", "?"))
    repair(file)

    assert contents() == before
    found = query(file, f"SELECT entry_seq, id FROM trash_message WHERE {of('T')} ORDER BY 1, 2")
    assert found == [(2, "b"), (2, "c"), (2, "d"), (4, "only-T")]
    assert value_of(file, "parent_id", "c", "trash_message") == "T-root"


def test_who_has_read_beyond_is_put_back(file: Path):
    write(file, reader(9))

    repair(file)

    assert query(file, "SELECT subject, seq FROM reading") == [("ann", SEQ)]


def test_a_topic_that_lost_its_seq_keeps_its_log(file: Path):
    before = sorted(dump(file))
    write(file, head("seq", -5))

    repair(file)

    assert sorted(dump(file)) == before


@pytest.mark.parametrize("seq", [2**53 - 1, 2**53, 2**63 - 1])
def test_a_seq_that_no_commit_can_follow_is_hopeless(file: Path, seq: int):
    write(file, head("seq", seq))
    before = dump(file)

    with opened(file) as checker:
        found = [each for each in checker.repair() if isinstance(each, Finding)]

    (fault,) = found
    assert not fault.mendable
    assert f"topic T: its seq is {seq}, and no commit can follow" in str(fault)
    assert dump(file) == before
    assert check(file) == [str(fault)]


@pytest.mark.parametrize("name", ["id", "parent_id"])
def test_an_id_that_is_no_text_is_hopeless(file: Path, name: str):
    write(file, text(b"\xff", "message", "e", name))

    with opened(file) as checker:
        found = [each for each in checker.repair() if isinstance(each, Finding)]

    (fault,) = found
    assert not fault.mendable
    assert f"has the {name} '\\\\xff', which is not UTF-8: restore it from a b" in str(fault)
    assert check(file) == [str(fault)]


def test_what_no_repair_reaches_is_told_with_its_place(
    file: Path, capsys: pytest.CaptureFixture[str]
):
    # Of what is being erased nothing is mended.
    write(file, row("role", "bot"), head("temporary", 1), head("deleted_at", 7))

    assert run(["check", "--repair", "--data", str(file.parent)]) == 1

    *_, left, end = capsys.readouterr().out.splitlines()
    assert left == (
        "still there: topic T: SQLite's own check says: CHECK constraint failed in message, "
        "message_role at id 'a'"
    )
    assert end.endswith("1 fault, of which 1 can't be repaired: restore it from a backup")


# A disk that is full ------------------------------------------------------------------------


@contextlib.contextmanager
def full(monkeypatch: pytest.MonkeyPatch, file: Path) -> Iterator[None]:
    """Let the file grow no further."""
    ((pages,),) = query(file, "PRAGMA page_count")
    pragmas = (*checking._PRAGMAS, f"max_page_count = {pages}")
    with monkeypatch.context() as patch:
        patch.setattr(checking, "_PRAGMAS", pragmas)
        yield


def test_a_full_disk_is_told_and_nothing_is_lost(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # As text it is longer: a quotation mark becomes two characters.
    write(file, row("data", '"' * 100_000), "UPDATE topic SET digest = 'x' WHERE id = 'S'")
    before = query(file, f"SELECT * FROM message WHERE {of('T')}")
    data = ["--data", str(file.parent)]

    with full(monkeypatch, file):
        assert run(["check", "--repair", *data]) == 2

    told = capsys.readouterr().err
    assert f"the disk with {file} is full. Nothing is lost" in told
    assert "make space and repeat" in told
    assert "backup" not in told
    assert query(file, f"SELECT * FROM message WHERE {of('T')}") == before
    assert run(["check", "--repair", *data]) == 0
    assert check(file) == []


@pytest.mark.parametrize(("free", "is_full"), [(4096, True), (10**9, False)])
def test_a_failing_disk_is_full_only_where_it_has_no_room(
    file: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_full: bool
):
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    usage = shutil.disk_usage(file)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    assert checking._is_full(file, error) is is_full
