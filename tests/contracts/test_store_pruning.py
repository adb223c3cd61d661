"""What outlives its time."""

import asyncio

from livetree.core import protocol as p
from livetree_server.topics.ports import (
    MutationKey,
    Store,
)

from tests.contracts.building import (
    START,
    Room,
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
