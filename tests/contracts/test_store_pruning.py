"""What outlives its time."""

import asyncio

import pytest
from livetree.core import protocol as p
from livetree.core.plan import ImportTopic
from livetree.core.trash import Wanted
from livetree_server.topics.ports import (
    MutationKey,
    Seen,
    SeqTaken,
    Store,
)
from msgspec.structs import replace

from tests.contracts.building import (
    START,
    Room,
    chain,
    check_stored,
    create,
    frames_of,
    say,
)

DAY = 24 * 60 * 60 * 1000


async def prune(store: Store, now: int) -> None:
    """Go one whole round."""
    for _ in range(1_000):
        if not await store.prune(now):
            return
    raise AssertionError("the round does not end")


async def test_events_are_kept_for_seven_days(store: Store):
    room = Room()
    await room.do(store, create(), say("a"))
    room.now += DAY
    runs = [await room.do(store, say("b"), say("c"))]

    await prune(store, START + 7 * DAY)
    assert len(await store.deltas("topic", 0, 10)) == 4
    await prune(store, START + 7 * DAY + 1)

    assert await store.deltas("topic", 0, 10) == []
    assert await store.deltas("topic", 1, 10) == []
    assert await store.deltas("topic", 2, 10) == frames_of(runs)
    assert await store.commit_at("topic", 2) is None
    await check_stored(store, room)
    await prune(store, START + 9 * DAY)
    assert await store.deltas("topic", 2, 10) == []
    await room.do(store, say("d"))
    await check_stored(store, room)


async def test_the_last_10_000_events_of_a_topic_are_kept(store: Store):
    room, other = Room(), Room("other")
    await other.do(store, create(), say("a"))
    await room.do(store, create(), say("a"))
    flips = [p.TopicUpdate(name=f"{each}") for each in range(12_500)]
    await room.do(store, *flips)

    await prune(store, START)

    assert room.tree.seq == 12_502
    assert await store.deltas("topic", 2_501, 1) == []
    assert len(await store.deltas("topic", 2_502, 20_000)) == 10_000
    assert len(await store.deltas("other", 0, 10)) == 2


async def test_mutations_are_kept_for_thirty_days(store: Store):
    room = Room()
    await room.do(store, create(mutation="old"))
    room.now += 1
    await room.do(store, *(say(f"a{each}", mutation=f"m{each}") for each in range(2_100)))
    keys = [MutationKey("ann", name) for name in ("old", *(f"m{each}" for each in range(2_100)))]

    await prune(store, START + 30 * DAY)
    assert len(await store.mutations(keys)) == 2_101
    await prune(store, START + 30 * DAY + 1)

    assert set(await store.mutations(keys)) == set(keys[1:])
    await prune(store, START + 30 * DAY + 2)
    assert await store.mutations(keys) == {}


async def test_rounds_reach_every_topic(store: Store):
    rooms = [Room(f"t{place}") for place in range(450)]
    await asyncio.gather(*(room.do(store, create(), say("a")) for room in rooms))

    await prune(store, START + 8 * DAY)

    for room in rooms:
        assert await store.deltas(room.tree.topic_id, 0, 10) == []


# The trash --------------------------------------------------------------------------------


async def test_trash_is_kept_for_thirty_days(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), p.MessageDelete(message_id="b"))
    room.now += DAY
    await room.do(store, say("c"), p.MessageDelete(message_id="c"))

    await prune(store, START + 30 * DAY)
    assert await store.trash("topic", Wanted(seq=4)) is not None
    await prune(store, START + 30 * DAY + 1)

    assert await store.trash("topic", Wanted(seq=4)) is None
    assert await store.trash("topic", Wanted(seq=6)) is not None
    loaded = await store.load("topic")
    assert loaded is not None
    assert loaded.graves.keys() == {"c"}
    assert [node.id for node in loaded.nodes] == ["a"]
    await prune(store, START + 31 * DAY + 1)
    assert await store.trash_page("topic", cursor=None, limit=10) == ([], None)


def siblings(root_id: str, count: int) -> ImportTopic:
    """Make the topic with first turns ``m0``, ``m1``, …."""
    made = chain(root_id, count)
    nodes = [replace(node, parent_id=root_id) for node in made.nodes]
    return replace(made, nodes=nodes)


SHAPES = [(chain, 20_000), (siblings, 10_000)]


@pytest.mark.parametrize(("shape", "count"), SHAPES)
async def test_a_large_entry_goes_in_slices(store: Store, shape, count: int):
    room = Room()
    await room.do(store, shape("topic-root", count))
    await room.do(store, p.TopicClear(), say("a"))

    await prune(store, START + 31 * DAY)

    assert await store.trash_page("topic", cursor=None, limit=10) == ([], None)
    assert await store.trash("topic", Wanted(seq=2)) is None
    loaded = await store.load("topic")
    assert loaded is not None
    assert [node.id for node in loaded.nodes] == ["a"]


# Topics -----------------------------------------------------------------------------------


async def test_a_deleted_topic_is_kept_for_thirty_days(store: Store):
    room, other = Room(), Room("other")
    await other.do(store, create(), say("a"), p.MessageDelete(message_id="a"), say("b"))
    await store.mark_read("ann", "other", 2)
    await room.do(store, create(mutation="once"), say("a"), say("b"))
    await room.do(store, p.MessageDelete(message_id="b"))
    await store.mark_read("ann", "topic", 2)
    room.now += DAY
    await room.do(store, p.TopicDelete())

    await prune(store, START + 31 * DAY)
    assert await store.load("topic", deleted=True) is not None
    await prune(store, START + 31 * DAY + 1)

    assert await store.load("topic", deleted=True) is None
    with pytest.raises(SeqTaken):
        await store.commit(room.plan(p.TopicRestore()))
    # Of the topic nothing is left: its id is free, and what is made of it is a new one.
    again = Room(maker="again")
    await again.do(store, create(), say("x"))
    await check_stored(store, again)
    assert await store.seen("ann", ["topic", "other"]) == {
        "topic": Seen(0, 0),
        "other": Seen(2, 0),
    }
    assert await store.trash_page("topic", cursor=None, limit=10) == ([], None)
    assert (await store.load("other")).tree().digest == other.tree.digest


async def test_a_restored_topic_is_not_erased(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), p.TopicDelete())
    await room.do(store, p.TopicRestore())

    await prune(store, START + 31 * DAY)

    await check_stored(store, room)


async def test_a_deleted_temporary_topic_goes_at_once(store: Store):
    rooms = [Room(f"t{place}") for place in range(4)]
    for room in rooms:
        await room.do(store, create(temporary=True), say("a"), say("b"))
    for room in rooms[:3]:
        await room.do(store, p.TopicDelete())

    await prune(store, START)

    for room in rooms[:3]:
        await Room(room.tree.topic_id, maker="again").do(store, create())
    await check_stored(store, rooms[3])


@pytest.mark.parametrize(("shape", "count"), SHAPES)
async def test_a_large_topic_goes_in_slices(store: Store, shape, count: int):
    room, other = Room(), Room("other")
    await room.do(store, shape("topic-root", count))
    await room.do(store, p.TopicDelete())
    calls = 0
    await other.do(store, create())

    while await store.prune(START + 31 * DAY):
        calls += 1
        assert await store.load("topic", deleted=True) is None
        with pytest.raises(SeqTaken):
            await store.commit(room.plan(p.TopicRestore()))
        if calls % 4 == 0:
            await other.do(store, say(f"m{calls}"))

    await Room(maker="again").do(store, create())
    await check_stored(store, other)


async def test_a_tree_of_any_form_goes_whole(store: Store):
    room = Room()
    await room.do(store, create())
    # Each below a third of its number: some branch, and some are deep.
    for start in range(0, 1_500, 500):
        await room.do(
            store,
            *(
                say(f"m{place}", parent=f"m{place // 3}" if place else "ROOT", set_active=False)
                for place in range(start, start + 500)
            ),
        )
    await room.do(store, p.MessageDelete(message_id="m400", cascade=True), p.TopicDelete())

    await prune(store, START + 31 * DAY)

    again = Room(maker="again")
    await again.do(store, create())
    await check_stored(store, again)
