"""What `Store.commit` keeps and refuses; the modules `test_store_*` are the rest of the suite."""

import asyncio

import msgspec
import pytest
from livetree.core import protocol as p
from livetree.core.errors import Internal
from livetree_server.topics.ports import (
    MutationKey,
    MutationTaken,
    Run,
    SeqTaken,
    Store,
    StoreError,
)
from msgspec.structs import replace

from tests.contracts.building import (
    Room,
    ask,
    check_stored,
    create,
    forged,
    frames_of,
    say,
)

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


async def test_runs_that_follow_on_each_other_may_wait_together(
    store: Store, caplog: pytest.LogCaptureFixture
):
    room = Room()
    runs = []
    for commands in (
        [create("one")],
        [say("a"), p.TopicUpdate(name="two")],
        [say("b")],
        [p.MessageDelete(message_id="a")],
        [ask("u", "r")],
        [p.StreamClaim(message_id="r")],
        [p.StreamAbort(message_id="r"), say("c")],
    ):
        runs.append(room.plan(*commands))
        room.keep(runs[-1])

    await asyncio.gather(*(store.commit(run) for run in runs))

    assert not caplog.records, "they were refused together, and each had to be tried alone"
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


async def test_X1_one_mutation_sent_to_ten_topics_at_once_happens_in_one(
    store: Store, caplog: pytest.LogCaptureFixture
):
    rooms = [Room(f"t{place}") for place in range(10)]
    await asyncio.gather(*(room.do(store, create()) for room in rooms))
    runs = [room.plan(say("a", mutation="m")) for room in rooms]

    outcomes = await asyncio.gather(*map(store.commit, runs), return_exceptions=True)

    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, MutationTaken) for outcome in outcomes) == 9
    assert not caplog.records, "the store found out by failing"
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


# Refusals, neighbours and callers that go -------------------------------------------------


def bad_run(room: Room, fault: str) -> Run:
    """Return a run that no plan would make, wrong in one way; message ``a`` is there."""
    run = room.plan(say("new", mutation="bad", set_active=False))
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
