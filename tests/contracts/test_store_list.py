"""The list of topics."""

import base64

import pytest
from livetree.core import protocol as p
from livetree.core.errors import Validation
from livetree_server.topics.ports import (
    Store,
)
from msgspec import Raw

from tests.contracts.building import (
    START,
    Room,
    create,
    say,
)


async def named_topics(store: Store, *names: str) -> list[Room]:
    """Make topics, each later active than the one before."""
    rooms = []
    for place, name in enumerate(names):
        room = Room(f"t{place}")
        room.now += place
        await room.do(store, create(name))
        rooms.append(room)
    return rooms


async def listed(store: Store, limit: int, name: str = "") -> list[str]:
    """Read all pages; returns the ids."""
    ids: list[str] = []
    cursor = None
    while True:
        rows, cursor = await store.topics(cursor=cursor, limit=limit, name=name)
        assert len(rows) == limit or cursor is None
        ids += [row.topic_id for row in rows]
        if cursor is None:
            return ids


async def test_topics_are_listed_latest_active_first(store: Store):
    rooms = await named_topics(store, "a", "b", "c")
    rooms[1].now += 10
    metadata = p.TopicSetMetadata(metadata=Raw(b'{"x":[1]}'))
    await rooms[1].do(store, say("hello"), metadata)

    rows, cursor = await store.topics(cursor=None, limit=10, name="")

    assert cursor is None
    assert [row.topic_id for row in rows] == ["t1", "t2", "t0"]
    tree = rooms[1].tree
    assert (rows[0].root_id, rows[0].seq, rows[0].commit) == ("t1-root", 3, tree.commit)
    assert (rows[0].name, rows[0].metadata) == ("b", {"x": [1]})
    assert rows[0].active_node_id == "hello"
    assert (rows[0].created_at, rows[0].last_activity_at) == (START + 1, START + 11)


@pytest.mark.parametrize("limit", [1, 2, 7, 25, 26])
async def test_pages_show_every_topic_once_though_all_were_active_at_once(store: Store, limit: int):
    for place in range(25):
        await Room(f"t{place}").do(store, create())

    ids = await listed(store, limit)

    assert ids == [f"t{place}" for place in reversed(range(25))]


async def test_a_page_is_not_disturbed_by_what_becomes_active_or_goes(store: Store):
    rooms = await named_topics(store, *"abcdef")
    first, cursor = await store.topics(cursor=None, limit=2, name="")
    await rooms[4].do(store, p.TopicDelete())
    rooms[2].now += 100
    await rooms[2].do(store, say("again"))

    second, _ = await store.topics(cursor=cursor, limit=2, name="")

    assert [row.topic_id for row in first + second] == ["t5", "t4", "t3", "t1"]


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("trip", ["t1", "t0"]),
        ("TRIP TO", ["t0"]),
        ("strasse", ["t3"]),
        ("STRASSE", ["t3"]),
        ("éTÉ", ["t3"]),
        ("100%", ["t2"]),
        ("%", ["t2"]),
        ("_", ["t1"]),
        ("\\", ["t2"]),
        ("\0", ["t4"]),
        ("😀", ["t4"]),
        ("x" * 100_000, []),
        ("nothing", []),
    ],
)
async def test_topics_are_found_by_part_of_their_name(store: Store, part: str, found: list[str]):
    await named_topics(store, "Trip to Rome", "my_trip", "100% \\o/", "Straße l'Été", "a\0b 😀")

    assert await listed(store, 1, part) == found


async def test_a_new_name_is_found_and_the_old_one_not(store: Store):
    (room,) = await named_topics(store, "old")
    await room.do(store, p.TopicUpdate(name="New"))

    assert await listed(store, 10, "new") == ["t0"]
    assert await listed(store, 10, "old") == []


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "é",
        "\0",
        "!!!!",
        "t0",
        *map(encoded, ("[]", "{}", "null", "[1]", "[1,2,3]", '["1",2]', "[1.0,2]", "[1,-2]")),
        *map(encoded, ("[1, 2]", f"[{2**63},1]", f"[1,{10**40}]", "[[1],2]", "[1,2]]", "\ud7ff")),
        encoded("[1,2]").rstrip("="),
        encoded("[1,2]") + "====",
        encoded("[1,2]") + "\n",
        "*" + encoded("[1,2]"),
        encoded("[1000000,1]") * 1000,
    ],
)
async def test_a_cursor_that_the_list_did_not_give_is_refused(store: Store, cursor: str):
    await named_topics(store, "a", "b")

    with pytest.raises(Validation):
        await store.topics(cursor=cursor, limit=1, name="")
