"""What comes back of a topic."""

import asyncio

import msgspec
import pytest
from livetree.core import protocol as p
from livetree.core.content import data_of_text
from livetree.core.plan import Written
from livetree_server.topics.ports import (
    Due,
    MutationKey,
    OfferRow,
    SeqTaken,
    Store,
)
from msgspec import Raw
from msgspec.structs import replace

from tests.contracts.building import (
    START,
    Room,
    ask,
    chain,
    check_stored,
    create,
    frames_of,
    say,
    tree_in,
)

# A topic, as it is and as it is read ------------------------------------------------------


async def test_a_topic_comes_back_as_it_was_decided(store: Store):
    room = Room()
    await room.do(store, create("Trip", metadata=Raw(b'{"a":{"b":[1,2.5,null]},"c":"d"}')))
    await room.do(store, say("u"), say("a", role="assistant", model="echo", stats=Raw(b'{"n":1}')))
    await room.do(store, p.MessageCreateSibling(source_id="a", text="another"))
    await room.do(store, p.MessageUpdate(message_id="u", context=Raw(b'{"tokens":7}')))

    loaded = await store.load("topic")

    assert loaded is not None
    assert (loaded.seq, loaded.commit) == (room.tree.seq, room.tree.commit)
    assert loaded.created_at == START
    assert loaded.state == room.tree.state
    await check_stored(store, room)


async def test_a_topic_without_messages_has_its_root(store: Store):
    room = Room()
    await room.do(store, create())

    loaded = await store.load("topic")

    assert loaded is not None
    assert (loaded.root_id, loaded.nodes, loaded.active_node_id) == ("topic-root", [], None)
    await check_stored(store, room)


async def test_an_unknown_topic_is_absent(store: Store):
    assert await store.load("topic") is None
    assert await store.contents("topic", ["a"]) == {}
    assert await store.deltas("topic", 0, 10) == []
    assert await store.commit_at("topic", 1) is None
    assert await store.topics(cursor=None, limit=10, name="") == ([], None)
    assert await store.offers() == []


async def test_every_field_of_a_message_is_kept_and_cleared(store: Store):
    room = Room()
    await room.do(store, create(), ask("u", "a"))
    await room.do(store, p.StreamClaim(message_id="a"))
    room.written["a"] = Written(3, 2, [{"type": "text", "text": "written"}])
    finish = p.StreamFinish(
        message_id="a", epoch=3, n=2, stats=Raw(b'{"t":1}'), timing=Raw(b'{"first":5}')
    )
    await room.do(store, finish)
    room.now += 5
    update = p.MessageUpdate(
        message_id="a", status="error", group=4, model="other", context=Raw(b'{"c":2}')
    )
    await room.do(store, update)
    await check_stored(store, room)

    cleared = p.MessageUpdate(message_id="a", group=0, model=None, stats=None, context=None)
    await room.do(store, cleared)

    await check_stored(store, room)
    node = (await tree_in(store, "topic")).node("a")
    assert (node.model_id, node.stats, node.context) == (None, None, None)
    assert node.timing is not None
    assert node.created_at < node.updated_at
    assert node.siblings_group_id == 0


async def test_who_fills_a_reserved_prompt_is_its_author(store: Store):
    room = Room()
    await room.do(store, create(), say("a", role="assistant"))
    await room.do(store, p.BranchReserve(anchor_id="a", message_ids=["b", "c"]))

    filled = p.Reserved(message_id="b", text="filled")
    await room.do(store, p.TurnSubmit(user=filled, placeholders=[]), subject="bea")

    await check_stored(store, room)
    tree = await tree_in(store, "topic")
    assert [tree.node(each).author for each in "abc"] == ["ann", "bea", "ann"]


async def test_what_the_caller_does_to_its_state_afterwards_is_not_stored(store: Store):
    room = Room()
    run = await room.do(store, create(metadata=Raw(b'{"a":1}')))

    run.state["metadata"]["a"] = 2

    loaded = await store.load("topic")
    assert loaded is not None
    assert loaded.state["metadata"] == {"a": 1}


async def test_text_of_every_kind_comes_back_byte_for_byte(store: Store):
    room = Room()
    wild = "\0 é \U0001f600 \u2028 \"\\' \x7f \ufffd 👩‍👩‍👧 e\u0301"
    await room.do(store, create(f"a\0b {wild}", metadata=Raw(msgspec.json.encode({wild: wild}))))
    spaced = Raw(b' {"parts" : [ {"type":"text", "text":"\\u0000\\ud83d\\ude00 x"} ], "n":1.50} ')
    await room.do(store, say("plain", text=wild, model=f"m\0{wild}"))
    await room.do(store, say("spaced", data=spaced), subject=f"subject\0{wild}")

    await check_stored(store, room)
    contents = await store.contents("topic", ["plain", "spaced"])
    assert contents["spaced"][1] == bytes(spaced)
    node = (await tree_in(store, "topic")).node("spaced")
    assert node.author == f"subject\0{wild}"
    (row,), _ = await store.topics(cursor=None, limit=1, name="a\0B")
    assert row.name == f"a\0b {wild}"


async def test_ids_are_told_apart_by_code_point(store: Store):
    upper, lower = Room("T"), Room("t")
    await upper.do(store, create(), say("B"), say("b"), say("_"), say("-"))
    await lower.do(store, create(), say("B"))

    await check_stored(store, upper, lower)
    assert set(await store.contents("T", ["B", "b", "_", "-"])) == {"B", "b", "_", "-"}
    assert set(await store.contents("t", ["B", "b"])) == {"B"}


# Contents ---------------------------------------------------------------------------------


async def test_contents_carry_their_version_and_leave_out_what_is_not_there(store: Store):
    room = Room()
    await room.do(store, create())
    await room.do(store, say("a"), say("b"))
    await room.do(store, p.MessageUpdate(message_id="a", text="changed"))

    found = await store.contents("topic", ["a", "b", "gone", "topic-root"])

    assert found == {"a": (4, data_of_text("changed")), "b": (3, data_of_text("b"))}


async def test_contents_of_many_messages(store: Store):
    room = Room()
    await room.do(store, chain("topic-root", 1_300))
    ids = [f"m{place}" for place in range(1_300)]

    found = await store.contents("topic", [*ids, "gone"])

    assert list(map(found.__getitem__, ids)) == [(1, data_of_text(each)) for each in ids]
    assert len(found) == 1_300


async def test_content_that_nobody_holds_survives_a_change_of_its_message(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"))
    room.tree.release("a")

    await room.do(store, p.MessageUpdate(message_id="a", status="error"))

    assert await store.contents("topic", ["a"]) == {"a": (4, data_of_text("a"))}
    loaded = await store.load("topic")
    assert loaded is not None
    assert {node.id: node.preview for node in loaded.nodes} == {"a": "a", "b": "b"}


async def test_L8_what_a_reply_s_writer_streamed_is_stored_though_no_delta_carries_it(
    store: Store,
):
    room = Room()
    await room.do(store, create(), ask("u", "a"))
    await room.do(store, p.StreamClaim(message_id="a"))
    room.written["a"] = Written(3, 1, [{"type": "text", "text": "streamed"}])

    run = await room.do(store, p.StreamFinish(message_id="a", epoch=3, n=1))

    assert b"streamed" not in frames_of([run])[0]
    assert await store.contents("topic", ["a"]) == {"a": (4, data_of_text("streamed"))}
    await check_stored(store, room)


# The log ----------------------------------------------------------------------------------


async def test_D1_the_log_has_the_bytes_that_were_committed(store: Store):
    room = Room()
    runs = [await room.do(store, create()), await room.do(store, say("a"), say("b"), say("c"))]
    frames = frames_of(runs)

    assert len(frames) == 4
    assert await store.deltas("topic", 0, 100) == frames
    assert await store.deltas("topic", 1, 2) == frames[1:3]
    assert await store.deltas("topic", 4, 10) == []
    assert await store.deltas("topic", 99, 10) == []


async def test_D3_each_seq_has_its_commit(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"))

    deltas = [p.decode_frame(frame) for frame in await store.deltas("topic", 0, 10)]

    assert [await store.commit_at("topic", seq) for seq in (1, 2, 3)] == [
        delta.commit for delta in deltas
    ]
    assert [delta.prev for delta in deltas[1:]] == [delta.commit for delta in deltas[:-1]]
    assert await store.commit_at("topic", 0) is None
    assert await store.commit_at("topic", 4) is None


# Removing ---------------------------------------------------------------------------------


async def test_T7_a_splice_is_stored_with_the_children_that_moved(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), say("c"), say("d"))

    await room.do(store, p.MessageDelete(message_id="b"))

    await check_stored(store, room)
    assert (await tree_in(store, "topic")).node("c").parent_id == "a"


async def test_T7_a_cascade_takes_the_active_node_along(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), say("c"))

    await room.do(store, p.MessageDelete(message_id="b", cascade=True))

    await check_stored(store, room)
    loaded = await store.load("topic")
    assert loaded is not None
    assert (loaded.active_node_id, [node.id for node in loaded.nodes]) == ("a", ["a"])
    assert await store.contents("topic", ["b", "c"]) == {}


async def test_messages_made_changed_moved_and_removed_in_one_run(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b", parent="ROOT"))

    await room.do(
        store,
        say("c", parent="a"),
        p.MessageUpdate(message_id="c", text="changed"),
        say("d", parent="b"),
        p.MessageUpdate(message_id="c", parent="d"),
        p.MessageUpdate(message_id="a", parent="c"),
        p.MessageUpdate(message_id="c", status="error"),
        p.MessageDelete(message_id="b"),
        say("e", parent="a"),
        p.MessageUpdate(message_id="d", text="also"),
        p.MessageDelete(message_id="c", cascade=True),
        p.TopicSetActive(node_id="d"),
    )

    await check_stored(store, room)
    assert {node.id for node in room.tree.nodes()} == {"d"}


async def test_T1_clearing_leaves_the_root(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"), say("c", parent="a"))

    await room.do(store, p.TopicClear())
    await check_stored(store, room)

    await room.do(store, say("d"))
    await check_stored(store, room)


@pytest.mark.parametrize("depth", [5_000, 20_000])
async def test_a_chain_of_any_depth_is_removed(store: Store, depth: int):
    room = Room()
    await room.do(store, chain("topic-root", depth))

    await room.do(store, p.MessageDelete(message_id="m10", cascade=True))

    loaded = await store.load("topic")
    assert loaded is not None
    assert sorted(node.id for node in loaded.nodes) == sorted(f"m{each}" for each in range(10))
    assert (loaded.active_node_id, loaded.digest) == ("m9", room.tree.digest)


@pytest.mark.parametrize("depth", [5_000, 20_000])
async def test_a_chain_of_any_depth_is_cleared_and_its_topic_deleted(store: Store, depth: int):
    room = Room()
    await room.do(store, chain("topic-root", depth))

    await room.do(store, p.TopicClear())
    await check_stored(store, room)

    await room.do(store, p.TopicDelete())
    assert await store.load("topic") is None


async def test_T10_a_deleted_topic_is_absent_for_every_read(store: Store):
    room = Room()
    await room.do(store, create("Gone"), say("a"), p.TopicDelete(mutation="delete"))

    assert await store.load("topic") is None
    assert await store.contents("topic", ["a"]) == {}
    assert await store.deltas("topic", 0, 10) == []
    assert await store.commit_at("topic", 1) is None
    assert await store.topics(cursor=None, limit=10, name="") == ([], None)
    # What was done once stays done.
    assert await store.mutations([MutationKey("ann", "delete")])


async def test_T10_nothing_lands_on_a_deleted_topic(store: Store):
    room = Room()
    await room.do(store, create(), say("a"))
    late = room.plan(say("late", mutation="late"))
    deletion = room.plan(p.TopicDelete())
    room.keep(deletion)
    after = room.plan(say("after"))

    outcomes = await asyncio.gather(
        *map(store.commit, (deletion, late, after)), return_exceptions=True
    )

    assert [type(outcome) for outcome in outcomes] == [type(None), SeqTaken, SeqTaken]
    with pytest.raises(SeqTaken):
        await store.commit(after)
    with pytest.raises(SeqTaken):
        await store.commit(Room(maker="again").plan(create()))
    assert await store.mutations([MutationKey("ann", "late")]) == {}


async def test_T10_a_deleted_topic_comes_back_as_it_was(store: Store):
    room = Room()
    await room.do(store, create("Trip"), say("a"), say("b"), p.MessageDelete(message_id="b"))
    before = dict(room.tree.state)
    await room.do(store, p.TopicDelete())
    loaded = await store.load("topic", deleted=True)
    assert loaded is not None
    assert loaded.state == room.tree.state
    assert loaded.state["deletedAt"] == START

    again = Room.of(loaded, maker="again")
    again.tree.hold("a", 2, Raw(data_of_text("a")))
    await again.do(store, p.TopicRestore())

    assert await store.load("topic", deleted=True) is None
    assert again.tree.state == before
    await again.do(store, say("c"))
    await check_stored(store, again)
    (row,) = await store.listed(["topic"])
    assert (row.name, row.seq) == ("Trip", 7)
    await again.do(store, p.TopicDelete(), p.TopicRestore(), p.TopicUndo(seq=4))
    await check_stored(store, again)


async def test_T10_a_deleted_topic_takes_nothing_but_its_restoring(store: Store):
    room = Room()
    await room.do(store, create("same"), say("a"))
    same = room.plan(p.TopicUpdate(name="same", mutation="nothing"))
    await room.do(store, p.TopicDelete())
    restoring = room.plan(say("b"), p.TopicRestore())
    alone = room.plan(p.TopicRestore())

    for run in (same, restoring):
        with pytest.raises(SeqTaken):
            await store.commit(replace(run, base_seq=3))
    assert await store.load("topic") is None
    await store.commit(alone)
    room.keep(alone)

    with pytest.raises(SeqTaken):
        await store.commit(alone)
    await check_stored(store, room)


async def test_nothing_of_a_deleted_topic_is_live(store: Store):
    room, other = Room(), Room("other")
    await room.do(store, create(), ask("u", "a"))
    await other.do(store, create(), ask("u", "b"))
    # The live guard refuses this command; a store must not depend on it.
    run = room.plan(p.TopicSetMetadata(metadata=Raw(b'{"a":1}')))
    (entry,) = run.entries
    assert entry.delta is not None
    deletion = replace(entry.delta, set={"deletedAt": START})
    state = {**run.state, "deletedAt": START}
    await store.commit(replace(run, entries=[replace(entry, delta=deletion)], state=state))

    assert await store.offers() == [OfferRow("other", "b", "echo")]
    assert await store.due(lease_before=START * 2, offered_before=START * 2) == [
        Due("other", "b", 0)
    ]
