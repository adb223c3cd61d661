"""Topics that nobody keeps."""

import pytest
from livetree.core import protocol as p
from livetree_server.topics.ports import SeqTaken, Store

from tests.contracts.building import START, Room, check_stored, create, say


async def listed(store: Store, *topic_ids: str) -> list[str]:
    """Return what the list has of these topics, both ways that it is asked."""
    rows, _ = await store.topics(cursor=None, limit=100, name="")
    found = [row.topic_id for row in rows]
    assert {row.topic_id for row in await store.listed(topic_ids)} == set(found)
    return found


async def test_a_temporary_topic_is_there_but_not_listed(store: Store):
    room, other = Room(), Room("other")
    await room.do(store, create("x", temporary=True), say("a"))
    await other.do(store, create("x"))

    assert await listed(store, "topic", "other", "nowhere") == ["other"]
    assert await store.topics(cursor=None, limit=10, name="x") == (
        await store.listed(["other"]),
        None,
    )
    loaded = await store.load("topic")
    assert loaded is not None
    assert loaded.state["temporary"] is True
    await check_stored(store, room)


async def test_pages_are_full_though_temporary_topics_are_between(store: Store):
    for place in range(20):
        await Room(f"t{place}").do(store, create(temporary=place % 4 != 0))

    first, cursor = await store.topics(cursor=None, limit=3, name="")
    second, end = await store.topics(cursor=cursor, limit=3, name="")

    assert [row.topic_id for row in first + second] == ["t16", "t12", "t8", "t4", "t0"]
    assert end is None


async def test_a_topic_that_is_kept_after_all_is_like_any_other(store: Store):
    room = Room()
    await room.do(store, create(temporary=True), say("a"))

    await room.do(store, p.TopicPersist())

    loaded = await store.load("topic")
    assert loaded is not None
    assert "temporary" not in loaded.state
    assert await listed(store, "topic") == ["topic"]
    assert await store.unused(START * 2) == []
    await check_stored(store, room)


async def test_temporary_topics_are_unused_after_their_last_commit_or_use(store: Store):
    rooms = [Room(f"t{place}") for place in range(3)]
    for place, room in enumerate(rooms):
        room.now += place * 10
        await room.do(store, create(temporary=True))
    kept = Room("kept")
    await kept.do(store, create())

    assert await store.unused(START) == []
    assert await store.unused(START + 1) == ["t0"]
    assert await store.unused(START + 11) == ["t0", "t1"]
    rooms[0].now = START + 50
    await rooms[0].do(store, say("a"))
    assert await store.unused(START + 21) == ["t1", "t2"]

    await store.used(["t1", "kept", "nowhere"], START + 60)
    await store.used(["t0"], START + 1)  # it was used later than that
    await store.used([], START + 100)

    assert await store.unused(START + 50) == ["t2"]
    assert await store.unused(START + 51) == ["t2", "t0"]
    assert await store.unused(START + 61) == ["t2", "t0", "t1"]
    assert len(await store.deltas("t1", 0, 10)) == 1
    await check_stored(store, *rooms, kept)


async def test_a_use_is_not_taken_back_by_a_commit_that_began_before_it(store: Store):
    room = Room()
    await room.do(store, create(temporary=True))
    await store.used(["topic"], START + 100)

    await room.do(store, say("a"))

    assert await store.unused(START + 100) == []


async def test_a_thousand_unused_topics_are_returned_at_most(store: Store):
    for place in range(1_002):
        room = Room(f"t{place}")
        room.now += 2_000 - place
        await room.do(store, create(temporary=True))
    await store.used([f"t{place}" for place in range(1_002)][-2:], START + 9_000)

    assert await store.unused(START * 2) == [f"t{place}" for place in reversed(range(1_000))]


async def test_a_deleted_temporary_topic_can_t_be_restored(store: Store):
    room = Room()
    await room.do(store, create(temporary=True), say("a"))
    await room.do(store, p.TopicDelete())

    assert await store.load("topic") is None
    assert await store.load("topic", deleted=True) is None
    assert await store.unused(START * 2) == []
    with pytest.raises(SeqTaken):
        await room.do(store, p.TopicRestore())
