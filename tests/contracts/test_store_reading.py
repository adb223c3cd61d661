"""How far each subject has read."""

from livetree.core import protocol as p
from livetree_server.topics.ports import MOST_UNREAD, Seen, Store

from tests.contracts.building import Room, chain, create, say


async def test_what_nobody_has_read_is_unread_but_one_s_own(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"))
    await room.do(store, say("c", role="assistant"), subject="bea")

    assert await store.seen("ann", ["topic"]) == {"topic": Seen(0, 1)}
    assert await store.seen("bea", ["topic"]) == {"topic": Seen(0, 2)}
    assert await store.seen("carl", ["topic"]) == {"topic": Seen(0, 3)}


async def test_messages_of_nobody_are_unread_for_everyone(store: Store):
    room = Room()
    await room.do(store, chain("topic-root", 3))

    assert await store.seen("ann", ["topic"]) == {"topic": Seen(0, 3)}
    assert await store.seen("", ["topic"]) == {"topic": Seen(0, 3)}


async def test_what_was_put_after_the_position_is_unread(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), say("c"))

    assert await store.mark_read("bea", "topic", 3) == Seen(3, 1)
    await room.do(store, p.MessageUpdate(message_id="a", text="changed"))
    assert await store.seen("bea", ["topic"]) == {"topic": Seen(3, 2)}
    assert await store.mark_read("bea", "topic", 5) == Seen(5, 0)
    await room.do(store, p.MessageDelete(message_id="c"))
    assert await store.seen("bea", ["topic"]) == {"topic": Seen(5, 0)}
    assert await store.seen("ann", ["topic"]) == {"topic": Seen(0, 0)}


async def test_a_position_moves_forward_only_and_not_past_the_topic(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"))

    assert await store.mark_read("bea", "topic", 2) == Seen(2, 1)
    assert await store.mark_read("bea", "topic", 1) == Seen(2, 1)
    assert await store.mark_read("bea", "topic", -5) == Seen(2, 1)
    assert await store.mark_read("bea", "topic", 2**53 - 1) == Seen(3, 0)
    assert await store.mark_read("carl", "topic", 0) == Seen(0, 2)

    await room.do(store, say("c"))
    assert await store.seen("bea", ["topic"]) == {"topic": Seen(3, 1)}


async def test_positions_are_of_one_subject_and_one_topic(store: Store):
    rooms = [Room(f"t{place}") for place in range(3)]
    for room in rooms:
        await room.do(store, create(), say("a"))
    await store.mark_read("bea", "t1", 2)

    assert await store.seen("bea", ["t2", "t1", "nowhere"]) == {"t1": Seen(2, 0), "t2": Seen(0, 1)}
    assert await store.seen("Bea", ["t1"]) == {"t1": Seen(0, 1)}
    assert await store.seen("bea", []) == {}


async def test_many_topics_are_asked_for_together(store: Store):
    ids = [f"t{place}" for place in range(1_100)]
    for topic_id in ids[:50]:
        await Room(topic_id).do(store, create(), say("a"))

    assert await store.seen("bea", ids) == dict.fromkeys(ids[:50], Seen(0, 1))
    assert {row.topic_id for row in await store.listed(ids)} == set(ids[:50])


async def test_of_very_many_messages_not_all_are_counted(store: Store):
    room, other = Room(), Room("other")
    await room.do(store, chain("topic-root", MOST_UNREAD + 1))
    await other.do(store, chain("other-root", MOST_UNREAD - 1))

    assert await store.seen("bea", ["topic", "other"]) == {
        "topic": Seen(0, MOST_UNREAD),
        "other": Seen(0, MOST_UNREAD - 1),
    }
    assert await store.mark_read("bea", "topic", 1) == Seen(1, 0)


async def test_a_deleted_topic_is_not_read_and_its_positions_come_back_with_it(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"))
    await store.mark_read("bea", "topic", 2)
    await room.do(store, p.TopicDelete())

    assert await store.seen("bea", ["topic"]) == {}
    assert await store.mark_read("bea", "topic", 3) is None
    assert await store.mark_read("bea", "nowhere", 1) is None

    await room.do(store, p.TopicRestore())
    assert await store.seen("bea", ["topic"]) == {"topic": Seen(2, 1)}
