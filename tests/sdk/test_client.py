import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import livetree
import pytest
from livetree.client import Client, connect
from livetree.core import protocol as p
from livetree.core.errors import Busy, Conflict, Internal, NotFound, TopicLive
from livetree.session import Disconnected
from livetree.testing import MemoryConnection

from tests.sdk.hand import hand
from tests.sdk.kit import World, settle, welcome

# Requests


async def test_R1_a_request_is_answered():
    async with hand() as it:
        asking = asyncio.create_task(it.client.rename_topic("t", "Trip"))
        (request,) = await it.requests()
        assert (request["op"], request["topic"], request["name"]) == ("topic.update", "t", "Trip")
        assert request["mutation"]

        await it.answer(request, seq=7, commit="c")

        assert (await asking).seq == 7


async def test_R5_a_refusal_is_raised_as_its_kind():
    async with hand() as it:
        for code, kind in [("NOT_FOUND", NotFound), ("CONFLICT", Conflict)]:
            asking = asyncio.create_task(it.client.rename_topic("t", "Trip"))
            (request,) = await it.requests()
            await it.refuse(request, code, id="t")
            with pytest.raises(kind) as refusal:
                await asking
            assert refusal.value.details == {"id": "t"}
        asking = asyncio.create_task(it.client.clear_topic("t"))
        (request,) = await it.requests()
        await it.refuse(request, "TOPIC_LIVE", messageId="r")
        with pytest.raises(TopicLive, match="reply r"):
            await asking


async def test_X1_every_command_has_a_mutation_id_of_its_own():
    async with hand() as it:
        asking = [
            asyncio.create_task(it.client.request(p.TopicUpdate(topic=name, name="n")))
            for name in "abc"
        ]
        requests = await it.requests()
        assert len({request["mutation"] for request in requests}) == 3
        for request in requests:
            await it.answer(request, seq=1, commit="c")
        assert await asyncio.gather(*asking) == [{"seq": 1, "commit": "c"}] * 3


async def test_X1_a_mutation_id_that_is_given_is_kept():
    async with hand() as it:
        command = p.TopicUpdate(topic="t", name="n", mutation="mine")
        asking = asyncio.create_task(it.client.request(command))
        (request,) = await it.requests()
        assert request["mutation"] == "mine"
        await it.answer(request)
        await asking


async def test_H5_a_lost_request_is_answered_by_the_welcome():
    async with hand() as it:
        asking = asyncio.create_task(it.client.rename_topic("t", "Trip"))
        (request,) = await it.requests()
        it.socket.drop()
        await it.clock.elapse(0.1)

        hello = await it.greet(done={request["mutation"]: {"seq": 3, "commit": "c"}})

        assert hello["unacknowledged"] == [request["mutation"]]
        assert (await asking).seq == 3
        assert await it.requests() == []


async def test_H5_a_lost_request_that_did_not_happen_is_sent_again():
    async with hand() as it:
        asking = asyncio.create_task(it.client.rename_topic("t", "Trip"))
        (request,) = await it.requests()
        for _ in range(3):
            it.socket.drop()
            await it.clock.elapse(1)
            await it.greet()
            assert await it.requests() == [request]
        await it.answer(request, seq=3, commit="c")
        assert (await asking).seq == 3


async def test_a_request_without_a_connection_waits_for_one():
    async with hand() as it:
        it.socket.drop()
        await settle()
        asking = asyncio.create_task(it.client.topics())
        await it.clock.elapse(0.1)
        await it.greet()
        (request,) = await it.requests()
        await it.answer(request, topics=[])
        assert (await asking).topics == []


async def test_X5_a_server_without_time_is_asked_again():
    async with hand() as it:
        asking = asyncio.create_task(it.client.rename_topic("t", "Trip"))
        (request,) = await it.requests()
        await it.refuse(request, "UNAVAILABLE")
        assert await it.requests() == []
        await it.clock.elapse(0.2)
        assert await it.requests() == [request]
        await it.answer(request, seq=3, commit="c")
        await asking


async def test_R6_too_many_requests_are_busy():
    async with hand(max_pending=2) as it:
        asking = [asyncio.create_task(it.client.topics()) for _ in range(3)]
        await settle()
        with pytest.raises(Busy):
            await asking[2]
        assert len(await it.requests()) == 2


async def test_a_request_may_have_a_time_limit():
    async with hand(request_timeout=5) as it:
        asking = asyncio.create_task(it.client.topics())
        await it.clock.elapse(5)
        with pytest.raises(TimeoutError):
            await asking
        assert it.client.statistics()["pending"] == 1  # its answer is expected still
        (request,) = await it.requests()
        await it.answer(request, topics=[])
        assert it.client.statistics()["pending"] == 0


async def test_cancelling_a_request_leaves_the_client_usable():
    async with hand() as it:
        for wait in (False, True):
            asking = asyncio.create_task(it.client.rename_topic("t", "Trip"))
            if wait:
                await settle()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        (request,) = await it.requests()
        asking = asyncio.create_task(it.client.rename_topic("t", "Trip 2"))
        assert await it.requests() == []  # its turn comes after the one that was cancelled
        await it.answer(request, seq=1, commit="c")
        (request,) = await it.requests()
        assert request["name"] == "Trip 2"
        await it.answer(request, seq=2, commit="d")
        assert (await asking).seq == 2


async def test_an_answer_that_does_not_fit_is_an_error_of_the_server():
    async with hand() as it:
        asking = asyncio.create_task(it.client.rename_topic("t", "Trip"))
        (request,) = await it.requests()
        await it.answer(request, nothing=1)
        with pytest.raises(Internal, match="can't be read"):
            await asking


async def test_posting_without_a_connection_is_refused():
    async with hand() as it:
        it.socket.drop()
        await settle()
        with pytest.raises(Disconnected):
            it.client.post(p.BotServe(models=[]), print)


# Frames that are odd


async def test_frames_of_an_unknown_kind_are_a_newer_servers():
    async with hand() as it:
        it.socket.push({"type": "presence", "topic": "t", "who": []})
        it.socket.push({**welcome(), "type": "pong", "more": 1})
        await settle()
        assert it.client.is_online
        assert it.client.statistics()["unreadable"] == 1


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "{", "[" * 100_000])
async def test_what_is_no_frame_ends_the_connection(text: str):
    async with hand() as it:
        it.socket.push(text)
        await settle()
        assert it.socket.closed is not None
        await it.clock.elapse(0.1)
        await it.greet()
        assert it.client.is_online


async def test_an_answer_that_cannot_be_read_fails_its_request_alone():
    async with hand() as it:
        asking = asyncio.create_task(it.client.topics())
        (request,) = await it.requests()
        it.socket.push({"type": "error", "re": request["id"], "code": 5})
        with pytest.raises(Internal):
            await asking
        assert it.client.is_online


async def test_a_fault_of_the_client_makes_the_connection_anew(
    caplog: pytest.LogCaptureFixture,
):
    class Faulty:
        def online(self) -> None: ...

        def offline(self) -> None: ...

        def offered(self, offer: p.Offer) -> None:
            raise ZeroDivisionError

        def acknowledged(self, ack: p.StreamAck) -> None: ...

    async with hand() as it:
        it.client.attach(Faulty())
        it.socket.push({"type": "offer", "topic": "t", "messageId": "m", "model": None})
        await it.clock.elapse(0.1)
        await it.greet()
        assert it.client.is_online
    assert "ZeroDivisionError" in caplog.text


# Cancelling


async def steps_until_done(make: Callable[[], Any], at: int) -> Any:
    """Run a coroutine and cancel it at its `at`-th step; returns the task."""
    task = asyncio.create_task(make())
    for _ in range(at):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return task


@pytest.mark.parametrize("at", range(14))
async def test_cancelling_a_command_at_any_await_leaves_everything_usable(at: int):
    world = World()
    async with world.open() as (client, live):
        for make in (
            lambda: live.create("a"),
            lambda: live.submit("b", models=["m"]),
            lambda: live.content([node.id for node in live.path()]),
        ):
            await steps_until_done(make, at)
            await settle()
            world.check(live)
            for reply in list(live.tree.live):
                await live.abort(reply)
        assert client.statistics()["pending"] == 0
        assert live.statistics()["waiters"] == 0
        await live.create("after")
        assert live.text(live.path()[-1].id) == "after"
        world.check(live)


@pytest.mark.parametrize("at", range(14))
async def test_cancelling_an_opening_at_any_await_leaves_the_client_usable(at: int):
    world = World()
    async with world.client() as client:
        topic = await client.create_topic()

        async def visit() -> None:
            async with client.open(topic.id) as live:
                await live.wait_for(lambda live: False)

        await steps_until_done(visit, at)
        await settle()
        assert client.statistics()["topics"] == 0
        assert world.server.connection.topics == set()
        async with client.open(topic.id) as live:
            world.check(live)


@pytest.mark.parametrize("at", range(12))
async def test_cancelling_a_connection_at_any_await_leaves_nothing_behind(at: int):
    world = World()

    async def visit() -> None:
        async with world.client() as client:
            await client.topics()
            await asyncio.Event().wait()

    await steps_until_done(visit, at)
    await settle()
    assert all(each.closed is not None for each in world.server.connections)
    assert len(asyncio.all_tasks()) == 1
    assert world.clock.due == []


# Over a network


async def test_it_runs_over_a_real_websocket():
    from websockets.asyncio.server import ServerConnection, serve

    world = World()

    async def handler(network: ServerConnection) -> None:
        socket = await world.server.open("")
        assert isinstance(socket, MemoryConnection)

        async def outward() -> None:
            with contextlib.suppress(Exception):
                while True:
                    await network.send(await socket.recv())

        task = asyncio.create_task(outward())
        try:
            async for text in network:
                await socket.send(str(text))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async with serve(handler, "127.0.0.1", 0, subprotocols=[p.PROTOCOL]) as server:  # type: ignore[list-item]
        port = next(iter(server.sockets)).getsockname()[1]
        async with livetree.connect(f"http://127.0.0.1:{port}") as client:
            topic = await client.create_topic("Trip")
            async with client.open(topic.id) as live:
                await live.submit("Where to?", models=["echo"])
                assert [live.text(node.id) for node in live.path()] == ["Where to?", ""]


def test_a_client_says_how_it_is():
    client: Client = connect("ws://server")
    assert repr(client) == "<Client ws://server/v1/ws offline topics=0>"
    assert client.statistics()["connections"] == 0
