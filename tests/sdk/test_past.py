"""What can be asked of the past, of branches and of copies, through a client and its mirror."""

import pytest
from livetree.core import protocol as p
from livetree.core.errors import InvalidOperation, NotFound, TopicLive
from livetree.core.flow import flow_graph

from tests.sdk.kit import World


async def test_T11_one_takes_back_what_one_deleted():
    world = World()
    async with world.open() as (_, live):
        first = (await live.create("first")).message_id
        second = (await live.create("second")).message_id
        third = (await live.create("third")).message_id
        gone = await live.delete(second)
        assert live.node(third).parent_id == first

        back = await live.undo()

        assert (back.undone, back.restored, back.reparented) == (gone.seq, [second], [third])
        assert [node.id for node in live.path(third)] == [first, second, third]
        assert live.text(second) == "second"
        world.check(live)
        with pytest.raises(InvalidOperation, match="nothing to undo"):
            await live.undo()


async def test_T12_deleted_messages_are_listed_and_come_back_one_by_one():
    world = World()
    async with world.open() as (client, live):
        first = (await live.create("first")).message_id
        second = (await live.create("second")).message_id
        await live.delete(first, cascade=True)
        await live.create("other")
        await live.clear()

        page = await client.trash(live.id, limit=1)
        rest = await client.trash(live.id, cursor=page.next, limit=10)

        assert [item.op for item in page.items] == ["topic.clear"]
        assert [(item.op, item.node.id) for item in rest.items] == [
            ("message.delete", first),
            ("message.delete", second),
        ]
        assert rest.next is None
        alone = await live.restore(second)
        assert (alone.parent_id, alone.restored) == (live.root_id, [second])
        assert (await live.restore(first)).restored == [first]
        assert live.children(first) == []
        world.check(live)
        with pytest.raises(InvalidOperation, match="not deleted"):
            await live.restore(first)
        with pytest.raises(NotFound):
            await live.restore("never")


async def test_a_deleted_topic_comes_back():
    world = World()
    async with world.client() as client:
        topic = await client.create_topic("Trip")
        await client.create_message(topic.id, "x", parent=topic.root_id)
        await client.delete_topic(topic.id)
        with pytest.raises(NotFound):
            await client.topic(topic.id)

        again = await client.restore_topic(topic.id)

        assert again.root_id == topic.root_id
        async with client.open(topic.id) as live:
            assert len(live.tree) == 1
            world.check(live)


async def test_a_branch_is_reserved_filled_and_retried():
    world = World()
    async with world.open() as (_, live):
        prompt = (await live.create("prompt")).message_id
        reply = (await live.create("reply", role="assistant", parent=prompt)).message_id

        reserved = await live.reserve(reply)

        assert live.children(reply) == reserved.reserved
        assert [live.awaits_input(each) for each in reserved.reserved] == [True, True]
        assert live.active_node_id == reserved.message_id
        turn = await live.fill(reserved.message_id, "go on", models=["echo"])
        assert not live.awaits_input(reserved.message_id)
        (answer,) = turn.placeholder_ids
        with pytest.raises(TopicLive):
            await live.fill(reserved.reserved[1], "meanwhile")
        await live.abort(answer)
        await live.retry(answer)
        assert (live.node(answer).status, live.tree.live) == ("pending", {answer: 0})
        steered = await live.submit("rather this", models=["echo"], when_live="steer")
        assert live.node(answer).status == "paused"
        assert live.node(steered.user_id).parent_id == answer
        world.check(live)


async def test_a_group_goes_and_comes_back_together():
    world = World()
    async with world.open() as (_, live):
        turn = await live.submit("hi", models=["a", "b"])
        one, two = turn.placeholder_ids
        for each in (one, two):
            await live.abort(each)

        await live.delete_group(one)
        assert live.children(turn.user_id) == []
        await live.undo()

        assert live.siblings(one) == [two]
        world.check(live)


async def test_paths_are_copied_and_followed_to_their_newest_leaf():
    world = World()
    async with world.open() as (client, live):
        first = (await live.create("first")).message_id
        await live.create("second")
        newest = (await live.create("newest", parent=first)).message_id

        path = await client.path_through(live.id, first)
        copy = await client.duplicate_topic(live.id, newest, name="Copy")

        assert path.ids == [node.id for node in live.path_through(first)] == [first, newest]
        assert (await client.path(live.id, newest)).ids == path.ids
        async with client.open(copy.id) as other:
            assert (other.name, other.active_node_id) == ("Copy", copy.active_node_id)
            assert [other.text(node.id) for node in other.path()] == ["first", "newest"]
            assert not {node.id for node in other.path()} & {*path.ids}


async def test_a_temporary_topic_is_kept_when_it_is_asked_for():
    world = World()
    async with world.client() as client:
        topic = await client.create_topic("Trip", temporary=True)
        assert (await client.topics()).topics == []
        assert (await client.topic(topic.id)).temporary

        await client.persist_topic(topic.id)

        assert [each.id for each in (await client.topics()).topics] == [topic.id]
        with pytest.raises(InvalidOperation):
            await client.persist_topic(topic.id)


async def test_a_flow_graph_shows_what_is_being_written():
    world = World()
    async with world.open() as (client, live):
        turn = await live.submit("hi", models=["a"])
        (reply,) = turn.placeholder_ids
        assert live.flow() == flow_graph(live.tree)
        claim = world.server.run(p.StreamClaim(topic=live.id, message_id=reply))
        append = p.StreamAppend(
            topic=live.id,
            message_id=reply,
            epoch=claim["epoch"],
            first=1,
            ops=[p.TextOp(0, "so far")],
        )
        client.post(append, lambda _: None)

        await live.wait_for(lambda each: each.text(reply) == "so far")

        assert [node.row.preview for node in live.flow().nodes] == ["hi", "so far"]
        assert [node.row.status for node in live.flow().nodes] == ["success", "pending"]


async def test_a_batch_names_what_it_reserves():
    world = World()
    async with world.open() as (_, live):
        reply = (await live.create("reply", role="assistant")).message_id

        done = await live.batch([p.BranchReserve(anchor_id=reply), p.TopicUpdate(name="n")])

        assert done.results[0]["reserved"] == live.children(reply)
        assert len(live.children(reply)) == 2
