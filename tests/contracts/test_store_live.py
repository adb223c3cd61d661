"""Offers and leases."""

from livetree.core import protocol as p
from livetree.core.plan import ExpireLease, ExpireOffer
from livetree_server.topics.ports import (
    Due,
    OfferRow,
    Store,
)

from tests.contracts.building import (
    START,
    Room,
    ask,
    check_stored,
    create,
    say,
)


async def test_L1_offers_are_listed_oldest_first_with_their_models(store: Store):
    later, first = Room("later"), Room("first")
    later.now += 1
    await later.do(store, create(), ask("u", "x", model=None))
    await first.do(store, create(), ask("u", "b", "a", model="gpt"))

    assert await store.offers() == [
        OfferRow("first", "b", "gpt"),
        OfferRow("first", "a", "gpt"),
        OfferRow("later", "x", None),
    ]


async def test_L2_a_claimed_reply_is_no_offer_and_has_a_lease(store: Store):
    room = Room()
    await room.do(store, create(), ask("u", "a", "b"))

    await room.do(store, p.StreamClaim(message_id="a", lease_ms=5_000))

    assert await store.offers() == [OfferRow("topic", "b", "echo")]
    loaded = await store.load("topic")
    assert loaded is not None
    assert loaded.leases == {"a": START + 5_000}
    assert loaded.state["live"] == {"a": 3, "b": 0}
    await check_stored(store, room)


async def test_L8_an_ended_reply_is_neither_offered_nor_due(store: Store):
    room = Room()
    await room.do(store, create(), ask("u", "a", "b"))
    await room.do(store, p.StreamClaim(message_id="a"))

    await room.do(store, p.StreamAbort(message_id="a"), p.StreamAbort(message_id="b"))

    assert await store.offers() == []
    assert await store.due(lease_before=START * 2, offered_before=START * 2) == []
    await check_stored(store, room)


async def test_L10_leases_and_offers_are_due_after_their_time_and_not_before(store: Store):
    room = Room()
    await room.do(store, create(), ask("u", "a", "b"))
    room.now += 10
    await room.do(store, p.StreamClaim(message_id="a", lease_ms=2_000))
    end = START + 10 + 2_000

    async def due(lease_before: int, offered_before: int) -> list[Due]:
        return await store.due(lease_before=lease_before, offered_before=offered_before)

    assert await due(end, START) == []
    assert await due(end + 1, START) == [Due("topic", "a", 3)]
    assert await due(end, START + 1) == [Due("topic", "b", 0)]
    assert await due(end + 1, START + 1) == [Due("topic", "b", 0), Due("topic", "a", 3)]


async def test_L10_a_reply_that_its_writer_left_is_offered_anew(store: Store):
    room = Room()
    await room.do(store, create(), ask("u", "a"))
    await room.do(store, p.StreamClaim(message_id="a"))
    room.now += 50_000

    await room.do(store, ExpireLease(message_id="a", epoch=3))

    assert await store.offers() == [OfferRow("topic", "a", "echo")]
    assert await store.due(lease_before=START * 2, offered_before=room.now) == []
    assert await store.due(lease_before=0, offered_before=room.now + 1) == [Due("topic", "a", 0)]
    await check_stored(store, room)


async def test_L10_an_offer_claimed_and_left_within_one_run_is_offered_anew(store: Store):
    room = Room()
    await room.do(store, create(), ask("u", "a"))
    room.now += 50_000

    await room.do(store, p.StreamClaim(message_id="a"), ExpireLease(message_id="a", epoch=3))

    assert await store.due(lease_before=0, offered_before=room.now) == []
    assert await store.due(lease_before=0, offered_before=room.now + 1) == [Due("topic", "a", 0)]


async def test_other_commits_leave_leases_and_offers_as_they_are(store: Store):
    room = Room()
    await room.do(store, create(), ask("u", "a", "b"))
    await room.do(store, p.StreamClaim(message_id="a", lease_ms=2_000))
    await store.renew("topic", "a", 3, START + 9_000)
    room.now += 1_000

    await room.do(store, say("aside", parent="ROOT"), p.StreamClaim(message_id="b"))

    loaded = await store.load("topic")
    assert loaded is not None
    assert loaded.leases == {"a": START + 9_000, "b": START + 1_000 + 15_000}
    await room.do(store, ExpireLease(message_id="b", epoch=5))
    await room.do(store, ExpireOffer(message_id="b"))
    await check_stored(store, room)


async def test_L2_a_lease_is_renewed_under_its_epoch_only(store: Store):
    room = Room()
    await room.do(store, create(), ask("u", "a", "b"))
    await room.do(store, p.StreamClaim(message_id="a", lease_ms=2_000))

    await store.renew("topic", "a", 2, 1)
    await store.renew("topic", "a", 4, 1)
    await store.renew("topic", "b", 0, 1)
    await store.renew("topic", "u", 3, 1)
    await store.renew("nowhere", "a", 3, 1)

    loaded = await store.load("topic")
    assert loaded is not None
    assert loaded.leases == {"a": START + 2_000}
    assert len(await store.offers()) == 1

    await store.renew("topic", "a", 3, START + 3_000)

    loaded = await store.load("topic")
    assert loaded is not None
    assert loaded.leases == {"a": START + 3_000}
    assert await store.due(lease_before=START + 3_000, offered_before=0) == []


async def test_L10_a_pending_reply_that_is_not_live_is_due_like_an_offer(store: Store):
    room, deleted = Room(), Room("deleted")
    pending = {"role": "assistant", "status": "pending"}
    await room.do(store, create(), say("a"), say("lost", **pending), say("u"))
    await room.do(store, ask("v", "offered"), say("user", status="pending", parent="ROOT"))
    await deleted.do(store, create(), say("x", **pending), p.TopicDelete())
    room.now += 10
    await room.do(store, say("later", parent="a", set_active=False, **pending))
    lost, offered, later = (Due("topic", each, 0) for each in ("lost", "offered", "later"))
    at = {each: room.tree.node(each).updated_at for each in ("lost", "later")}

    async def due(before: int) -> list[Due]:
        return await store.due(lease_before=0, offered_before=before)

    assert await due(START) == []
    assert await due(START + 1) == [offered]
    assert await due(at["lost"]) == [offered]
    assert await due(at["lost"] + 1) == [offered, lost]
    assert await due(at["later"] + 1) == [offered, lost, later]

    room.now += 10
    await room.do(store, p.StreamClaim(message_id="later"))
    assert await due(at["later"] + 1) == [offered, lost]
    await room.do(store, p.MessageUpdate(message_id="lost", text="put again"))
    assert await due(at["lost"] + 1) == [offered]
    assert await due(room.now + 1) == [offered, lost]
    await room.do(store, ExpireOffer(message_id="lost"), ExpireOffer(message_id="offered"))
    assert await due(room.now + 1) == []
    await check_stored(store, room)


async def test_due_returns_a_thousand_at_most_the_oldest_first_and_ties_by_code_point(
    store: Store,
):
    room = Room()
    replies = [f"{letter}{place}" for letter in "aB" for place in range(600)]
    turns = [replies[start : start + 30] for start in range(0, 1_200, 30)]
    await room.do(store, create())
    for place, turn in enumerate(turns):
        # The live guard allows one turn at a time; its offers are made one after another.
        await Room(f"t{place}").do(store, create(), ask("u", *turn))

    due = await store.due(lease_before=0, offered_before=START + 1)

    assert len(due) == 1_000
    expected = [Due(f"t{place}", each, 0) for place, turn in enumerate(turns) for each in turn]
    assert (
        due == sorted(expected, key=lambda each: (int(each.topic_id[1:]), each.message_id))[:1_000]
    )
