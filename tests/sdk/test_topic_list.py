"""The live list of topics: what it shows, and how a client keeps it."""

import asyncio
import gc

import pytest
from livetree import changes as c
from livetree.core import protocol as p
from livetree.core.errors import Busy, Forbidden, NotFound, Validation
from livetree.session import ClientClosed
from livetree.topic_list import REST_SECONDS, ListMirror
from msgspec.structs import replace

from tests.sdk.hand import Hand, hand, lose, refuse_once
from tests.sdk.kit import World, settle


def entry(topic_id: str, at: int = 0, **changes: object) -> p.TopicEntry:
    made = p.TopicEntry(
        id=topic_id,
        root_id=f"{topic_id}-root",
        name=topic_id,
        seq=1,
        commit="c",
        active_node_id=None,
        metadata={},
        created_at=0,
        last_activity_at=at,
        read_seq=0,
        unread=0,
    )
    return replace(made, **changes)


def whole(*entries: p.TopicEntry, following: str | None = None) -> p.Topics:
    return p.Topics(whole=True, topics=list(entries), next=following)


def changed(*entries: p.TopicEntry, gone: list[str] | None = None) -> p.Topics:
    return p.Topics(whole=False, topics=list(entries), gone=gone or [])


def mirror_of(*entries: p.TopicEntry, limit: int = 50, following: str | None = None) -> ListMirror:
    mirror = ListMirror(limit)
    mirror.asked()
    mirror.answered()
    assert mirror.receive(whole(*entries, following=following)) == [c.Relisted()]
    assert mirror.synced
    return mirror


def ids(mirror: ListMirror) -> list[str]:
    return [each.id for each in mirror.entries]


# The mirror -----------------------------------------------------------------------------


def test_the_latest_active_stand_first_and_then_the_latest_made():
    mirror = mirror_of(entry("b", 5, created_at=1), entry("c", 7), entry("a", 5, created_at=2))
    assert ids(mirror) == ["c", "a", "b"]
    before = mirror.entries

    told = mirror.receive(changed(entry("a", 9), entry("new", 8)))

    assert ids(mirror) == ["a", "new", "c", "b"]
    assert told == [c.Listed([entry("a", 9), entry("new", 8)], [])]
    assert [each.id for each in before] == ["c", "a", "b"]


def test_what_is_gone_goes_and_what_says_nothing_new_is_not_told():
    mirror = mirror_of(entry("a", 1), entry("b", 2))

    assert mirror.receive(changed(gone=["a", "never"])) == [c.Listed([], ["a"])]
    assert mirror.receive(changed(gone=["a"])) == []
    assert mirror.receive(changed(entry("b", 2))) == []
    assert ids(mirror) == ["b"]


def test_read_positions_change_what_is_shown_and_nothing_else():
    mirror = mirror_of(entry("a", 1, unread=3))

    told = mirror.receive(p.ReadPosition(topic="a", read_seq=4, unread=1))

    assert told == [c.Marked("a", 4, 1)]
    assert mirror.entries == (entry("a", 1, read_seq=4, unread=1),)
    assert mirror.receive(p.ReadPosition(topic="a", read_seq=4, unread=1)) == []
    assert mirror.receive(p.ReadPosition(topic="other", read_seq=4, unread=1)) == []


def test_what_changes_below_the_first_page_stays_out():
    mirror = mirror_of(entry("a", 9), entry("b", 5), following="cursor")

    assert mirror.receive(changed(entry("deep", 4))) == []
    assert mirror.receive(changed(entry("tie", 5))) == [c.Listed([entry("tie", 5)], [])]
    assert mirror.receive(changed(entry("b", 3))) == [c.Listed([], ["b"])]
    assert ids(mirror) == ["a", "tie"]
    assert mirror.next == "cursor"


def test_a_list_that_is_there_to_its_end_takes_whatever_comes():
    mirror = mirror_of(entry("a", 9))
    mirror.receive(changed(entry("old", 1)))
    assert ids(mirror) == ["a", "old"]


def test_the_whole_replaces_everything():
    mirror = mirror_of(entry("a", 1), entry("b", 2), following="x")
    mirror.receive(changed(entry("c", 3)))

    assert mirror.receive(whole(entry("d", 1))) == [c.Relisted()]

    assert ids(mirror) == ["d"]
    assert mirror.next is None
    assert mirror.get("a") is None


def test_it_is_synced_only_by_the_whole_that_was_asked_for_last():
    mirror = ListMirror(1)
    assert not mirror.synced
    mirror.asked()
    mirror.receive(whole(entry("a")))  # of who watched before
    assert not mirror.synced
    mirror.answered()
    assert not mirror.synced
    mirror.receive(changed(entry("a", 1)))
    assert not mirror.synced
    mirror.receive(whole(entry("a")))
    assert mirror.synced

    mirror.asked()
    mirror.asked()
    mirror.answered()
    mirror.receive(whole(entry("a")))
    assert not mirror.synced
    mirror.answered()
    mirror.receive(whole(entry("a")))
    assert mirror.synced


def test_without_a_connection_it_shows_what_it_had():
    mirror = mirror_of(entry("a"))
    assert mirror.disconnected() == [c.Offline()]
    assert mirror.disconnected() == []
    assert not mirror.synced
    assert ids(mirror) == ["a"]


def test_R6_it_does_not_grow_without_a_bound_and_does_not_run_dry():
    mirror = mirror_of(*[entry(str(each), each) for each in range(4)], limit=4, following="x")
    assert not mirror.outgrown
    mirror.receive(changed(gone=["0", "1"]))
    assert not mirror.outgrown
    mirror.receive(changed(gone=["2"]))
    assert mirror.outgrown
    mirror.asked()
    assert not mirror.outgrown  # once

    full = mirror_of(entry("a", 1), limit=4)
    full.receive(changed(gone=["a"]))
    assert not full.outgrown  # there is no more
    full.receive(changed(*[entry(str(each), 5) for each in range(16)]))
    assert not full.outgrown
    full.receive(changed(entry("one more", 5)))
    assert full.outgrown


# The list of a client -------------------------------------------------------------------


async def test_the_list_is_live():
    world = World()
    async with world.client() as client, world.client() as other:
        first = await client.create_topic("First")
        async with client.watch_topics() as topics:
            assert [each.name for each in topics.entries] == ["First"]
            changes = topics.changes()

            await world.clock.elapse(1)
            second = await other.create_topic("STRASSE")
            await topics.wait_for(lambda topics: topics.get(second.id) is not None)
            assert [each.name for each in topics.entries] == ["STRASSE", "First"]
            assert [each.id for each in topics.filter("straße")] == [second.id]

            await other.rename_topic(first.id, "Renamed")
            await other.delete_topic(second.id)
            await topics.wait_for(lambda topics: topics.get(second.id) is None)
            assert [each.name for each in topics.entries] == ["Renamed"]
            await other.restore_topic(second.id)
            await topics.wait_for(lambda topics: topics.get(second.id) is not None)

            told = [await anext(changes) for _ in range(len(changes))]
            assert {type(change) for change in told} == {c.Listed}
            assert [change.gone for change in told if change.gone] == [[second.id]]
            assert topics.is_synced


async def test_temporary_topics_are_not_in_the_list_until_they_are_kept():
    world = World()
    async with world.client() as client, client.watch_topics() as topics:
        hidden = await client.create_topic("Hidden", temporary=True)
        gone = await client.create_topic("Gone", temporary=True)
        await client.delete_topic(gone.id)
        await settle()
        assert topics.entries == ()
        assert (await client.topics()).topics == []

        await client.persist_topic(hidden.id)
        await topics.wait_for(lambda topics: topics.get(hidden.id) is not None)


async def test_what_one_device_reads_the_other_sees_and_another_subject_does_not():
    world = World()
    async with (
        world.client(token="ann") as laptop,
        world.client(token="ann") as phone,
        world.client(token="bob") as bob,
    ):
        topic = await laptop.create_topic("Trip")
        async with (
            laptop.watch_topics() as on_laptop,
            phone.watch_topics() as on_phone,
            bob.watch_topics() as of_bob,
        ):
            for text in ("one", "two"):
                await bob.create_message(topic.id, text, parent=topic.root_id)
            await on_phone.wait_for(lambda topics: topics.unread == 2)
            await on_laptop.wait_for(lambda topics: topics.unread == 2)
            assert of_bob.unread == 0  # one's own are no news

            changes = on_phone.changes()
            read = await on_laptop.mark_read(topic.id)
            assert (read.read_seq, read.unread) == (3, 0)
            assert on_laptop.unread == 0
            await on_phone.wait_for(lambda topics: topics.unread == 0)
            assert await anext(changes) == c.Marked(topic.id, 3, 0)

            back = await phone.mark_read(topic.id, 1)
            assert back.read_seq == 3
            await laptop.create_message(topic.id, "hi", parent=topic.root_id)
            await of_bob.wait_for(lambda topics: topics.unread == 1)
            listed = (await phone.topics()).topics
            assert (listed[0].read_seq, listed[0].unread) == (3, 0)
            with pytest.raises(NotFound):
                await on_laptop.mark_read("nothing")


async def test_marking_means_what_is_shown_here():
    world = World()
    async with world.client() as client, client.watch_topics() as topics:
        topic = await client.create_topic("Trip")
        await topics.wait_for(lambda topics: topics.get(topic.id) is not None)
        lose(world, lambda frame: isinstance(frame, p.Topics))
        await client.rename_topic(topic.id, "Not shown")

        assert (await topics.mark_read(topic.id)).read_seq == 1
        assert (await topics.mark_read(topic.id, 2)).read_seq == 2
        assert (await client.mark_read(topic.id)).read_seq == 2


async def test_watchers_of_one_client_share_one_subscription():
    async with hand() as world:
        first = asyncio.create_task(held(world, 10))
        (request,) = await world.requests()
        assert (request["op"], request["limit"]) == ("topics.watch", 10)
        await world.answer(request)
        await tell(world, whole=True)
        second = asyncio.create_task(held(world, 5))
        assert await world.requests() == []
        larger = asyncio.create_task(held(world, 20))
        (request,) = await world.requests()
        assert request["limit"] == 20
        await tell(world, whole=True)
        assert not larger.get_name().startswith("inside")
        await world.answer(request)
        assert not larger.get_name().startswith("inside")
        await tell(world, whole=True)
        assert {task.get_name() for task in (first, second, larger)} == {"inside"}

        for task in (first, larger, second):
            assert await world.requests() == []
            task.cancel()
            await settle()
        (request,) = await world.requests()
        assert (request["op"], request["watching"]) == ("topics.watch", False)
        await tell(world, whole=True)  # means nothing any more


async def held(world: Hand, limit: int) -> None:
    async with world.client.watch_topics(limit=limit):
        task = asyncio.current_task()
        assert task is not None
        task.set_name("inside")
        await asyncio.Event().wait()


async def tell(world: Hand, **fields: object) -> None:
    world.socket.push({"type": "topics", "topics": [], **fields})
    await settle()


async def test_after_a_lost_connection_the_first_page_replaces_everything():
    world = World()
    async with world.client() as client, world.client() as other:
        old = await other.create_topic("Old")
        async with client.watch_topics() as topics:
            changes = topics.changes()
            world.server.connections[0].drop()
            await settle()
            assert not topics.is_synced
            assert [each.id for each in topics.entries] == [old.id]
            await other.delete_topic(old.id)
            new = await other.create_topic("New")

            await world.clock.elapse(5)

            assert topics.is_synced
            assert [each.id for each in topics.entries] == [new.id]
            assert [await anext(changes), await anext(changes)] == [c.Offline(), c.Relisted()]
            await other.rename_topic(new.id, "Live again")
            await topics.wait_for(lambda topics: topics.entries[0].name == "Live again")


async def test_a_watch_that_was_lost_with_the_connection_is_asked_for_again():
    async with hand() as world:
        task = asyncio.create_task(held(world, 10))
        await world.requests()
        world.socket.drop()
        await world.clock.elapse(5)
        await world.greet()
        (request,) = await world.requests()
        await world.answer(request)
        await tell(world, whole=True)
        assert task.get_name() == "inside"
        world.socket.drop()
        await world.clock.elapse(5)
        task.cancel()
        await world.greet()
        assert await world.requests() == []  # nobody watches any more


async def test_a_page_that_has_run_dry_is_asked_for_again():
    world = World()
    async with world.client() as client:
        made = [await client.create_topic(str(number)) for number in range(8)]
        async with client.watch_topics(limit=4) as topics:
            assert len(topics.entries) == 4
            assert topics.next is not None
            below = (await client.topics(cursor=topics.next, limit=4)).topics
            shown = {each.id for each in topics.entries}
            assert shown | {each.id for each in below} == {topic.id for topic in made}
            for topic_id in list(shown)[:3]:
                await client.delete_topic(topic_id)
            await topics.wait_for(lambda topics: len(topics.entries) == 4)
            watched = [each for each in world.server.connection.requests if _watches(each)]
            assert len(watched) == 2


def _watches(command: p.Command) -> bool:
    return isinstance(command, p.TopicsWatch)


async def test_a_frame_that_cannot_be_read_costs_one_question_in_a_while():
    async with hand() as world:
        task = asyncio.create_task(held(world, 10))
        (request,) = await world.requests()
        await world.answer(request)
        for _ in range(10):
            await tell(world, whole="yes")
        (request,) = await world.requests()
        await world.answer(request)
        await world.clock.elapse(REST_SECONDS)
        (request,) = await world.requests()
        await world.answer(request)
        await tell(world, whole=True)
        await world.clock.elapse(REST_SECONDS)
        assert await world.requests() == []
        world.socket.push({"type": "read", "topic": "a", "readSeq": ""})
        (request,) = await world.requests()
        assert request["op"] == "topics.watch"
        task.cancel()
        await tell(world, whole="yes")  # concerns nobody
        await world.clock.elapse(REST_SECONDS)


async def test_a_frame_that_cannot_be_read_soon_after_a_reconnect_is_made_up_for():
    async with hand() as world:
        task = asyncio.create_task(held(world, 10))
        (request,) = await world.requests()
        await world.answer(request)
        await tell(world, whole="yes")
        (request,) = await world.requests()
        world.socket.drop()
        await settle()
        await world.clock.elapse(1)
        await world.greet()
        (request,) = await world.requests()
        await world.answer(request)
        await tell(world, whole="yes")
        assert await world.requests() == []

        await world.clock.elapse(REST_SECONDS)

        (request,) = await world.requests()
        assert request["op"] == "topics.watch"
        task.cancel()


async def test_a_refusal_ends_the_list():
    world = World()
    async with world.client() as client:
        refuse_once(world, p.TopicsWatch, Forbidden("no"))
        with pytest.raises(Forbidden):
            async with client.watch_topics():
                pass
        for limit in (0, 201):
            with pytest.raises(Validation):
                async with client.watch_topics(limit=limit):
                    pass
        refuse_once(world, p.TopicsWatch, Busy("later"))
        async with asyncio.TaskGroup() as group:
            entering = group.create_task(client.watch_topics().__aenter__())
            await world.clock.elapse(1)
        assert entering.result().is_synced


async def test_what_waits_ends_with_the_list_and_with_the_client():
    world = World()
    async with world.client() as client:
        async with client.watch_topics() as topics:
            changes = topics.changes()
            waiting = asyncio.create_task(topics.wait_for(lambda _: False))
            failing = asyncio.create_task(topics.wait_for(lambda topics: bool(topics.entries[9])))
            await settle()
        with pytest.raises(IndexError):
            await failing
        for _ in range(2):
            with pytest.raises(ClientClosed):
                await waiting
            waiting = asyncio.create_task(topics.wait_for(lambda _: False))
        assert [change async for change in changes] == []
        assert [change async for change in topics.changes()] == []
        await topics.wait_for(lambda topics: topics.entries == ())

        async with client.watch_topics() as topics:
            changes = topics.changes()
            world.server.drop(p.Close.FORBIDDEN, "no more")
            await settle()
            assert await anext(changes) == c.Offline()
            with pytest.raises(Forbidden):
                await anext(changes)
            with pytest.raises(Forbidden):
                await topics.wait_synced()
        with pytest.raises(Forbidden):
            async with client.watch_topics():
                pass


async def test_a_predicate_that_fails_later_is_raised_where_it_waits():
    world = World()
    async with world.client() as client, client.watch_topics() as topics:
        waiting = asyncio.create_task(
            topics.wait_for(lambda topics: bool(topics.entries and 1 / 0))
        )
        await settle()
        await client.create_topic("x")
        with pytest.raises(ZeroDivisionError):
            await waiting
        await topics.wait_for(lambda topics: bool(topics.entries))


async def test_it_says_how_it_is():
    world = World()
    async with world.client() as client:
        assert client.statistics()["listed"] == 0
        async with client.watch_topics() as topics:
            await client.create_topic("x")
            await topics.wait_for(lambda topics: len(topics.entries) == 1)
            changes = topics.changes()
            assert topics.statistics() == {"listed": 1, "readers": 1, "waiters": 0}
            assert client.statistics()["listed"] == 1
            assert repr(topics) == "<TopicList <ListMirror synced topics=1>>"
            assert repr(changes) == "<ListChanges waiting=0>"
            assert "users=1" in repr(client._watch)
            del changes
            gc.collect()
            assert topics.statistics()["readers"] == 0
