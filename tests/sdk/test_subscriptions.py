import asyncio
import contextlib
from typing import Any

import livetree
import pytest
from livetree.core import protocol as p
from livetree.core.errors import Forbidden, Internal, NotFound
from livetree.testing import MemoryConnection

from tests.sdk.hand import as_dict, drop_at, elsewhere, lose, refuse_once
from tests.sdk.kit import World, settle


async def test_S1_opening_waits_until_the_topic_is_there():
    world = World()
    async with world.client() as client:
        topic = await client.create_topic("Trip", metadata={"color": "red"})
        assert str(topic) == topic.id
        async with client.open(topic.id) as live:
            world.check(live)
            assert (live.id, live.root_id, live.name) == (topic.id, topic.root_id, "Trip")
            assert live.metadata == {"color": "red"}
            assert live.active_node_id is None
        await settle()
        assert world.server.connection.topics == set()


async def test_S1_opening_what_is_not_there_is_refused():
    world = World()
    async with world.client() as client:
        for _ in range(2):
            with pytest.raises(NotFound):
                async with client.open("nothing"):
                    pass
        assert client.statistics()["topics"] == 0


async def test_two_blocks_share_one_mirror():
    world = World()
    async with world.open() as (client, live):
        async with client.open(live.id) as again:
            assert again is live
        assert live.is_synced
        await live.create("still here")
        opens = [each for each in world.server.connection.requests if isinstance(each, p.TopicOpen)]
        assert len(opens) == 1


async def test_a_topic_that_was_left_can_be_opened_again():
    world = World()
    async with world.client() as client:
        topic = await client.create_topic()
        for count in range(3):
            async with client.open(topic.id) as live:
                assert len(live.tree) == count
                await live.create("x")
                world.check(live)


async def test_R7_a_frame_that_cannot_be_read_starts_its_topic_over():
    world = World()
    async with world.client() as client:
        one, two = [(await client.create_topic()).id for _ in range(2)]
        async with client.open(one) as live, client.open(two) as other:
            world.server.connection.push({"type": "delta", "topic": one, "seq": "x"})
            await settle()
            assert other.is_synced
            world.check(other)
            world.check(live)
            opens = [
                each for each in world.server.connection.requests if isinstance(each, p.TopicOpen)
            ]
            assert [each.topic for each in opens] == [one, two, one]


async def test_S1_a_reconnect_brings_what_was_missed():
    world = World()
    async with world.open() as (_, live):
        await live.create("a")
        changes = live.changes()
        world.server.reachable = False
        world.server.drop()
        await settle()
        assert not live.is_synced
        for name in "bd":
            world.server.run(p.MessageCreate(topic=live.id, role="user", text=name, parent="ROOT"))
        world.server.reachable = True
        await world.clock.elapse(2)

        world.check(live)
        hello = world.server.connection.hello
        assert hello is not None
        assert [(each.topic, each.seq) for each in hello.resume] == [(live.id, 2)]
        seen = [type(await anext(changes)).__name__ for _ in range(len(changes))]
        assert seen == ["Offline", "Committed", "Committed", "Synced"]


async def test_S3_a_server_with_another_history_resets_the_mirror():
    world = World()
    async with world.open() as (_, live):
        await live.create("a")
        changes = live.changes()
        other = World(seed=9)
        other.server.run(p.TopicCreate(topic=live.id, name="restored"))
        world.server.drop()
        world.server.topics = other.server.topics
        await world.clock.elapse(1)

        world.check(live)
        assert live.name == "restored"
        seen = [await anext(changes) for _ in range(len(changes))]
        assert livetree.changes.Reset(history=True) in seen


async def test_S8_a_topic_that_is_deleted_ends_its_mirror():
    world = World()
    async with world.open() as (client, live):
        changes = live.changes()
        waiting = asyncio.create_task(live.wait_for(lambda live: False))
        await client.delete_topic(live.id)
        await settle()

        assert [type(each).__name__ async for each in changes] == ["Committed", "Gone"]
        with pytest.raises(NotFound):
            await waiting
        with pytest.raises(NotFound):
            async with client.open(live.id):
                pass
        assert [each async for each in live.changes()] == []
        assert client.is_online


async def test_S8_a_topic_that_was_deleted_meanwhile_is_gone():
    world = World()
    async with world.open() as (client, live):
        changes = live.changes()
        world.server.drop()
        world.server.run(p.TopicDelete(topic=live.id))
        await world.clock.elapse(1)

        assert [type(each).__name__ async for each in changes] == ["Offline", "Gone"]
        assert client.statistics()["topics"] == 0


async def test_a_topic_that_is_left_while_the_connection_is_made_is_closed():
    world = World()
    async with world.client() as client:
        topic = await client.create_topic()
        opening = client.open(topic.id)
        await opening.__aenter__()
        held: list[tuple[MemoryConnection, p.ServerFrame]] = []

        def hold(connection: MemoryConnection, frame: p.ServerFrame) -> list[p.ServerFrame]:
            held.append((connection, frame))
            return []

        world.server.on_send = hold
        world.server.drop()
        await world.clock.elapse(0.1)
        assert world.server.connection.topics == {topic.id}
        await opening.__aexit__(None, None, None)
        for connection, frame in held:
            connection.push(p.encode(frame).decode())
        await settle()

        assert world.server.connection.topics == set()


async def test_topics_beyond_what_a_hello_holds_are_opened_by_request():
    world = World()
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(world.client())
        mirrors = [
            await stack.enter_async_context(client.open((await client.create_topic()).id))
            for _ in range(700)
        ]
        world.server.drop()
        await world.clock.elapse(1)
        hello = world.server.connection.hello
        assert hello is not None
        assert len(p.encode(hello)) < 64 * 1024
        assert 0 < len(hello.resume) < 700
        assert world.server.connection.topics == {live.id for live in mirrors}
        assert all(live.is_synced for live in mirrors)


async def test_D3_a_lost_delta_is_repaired():
    world = World()
    async with world.open() as (_, live):
        lose(world, lambda frame: isinstance(frame, p.Delta) and frame.seq == 2)
        elsewhere(world, live.id, "a")
        elsewhere(world, live.id, "b")
        await settle()
        world.check(live)


async def test_D3_a_repair_that_is_refused_becomes_a_new_opening():
    world = World()
    async with world.open() as (_, live):
        lose(world, lambda frame: isinstance(frame, p.Delta) and frame.seq == 2)
        refuse_once(world, p.TopicDeltas, Internal("no"))
        elsewhere(world, live.id, "a")
        elsewhere(world, live.id, "b")
        await settle()
        world.check(live)


async def test_D3_an_opening_that_is_refused_is_tried_again():
    world = World()
    async with world.open() as (_, live):
        lose(world, lambda frame: isinstance(frame, p.Delta) and frame.seq == 2)
        refuse_once(world, p.TopicDeltas, Internal("no"))
        refuse_once(world, p.TopicOpen, Internal("no"))
        elsewhere(world, live.id, "a")
        elsewhere(world, live.id, "b")
        await settle()
        assert not live.is_synced
        await world.clock.elapse(5)
        world.check(live)


async def test_S8_an_opening_that_is_forbidden_now_ends_the_mirror():
    world = World()
    async with world.open() as (client, live):
        refuse_once(world, p.TopicOpen, Forbidden("not any more"))
        changes = live.changes()
        world.server.connection.push({"type": "delta", "topic": live.id, "seq": "x"})
        await settle()
        with pytest.raises(Forbidden):
            await anext(changes)
        assert client.statistics()["topics"] == 0


async def test_D7_a_large_delta_is_fetched():
    world = World()
    world.server.large_delta_bytes = 1000
    async with world.open() as (_, live):
        await live.create("x" * 2000)
        world.check(live)
        assert any(isinstance(each, p.TopicDeltas) for each in world.server.connection.requests)


async def test_D6_drift_is_mended_by_a_snapshot():
    world = World()
    async with world.open() as (_, live):

        def lie(_: Any, frame: p.ServerFrame) -> list[p.ServerFrame]:
            if isinstance(frame, p.Delta):
                world.server.on_send = lambda _, frame: [frame]
                return [p.Delta(**{**as_dict(frame), "digest": "0" * 16})]
            return [frame]

        world.server.on_send = lie
        await live.create("a")
        await settle()
        world.check(live)
        assert live.mirror.drifts == 1


async def test_R2_commands_of_one_topic_happen_in_the_order_of_the_calls():
    world = World()
    async with world.open() as (_, live):
        calls = [
            asyncio.create_task(live.create(str(number), parent=live.root_id))
            for number in range(20)
        ]
        await asyncio.gather(*calls)
        assert [live.text(each) for each in live.children(live.root_id)] == [*map(str, range(20))]


async def test_X1_a_command_whose_answer_is_lost_happens_once():
    world = World()
    async with world.open() as (_, live):
        drop_at(world, lambda frame: isinstance(frame, p.ResultFrame))
        calls = [asyncio.create_task(live.create(str(number))) for number in range(5)]
        await world.clock.elapse(5)
        await asyncio.gather(*calls)
        assert len(live.tree) == 5
        world.check(live)


@pytest.mark.parametrize("cut", range(1, 30))
async def test_X1_wherever_the_connection_is_cut_everything_happens_once(cut: int):
    world = World()
    sends = 0

    def count(connection: MemoryConnection, frame: p.ServerFrame) -> list[p.ServerFrame]:
        nonlocal sends
        sends += 1
        if sends % cut == 0 and not isinstance(frame, p.Welcome):
            connection.drop()
            connection.topics.clear()
            return []
        return [frame]

    async with world.open() as (_, live):
        world.server.on_send = count
        work = asyncio.create_task(do_some(live))
        for _ in range(40):
            await world.clock.elapse(11)
        if cut > 4:  # with less the server never gets a word out
            assert work.done()
            await work
            world.server.on_send = lambda _, frame: [frame]
            await world.clock.elapse(30)
            world.check(live)
            assert sorted(
                filter(None, map(live.text, (each.id for each in live.tree.nodes())))
            ) == [
                "a",
                "b",
                "d",
            ]
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


async def do_some(live: livetree.LiveTopic) -> None:
    first = await live.create("a")
    await live.create("b")
    await live.edit(first.message_id, "d")
    turn = await live.submit(models=["m"])
    await live.abort(turn.placeholder_ids[0])
    await live.delete(turn.user_id, cascade=True)
    await live.rename("done")
