import asyncio
import base64

import msgspec
import pytest
from livetree.core import protocol as p
from livetree.core.content import data_of_text
from livetree.core.errors import Internal, Validation
from livetree.core.plan import ExpireLease, ExpireOffer, Written
from livetree_server.topics.ports import (
    Due,
    MutationKey,
    MutationTaken,
    OfferRow,
    Run,
    SeqTaken,
    Store,
    StoreError,
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
    forged,
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


# The compare-and-set ----------------------------------------------------------------------


async def test_a_run_on_an_old_seq_is_refused_and_leaves_nothing(store: Store):
    room = Room()
    await room.do(store, create())
    late = room.plan(say("late", mutation="late"))
    await room.do(store, say("first"))

    with pytest.raises(SeqTaken):
        await store.commit(late)

    await check_stored(store, room)
    assert await store.mutations([MutationKey("ann", "late")]) == {}


async def test_a_run_on_a_seq_to_come_is_refused(store: Store):
    room = Room()
    await room.do(store, create())
    skipped = room.plan(say("a"))
    room.keep(skipped)

    with pytest.raises(SeqTaken):
        await store.commit(room.plan(say("b")))


async def test_a_topic_is_made_once(store: Store):
    room = Room()
    await room.do(store, create("mine"))

    with pytest.raises(SeqTaken):
        await store.commit(Room(maker="other").plan(create("other")))

    await check_stored(store, room)


async def test_a_no_op_on_an_old_seq_is_refused(store: Store):
    room = Room()
    await room.do(store, create("same"))
    nothing = room.plan(p.TopicUpdate(name="same", mutation="nothing"))
    await room.do(store, p.TopicUpdate(name="new"))

    with pytest.raises(SeqTaken):
        await store.commit(nothing)

    assert await store.mutations([MutationKey("ann", "nothing")]) == {}


async def test_200_concurrent_runs_over_20_topics_make_20_histories(store: Store):
    rooms = [Room(f"t{place}") for place in range(20)]
    await asyncio.gather(*(room.do(store, create()) for room in rooms))

    async def append(topic_id: str, writer: int) -> None:
        for _ in range(200):
            loaded = await store.load(topic_id)
            assert loaded is not None
            run = Room.of(loaded, maker=f"w{writer}-{loaded.seq}").plan(say(f"w{writer}"))
            try:
                return await store.commit(run)
            except SeqTaken:
                continue
        raise AssertionError(f"writer {writer} of {topic_id} never came through")

    await asyncio.gather(
        *(append(room.tree.topic_id, each) for each in range(10) for room in rooms)
    )

    for room in rooms:
        frames = await store.deltas(room.tree.topic_id, 1, 100)
        deltas = [p.decode_frame(frame) for frame in frames]
        assert [delta.seq for delta in deltas] == list(range(2, 12))
        for delta in deltas:
            assert isinstance(delta, p.Delta)
            assert room.tree.apply(delta)
        assert {node.id for node in room.tree.nodes()} == {f"w{writer}" for writer in range(10)}
    await check_stored(store, *rooms)


async def test_runs_that_follow_on_each_other_may_wait_together(store: Store):
    room = Room()
    runs = []
    for command in (create(), say("a"), say("b"), p.MessageDelete(message_id="a"), say("c")):
        runs.append(room.plan(command))
        room.keep(runs[-1])

    await asyncio.gather(*(store.commit(run) for run in runs))

    await check_stored(store, room)
    assert await store.deltas("topic", 0, 10) == frames_of(runs)


# Exactly once -----------------------------------------------------------------------------


async def test_X1_a_mutation_s_first_result_is_there_for_every_repetition(store: Store):
    room = Room()
    await room.do(store, create(mutation="m1"))
    run = await room.do(store, say("a", mutation="m2"), subject="bea")
    keys = [MutationKey(*each) for each in (("ann", "m1"), ("bea", "m2"), ("ann", "m2"))]

    found = await store.mutations(keys)

    assert set(found) == set(keys[:2])
    assert found[keys[1]] == run.entries[0].mutation
    assert msgspec.json.decode(found[keys[1]].result)["messageId"] == "a"


async def test_X1_a_repeated_mutation_is_named_and_its_whole_run_leaves_nothing(store: Store):
    room = Room()
    await room.do(store, create(), say("a", mutation="once"))
    again = room.plan(say("b", mutation="new"), say("c", mutation="once"))

    with pytest.raises(MutationTaken) as refusal:
        await store.commit(again)

    assert refusal.value.keys == [MutationKey("ann", "once")]
    assert await store.mutations([MutationKey("ann", "new")]) == {}
    await check_stored(store, room)


async def test_X1_a_repeated_mutation_is_told_before_a_taken_seq(store: Store):
    room = Room()
    await room.do(store, create())
    lost = room.plan(say("a", mutation="m"))
    await room.do(store, say("a", mutation="m"))

    with pytest.raises(MutationTaken):
        await store.commit(lost)


async def test_X1_one_mutation_sent_to_two_topics_at_once_happens_in_one(store: Store):
    rooms = [Room(f"t{place}") for place in range(10)]
    await asyncio.gather(*(room.do(store, create()) for room in rooms))
    runs = [room.plan(say("a", mutation="m")) for room in rooms]

    outcomes = await asyncio.gather(*map(store.commit, runs), return_exceptions=True)

    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, MutationTaken) for outcome in outcomes) == 9
    rooms[outcomes.index(None)].keep(runs[outcomes.index(None)])
    await check_stored(store, *rooms)


async def test_X1_a_mutation_of_a_refused_run_is_free_for_another(store: Store):
    room, other = Room("a"), Room("b")
    await asyncio.gather(room.do(store, create()), other.do(store, create()))
    stale = room.plan(say("x", mutation="m"))
    await room.do(store, say("y"))

    outcomes = await asyncio.gather(
        store.commit(stale), other.do(store, say("x", mutation="m")), return_exceptions=True
    )

    assert isinstance(outcomes[0], SeqTaken)
    await check_stored(store, room, other)


async def test_X1_mutations_of_different_subjects_don_t_meet(store: Store):
    room = Room()
    await room.do(store, create(mutation="m"), subject="ann")
    await room.do(store, say("a", mutation="m"), subject="bea")

    await check_stored(store, room)


async def test_X4_a_command_that_changes_nothing_stores_only_its_mutation(store: Store):
    room = Room()
    await room.do(store, create("same"))

    run = await room.do(store, p.TopicUpdate(name="same", mutation="nothing"))

    assert run.entries[0].delta is None
    assert set(await store.mutations([MutationKey("ann", "nothing")]))
    assert len(await store.deltas("topic", 0, 10)) == 1
    await check_stored(store, room)


async def test_X4_commands_that_change_nothing_share_a_run_with_others(store: Store):
    room = Room()
    await room.do(store, create("same"))
    same = p.TopicUpdate(name="same", mutation="nothing")

    await room.do(store, same, say("a", mutation="something"))

    keys = [MutationKey("ann", "nothing"), MutationKey("ann", "something")]
    assert set(await store.mutations(keys)) == set(keys)
    await check_stored(store, room)


async def test_many_mutations_are_read_at_once(store: Store):
    room = Room()
    await room.do(store, create())
    await room.do(store, *(say(f"a{each}", mutation=f"m{each}") for each in range(1_100)))
    keys = [MutationKey("ann", f"m{each}") for each in range(1_200)]

    assert set(await store.mutations(keys)) == set(keys[:1_100])
    assert await store.mutations([]) == {}


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


async def test_an_id_that_was_removed_may_come_back_within_the_run(store: Store):
    room = Room()
    await room.do(store, create(), say("a"), say("b"))
    remove = p.MessageDelete(message_id="b", strategy="clear")

    await room.do(store, remove, say("b", text="again"), say("c", parent="b"), remove, say("b"))

    await check_stored(store, room)
    assert await store.contents("topic", ["b"]) == {"b": (8, data_of_text("b"))}


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


# Refusals, neighbours and callers that go -------------------------------------------------


def bad_run(room: Room, fault: str) -> Run:
    """Return a run that no plan would make, wrong in one way; message ``a`` is there."""
    run = room.plan(say("new", mutation="bad"))
    node = run.entries[0].nodes[0]
    assert run.entries[0].delta is not None
    put = run.entries[0].delta.put[0]
    old = room.tree.node("a")
    match fault:
        case "unknown parent":
            lost = "nobody"
            return forged(run, replace(node, parent_id=lost), replace(put, parent_id=lost))
        case "taken id":
            return forged(run, replace(node, id="a"), replace(put, id="a"))
        case "id of the root":
            root = room.tree.root_id
            return forged(run, replace(node, id=root), replace(put, id=root))
        case "unknown message":
            return forged(run, replace(old, id="nobody"), p.Put(id="nobody", status="error"))
        case "moved below nothing":
            moved = replace(old, parent_id="nobody")
            return forged(run, moved, p.Put(id="a", parent_id="nobody"))
        case "unknown active node":
            return replace(run, active_node_id="nobody")
        case "active root":
            return replace(run, active_node_id=room.tree.root_id)
    raise AssertionError(fault)


FAULTS = [
    "unknown parent",
    "taken id",
    "id of the root",
    "unknown message",
    "moved below nothing",
    "unknown active node",
    "active root",
]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_bad_run_is_refused_and_leaves_nothing(store: Store, fault: str):
    room = Room()
    await room.do(store, create(), say("a"))

    with pytest.raises(Internal):
        await store.commit(bad_run(room, fault))

    await check_stored(store, room)
    assert len(await store.deltas("topic", 0, 10)) == 2
    assert await store.mutations([MutationKey("ann", "bad")]) == {}
    await room.do(store, say("b"))
    await check_stored(store, room)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_bad_run_does_not_fail_its_neighbours(store: Store, fault: str):
    rooms = [Room(f"t{place}") for place in range(20)]
    await asyncio.gather(*(room.do(store, create(), say("a")) for room in rooms))
    runs = [room.plan(say("b", mutation=room.tree.topic_id)) for room in rooms]
    runs[7] = bad_run(rooms[7], fault)

    outcomes = await asyncio.gather(*map(store.commit, runs), return_exceptions=True)

    assert isinstance(outcomes.pop(7), Internal)
    assert outcomes == [None] * 19
    for place, room in enumerate(rooms):
        if place != 7:
            room.keep(runs[place])
    await check_stored(store, *rooms)
    stored = await store.mutations([MutationKey("ann", room.tree.topic_id) for room in rooms])
    assert len(stored) == 19


async def test_a_caller_that_is_cancelled_does_not_cancel_the_commit(store: Store):
    room, other = Room(), Room("other")
    run = room.plan(create(mutation="m"), say("a"))
    caller = asyncio.create_task(store.commit(run))
    await asyncio.sleep(0)  # it begins
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    # Commits end in the order in which they began.
    await other.do(store, create())

    room.keep(run)
    await check_stored(store, room, other)
    assert await store.mutations([MutationKey("ann", "m")])


async def test_a_closed_store_says_so(store: Store):
    room = Room()
    await room.do(store, create())
    await store.close()

    with pytest.raises(StoreError, match="closed"):
        await room.do(store, say("a"))
    with pytest.raises(StoreError, match="closed"):
        await store.load("topic")
    await store.close()


# The list of topics -----------------------------------------------------------------------


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


# Live replies -----------------------------------------------------------------------------


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


# What outlives its time -------------------------------------------------------------------

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
    flips = [p.TopicUpdate(name=f"{each}") for each in range(10_500)]
    await room.do(store, *flips)

    await prune(store, START)

    assert room.tree.seq == 10_502
    assert await store.deltas("topic", 501, 1) == []
    assert len(await store.deltas("topic", 502, 20_000)) == 10_000
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
