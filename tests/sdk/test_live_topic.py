import asyncio
import contextlib

import msgspec
import pytest
from livetree import changes as c
from livetree.core import protocol as p
from livetree.core.errors import InvalidOperation, NotFound, TopicLive
from livetree.live_topic import LiveTopic
from livetree.mirror import Mirror
from livetree.session import ClientClosed
from livetree.testing import MemoryConnection
from msgspec import UNSET

from tests.sdk.kit import World, settle


async def test_T2_what_it_shows():
    world = World()
    async with world.open() as (_, live):
        first = await live.create("a")
        second = await live.create("b")
        third = await live.edit(second.message_id, "c")

        assert [node.id for node in live.path()] == [first.message_id, third.message_id]
        assert [node.id for node in live.path(second.message_id)] == [
            first.message_id,
            second.message_id,
        ]
        assert live.active_node_id == third.message_id
        assert live.children(live.root_id) == [first.message_id]
        assert live.children(first.message_id) == [second.message_id, third.message_id]
        assert live.siblings(third.message_id) == [second.message_id]
        assert live.siblings(live.node(second.message_id)) == [third.message_id]
        assert live.is_first_turn(first.message_id)
        assert not live.is_first_turn(second.message_id)
        assert not live.is_first_turn(live.root_id)
        assert live.text(third.message_id) == "c"
        assert live.parts(third.message_id) == [{"type": "text", "text": "c"}]
        with pytest.raises(KeyError):
            live.node(live.root_id)
        tree = world.server.topics[live.id].tree
        assert (live.seq, live.commit, live.digest) == (tree.seq, tree.commit, tree.digest)


async def test_a_command_is_shown_when_it_returns():
    world = World()
    async with world.open() as (_, live):
        held: list[tuple[MemoryConnection, p.ServerFrame]] = []

        def hold(connection: MemoryConnection, frame: p.ServerFrame) -> list[p.ServerFrame]:
            if isinstance(frame, p.Delta):
                held.append((connection, frame))
                return []
            return [frame]

        world.server.on_send = hold
        creating = asyncio.create_task(live.create("a"))
        await settle()
        assert not creating.done()
        for connection, frame in held:
            connection.push(p.encode(frame).decode())

        created = await creating
        assert live.text(created.message_id) == "a"


async def test_a_command_whose_history_is_gone_returns():
    world = World()
    async with world.open() as (_, live):
        world.server.on_send = lambda _, frame: [] if isinstance(frame, p.Delta) else [frame]
        creating = asyncio.create_task(live.create("a"))
        await settle()
        other = World(seed=5)
        other.server.run(p.TopicCreate(topic=live.id))
        world.server.topics = other.server.topics
        world.server.drop()
        await world.clock.elapse(1)
        await creating
        assert live.seq == 1
        world.check(live)


async def test_submit_goes_below_what_is_shown():
    world = World()
    async with world.open() as (_, live):
        turn = await live.submit("Where to?", models=["echo"])

        user, reply = live.path()
        assert (user.id, reply.id) == (turn.user_id, turn.placeholder_ids[0])
        assert user.parent_id == live.root_id
        assert (reply.role, reply.status, reply.model_id) == ("assistant", "pending", "echo")
        with pytest.raises(TopicLive):
            await live.submit("And then?")
        await live.abort(reply.id)

        further = await live.submit("And then?")
        assert live.node(further.user_id).parent_id == reply.id
        assert further.placeholder_ids == []


async def test_submit_names_the_parent_at_the_call():
    world = World()
    async with world.open() as (_, live):
        first = await live.create("a")
        submitting = asyncio.create_task(live.submit("b"))
        elsewhere = asyncio.create_task(live.set_active(None))
        turn, _ = await asyncio.gather(submitting, elsewhere)

        assert live.node(turn.user_id).parent_id == first.message_id
        sent = [each for each in world.server.connection.requests if isinstance(each, p.TurnSubmit)]
        assert isinstance(sent[0].user, p.Fresh)
        assert sent[0].user.parent == first.message_id
        assert sent[0].user.message_id == turn.user_id


async def test_several_models_answer_in_one_group():
    world = World()
    async with world.open() as (_, live):
        turn = await live.submit("Where to?", models=["one", "two"])
        one, two = turn.placeholder_ids
        assert live.siblings(one) == [two]
        for reply in (one, two):
            await live.abort(reply)

        again = await live.answer(turn.user_id, ["three"])
        assert live.siblings(again.placeholder_ids[0]) == [one, two]


async def test_a_second_answer_joins_the_first():
    world = World()
    async with world.open() as (_, live):
        turn = await live.submit("Where to?", models=["one"])
        await live.abort(turn.placeholder_ids[0])
        again = await live.answer(turn.user_id, ["two"])

        assert live.siblings(turn.placeholder_ids[0]) == again.placeholder_ids


async def test_the_first_answer_stands_alone():
    world = World()
    async with world.open() as (_, live):
        user = await live.create("Where to?")
        turn = await live.answer(user.message_id, ["one"])

        assert live.node(turn.placeholder_ids[0]).siblings_group_id == 0


async def test_every_command():
    world = World()
    async with world.open() as (_, live):
        a = (await live.create("a", role="system", model="m", stats={"n": 1})).message_id
        b = (await live.create(data={"parts": [], "x": 1}, parent=a)).message_id
        await live.update(b, text="b", context={"tokens": 3}, model="n")
        node = live.node(b)
        assert node.data is not UNSET
        assert msgspec.json.decode(node.data) == {
            "parts": [{"type": "text", "text": "b"}],
            "x": 1,
        }
        assert (node.model_id, node.context and bytes(node.context)) == ("n", b'{"tokens":3}')
        await live.update(b, context=None, parent=live.root_id, if_version=node.version)
        assert live.is_first_turn(b)
        assert live.node(b).context is None
        await live.set_active(a)
        assert live.active_node_id == a
        await live.rename("Journey")
        await live.set_metadata({"color": "red", "size": 1})
        await live.set_metadata_namespace("color", "blue")
        await live.set_metadata_namespace("size")
        assert (live.name, live.metadata) == ("Journey", {"color": "blue"})
        gone = await live.delete(b)
        assert gone.deleted == [b]
        assert (await live.clear()).deleted == [a]
        assert live.path() == []
        world.check(live)


async def test_T9_a_batch_is_one_commit():
    world = World()
    async with world.open() as (_, live):
        before = live.seq
        done = await live.batch(
            [
                p.MessageCreate(role="user", text="a", parent="ROOT"),
                p.MessageCreate(role="user", text="b", parent="ROOT"),
                p.TopicUpdate(name="Both"),
            ]
        )

        assert done.seq == live.seq == before + 1
        assert [live.text(result["messageId"]) for result in done.results[:2]] == ["a", "b"]
        with pytest.raises(InvalidOperation):
            await live.batch([p.TopicUpdate(name="No"), p.MessageDelete(message_id=live.root_id)])
        assert live.name == "Both"


# Waiting


async def test_waiting_for_a_moment():
    world = World()
    async with world.open() as (_, live):
        waiting = asyncio.create_task(live.wait_for(lambda live: len(live.tree) == 2))
        await live.create("a")
        assert not waiting.done()
        await live.create("b")
        await waiting
        await live.wait_for(lambda live: True)


async def test_a_predicate_that_fails_fails_the_wait():
    world = World()
    async with world.open() as (_, live):
        waiting = asyncio.create_task(live.wait_for(lambda live: 1 / len(live.tree.live) > 2))
        with pytest.raises(ZeroDivisionError):
            await waiting

        later = asyncio.create_task(live.wait_for(lambda live: live.seq > 1 and 1 / 0 > 0))
        await live.create("a")
        with pytest.raises(ZeroDivisionError):
            await later
        assert live.statistics()["waiters"] == 0


async def test_idle_is_when_nothing_is_written_or_offered():
    world = World()
    async with world.open() as (_, live):
        await live.wait_idle()
        turn = await live.submit("Where to?", models=["echo"])
        waiting = asyncio.create_task(live.wait_idle())
        await settle()
        assert not waiting.done()
        await live.abort(turn.placeholder_ids[0])
        await waiting


async def test_leaving_ends_what_reads_and_waits():
    world = World()
    async with world.client() as client:
        topic = await client.create_topic()
        async with client.open(topic.id) as live:
            changes = live.changes()
            waiting = asyncio.create_task(live.wait_for(lambda live: False))
            await settle()
        with pytest.raises(ClientClosed, match="open it again"):
            await waiting
        assert [change async for change in changes] == []
        with pytest.raises(ClientClosed):
            await live.wait_for(lambda live: False)
        assert live.path() == []  # it can still be read


async def test_changes_are_for_each_reader():
    world = World()
    async with world.open() as (_, live):
        one, other = live.changes(), live.changes()
        await live.create("a")
        assert isinstance(await anext(one), c.Committed)
        assert isinstance(await anext(other), c.Committed)


async def test_a_reader_that_left_is_forgotten():
    world = World()
    async with world.open() as (_, live):
        changes = live.changes()
        assert live.statistics()["readers"] == 1
        del changes
        assert live.statistics()["readers"] == 0


async def test_R6_a_reader_that_never_reads_costs_a_bounded_amount():
    world = World()
    async with world.open() as (_, live):
        changes = live.changes()
        for number in range(1500):
            world.server.run(p.TopicUpdate(topic=live.id, name=str(number)))
            if number % 100 == 0:
                await settle()
        await settle()
        assert len(changes) <= 1000
        assert isinstance(await anext(changes), c.Skipped)
        world.check(live)


async def test_a_topic_that_is_not_open_yet_says_so():
    world = World()
    live = LiveTopic(world.client(), Mirror("topic"))
    with pytest.raises(InvalidOperation, match="async with"):
        _ = live.tree
    assert repr(live) == "<LiveTopic <Mirror topic behind None>>"


# Content


async def cold(world: World, live: LiveTopic, *texts: str) -> list[str]:
    """Return messages whose content the mirror doesn't hold."""
    ids = [(await live.create(text, parent=live.root_id)).message_id for text in texts]
    for each in ids:
        live.tree.release(each)
    return ids


async def test_S6_cold_content_is_fetched_when_it_is_looked_at():
    world = World()
    async with world.open() as (_, live):
        ids = await cold(world, live, "a", "b")
        changes = live.changes()
        assert live.text(ids[0]) is None

        nodes = await live.content([ids[1], ids[0], ids[1]])

        assert [node.id for node in nodes] == [ids[1], ids[0]]
        assert [live.text(each) for each in ids] == ["a", "b"]
        assert await anext(changes) == c.Loaded([ids[1], ids[0]])
        requests = len(world.server.connection.requests)
        await live.content(ids)
        assert len(world.server.connection.requests) == requests
        world.check(live)


async def test_S6_many_are_fetched_in_batches():
    world = World()
    async with world.open() as (_, live):
        ids = await cold(world, live, *map(str, range(450)))
        nodes = await live.content(ids)

        assert [live.text(node.id) for node in nodes] == [*map(str, range(450))]
        reads = [
            len(each.message_ids)
            for each in world.server.connection.requests
            if isinstance(each, p.MessageGet)
        ]
        assert reads == [200, 200, 50]


async def test_S6_content_is_returned_whatever_the_bound():
    world = World()
    async with world.open(content_bytes=10) as (_, live):
        ids = await cold(world, live, *map(str, range(250)))
        nodes = await live.content(ids)
        assert len(nodes) == 250
        assert all(node.data is not UNSET for node in nodes)


async def test_S6_content_that_changes_while_it_is_fetched_is_the_new_one():
    world = World()
    async with world.open() as (_, live):
        (message_id,) = await cold(world, live, "old")

        def edit_first(connection: MemoryConnection, command: p.Command) -> None:
            if isinstance(command, p.MessageGet):
                world.server.refuse = lambda _, __: None
                world.server.run(
                    p.MessageUpdate(topic=live.id, message_id=message_id, status="paused")
                )

        world.server.refuse = edit_first
        # The answer is of a newer version than the mirror: the delta comes after it.
        held: list[tuple[MemoryConnection, p.ServerFrame]] = []

        def late(connection: MemoryConnection, frame: p.ServerFrame) -> list[p.ServerFrame]:
            if isinstance(frame, p.Delta):
                held.append((connection, frame))
                return []
            return [frame]

        world.server.on_send = late
        fetching = asyncio.create_task(live.content([message_id]))
        await settle()
        assert not fetching.done()
        for connection, frame in held:
            connection.push(p.encode(frame).decode())

        (node,) = await fetching
        assert (node.status, live.text(message_id)) == ("paused", "old")
        world.check(live)


async def test_S6_content_of_an_older_version_is_fetched_again():
    world = World()
    async with world.open() as (_, live):
        (message_id,) = await cold(world, live, "old")

        def edit_behind(connection: MemoryConnection, frame: p.ServerFrame) -> list[p.ServerFrame]:
            world.server.on_send = lambda _, frame: [frame]
            world.server.run(p.MessageUpdate(topic=live.id, message_id=message_id, status="paused"))
            return [frame]

        world.server.on_send = edit_behind
        (node,) = await live.content([message_id])
        assert node.status == "paused"
        assert live.text(message_id) == "old"
        world.check(live)


async def test_S6_content_that_is_deleted_while_it_is_fetched_is_left_out():
    world = World()
    async with world.open() as (_, live):
        one, other = await cold(world, live, "one", "other")

        def delete_first(connection: MemoryConnection, command: p.Command) -> None:
            if isinstance(command, p.MessageGet):
                world.server.refuse = lambda _, __: None
                world.server.run(p.MessageDelete(topic=live.id, message_id=one))

        world.server.refuse = delete_first
        (node,) = await live.content([one, other])
        assert node.id == other


async def test_S6_content_of_nothing_is_refused():
    world = World()
    async with world.open() as (_, live):
        with pytest.raises(NotFound):
            await live.content(["nobody"])
        assert await live.content([]) == []


async def test_L8_a_reply_whose_text_was_missed_is_fetched_by_itself():
    world = World()
    async with world.open() as (_, live):
        turn = await live.submit("Where to?", models=["echo"])
        (reply,) = turn.placeholder_ids
        claim = world.server.run(p.StreamClaim(topic=live.id, message_id=reply))
        world.server.on_send = lambda _, frame: [] if isinstance(frame, p.Stream) else [frame]
        topic = world.server.topics[live.id]
        topic.append(
            p.StreamAppend(
                topic=live.id,
                message_id=reply,
                epoch=claim["epoch"],
                first=1,
                ops=[p.TextOp(0, "There")],
            ),
            durable=True,
        )
        world.server.run(p.StreamFinish(topic=live.id, message_id=reply, epoch=claim["epoch"], n=1))
        await live.wait_for(lambda live: live.text(reply) == "There")
        world.check(live)


@pytest.mark.parametrize("cut", range(2, 12))
async def test_content_survives_lost_connections(cut: int):
    world = World()
    async with world.open() as (_, live):
        ids = await cold(world, live, *map(str, range(450)))
        sends = 0

        def send(connection: MemoryConnection, frame: p.ServerFrame) -> list[p.ServerFrame]:
            nonlocal sends
            sends += 1
            if sends % cut == 0:
                connection.drop()
                connection.topics.clear()
                return []
            return [frame]

        world.server.on_send = send
        fetching = asyncio.create_task(live.content(ids))
        for _ in range(12):
            await world.clock.elapse(11)
        world.server.on_send = lambda _, frame: [frame]
        await world.clock.elapse(20)
        assert len(await fetching) == 450
        world.check(live)
        with contextlib.suppress(asyncio.CancelledError):
            fetching.cancel()
