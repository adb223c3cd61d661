from typing import Any

import pytest
from livetree.commands import Commands, json_of
from livetree.core import protocol as p
from livetree.core.errors import Validation
from msgspec import Raw

from tests.sdk.kit import World


async def test_every_command_of_the_protocol_has_a_method():
    world = World()
    async with world.client() as client:
        topic = await client.create_topic("Trip", metadata={"a": 1})
        message = await client.create_message(topic.id, "Hello", parent=topic.root_id)
        other = await client.create_sibling(topic.id, message.message_id, "Hi")
        await client.update_message(topic.id, other.message_id, text="Hi!", base=99)
        await client.set_active(topic.id, message.message_id)
        await client.rename_topic(topic.id, "Journey")
        await client.set_metadata(topic.id, {"b": 2})
        await client.set_metadata_namespace(topic.id, "c", [3])
        await client.set_metadata_namespace(topic.id, "b")
        info = await client.topic(topic.id)
        assert (info.name, info.metadata, info.root_id) == ("Journey", {"c": [3]}, topic.root_id)
        assert [each.id for each in (await client.topics("Journ")).topics] == [topic.id]
        assert (await client.topics("nothing")).topics == []
        tree = await client.tree(topic.id, depth=-1)
        assert [node.id for group in tree.groups for node in group.nodes] == [
            message.message_id,
            other.message_id,
        ]
        branch = await client.branch(topic.id, other.message_id)
        assert [item.node.id for item in branch.items] == [other.message_id]
        assert branch.items[0].siblings == [message.message_id]
        whole = await client.messages(topic.id, [message.message_id])
        assert bytes(whole.nodes[0].data) == b'{"parts":[{"type":"text","text":"Hello"}]}'  # type: ignore[arg-type]
        user = p.Existing(message_id=message.message_id)
        turn = await client.submit_turn(topic.id, user, ["echo"])
        await client.abort(topic.id, turn.placeholder_ids[0])
        deltas = await client.deltas(topic.id, branch.seq, branch.commit)
        assert [delta.cause.op for delta in deltas.deltas] == ["turn.submit", "stream.abort"]
        done = await client.batch(topic.id, [p.TopicUpdate(name="Batch")])
        assert done.results == [{}]
        gone = await client.delete_message(topic.id, message.message_id, cascade=True)
        assert message.message_id in gone.deleted
        assert (await client.clear_topic(topic.id)).deleted == [other.message_id]
        await client.delete_topic(topic.id)
        assert (await client.topics()).topics == []


async def test_topics_come_in_pages():
    world = World()
    async with world.client() as client:
        made = [(await client.create_topic(str(number))).id for number in range(5)]
        found: list[str] = []
        cursor = None
        while True:
            page = await client.topics(limit=2, cursor=cursor)
            found += [each.id for each in page.topics]
            cursor = page.next
            if cursor is None:
                break
        assert sorted(found) == sorted(made)


async def test_every_new_message_is_named_by_the_client():
    world = World()
    async with world.client() as client:
        topic = await client.create_topic()
        await client.create_message(topic.id, "a", parent=topic.root_id, message_id="mine")
        await client.batch(
            topic.id,
            [
                p.MessageCreate(role="user", text="b", parent="mine"),
                p.MessageCreateSibling(source_id="mine", text="c"),
                p.TurnSubmit(
                    user=p.Fresh(text="d", parent="mine"), placeholders=[p.Placeholder(model="m")]
                ),
            ],
        )
        (batch,) = [each for each in world.server.connection.requests if isinstance(each, p.Batch)]
        first, second, third = batch.commands
        assert isinstance(first, p.MessageCreate)
        assert isinstance(second, p.MessageCreateSibling)
        assert isinstance(third, p.TurnSubmit)
        assert isinstance(third.user, p.Fresh)
        names = [
            first.message_id,
            second.message_id,
            third.user.message_id,
            third.placeholders[0].message_id,
        ]
        assert len(set(names)) == 4
        assert None not in names
        assert set(names) <= {node.id for node in world.server.topics[topic.id].tree.nodes()}


async def test_a_batch_does_not_leave_a_parent_to_others():
    world = World()
    async with world.client() as client:
        with pytest.raises(Validation, match=r"commands\[1\]"):
            await client.batch(
                "t", [p.TopicUpdate(name="x"), p.MessageCreate(role="user", text="b")]
            )


@pytest.mark.parametrize(
    ("value", "text"),
    [({"a": 1}, b'{"a":1}'), (b'{"a": 1}', b'{"a": 1}'), (Raw(b"[]"), b"[]"), ("x", b'"x"')],
)
def test_values_become_json_and_json_stays_as_it_is(value: Any, text: bytes):
    assert bytes(json_of(value)) == text


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"a": object()}])
def test_what_is_no_json_is_refused(value: Any):
    with pytest.raises(Validation):
        json_of(value)


def test_the_commands_are_abstract():
    with pytest.raises(TypeError):
        Commands()  # type: ignore[abstract]
