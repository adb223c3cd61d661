import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import livetree
import pytest
from livetree.client import Client, connect
from livetree.core import protocol as p
from livetree.core.errors import (
    Busy,
    Conflict,
    Forbidden,
    Internal,
    LivetreeError,
    NotFound,
    TooLarge,
    TopicLive,
    Unauthenticated,
    Unavailable,
    Validation,
)
from livetree.session import ClientClosed, Disconnected
from livetree.testing import FakeClock, FakeRandom, HandCrankedTransport, MemoryConnection

from tests.sdk.kit import World, settle, welcome


class Hand:
    """A client whose server is the test."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.transport = HandCrankedTransport()
        self.client = connect(
            "ws://server",
            transport=self.transport,
            clock=self.clock,
            random_bytes=FakeRandom(),
            **options,
        )

    @property
    def socket(self) -> Any:
        return self.transport.socket

    async def greet(self, **changes: Any) -> dict[str, Any]:
        """Take the hello of the newest connection and welcome it."""
        await settle()
        (hello,) = self.socket.take()
        self.socket.push(welcome(**changes))
        await settle()
        return hello

    async def requests(self) -> list[dict[str, Any]]:
        await settle()
        return self.socket.take()

    async def answer(self, request: dict[str, Any], **result: Any) -> None:
        self.socket.push({"type": "result", "re": request["id"], "result": result})
        await settle()

    async def refuse(self, request: dict[str, Any], code: str, **details: Any) -> None:
        error = {"type": "error", "re": request["id"], "code": code, "message": "no"}
        self.socket.push({**error, "details": details})
        await settle()


@contextlib.asynccontextmanager
async def hand(**options: Any) -> AsyncIterator[Hand]:
    """Return a client that was welcomed."""
    hand = Hand(**options)
    entering = asyncio.create_task(hand.client.__aenter__())
    await hand.greet()
    await entering
    try:
        yield hand
    finally:
        await hand.client.__aexit__(None, None, None)


# Connecting


async def test_H1_a_client_says_hello_and_is_welcomed():
    hand = Hand(token="secret", client="my-bot/1")
    entering = asyncio.create_task(hand.client.__aenter__())

    hello = await hand.greet(subject="me")

    assert await entering is hand.client
    assert (hello["token"], hello["client"]) == ("secret", "my-bot/1")
    assert hand.transport.urls == ["ws://server/v1/ws"]
    assert hand.client.is_online
    assert hand.client.welcome is not None
    assert hand.client.welcome.subject == "me"
    await hand.client.__aexit__(None, None, None)
    assert hand.socket.closed.code == 1000
    assert not hand.client.is_online


async def test_a_server_that_is_not_there_is_tried_until_the_time_is_over():
    hand = Hand(open_timeout=3.0)
    hand.transport.failures.extend([OSError("refused")] * 100)
    entering = asyncio.create_task(hand.client.__aenter__())

    await hand.clock.elapse(2.9)
    assert not entering.done()
    await hand.clock.elapse(0.2)

    with pytest.raises(Unavailable, match="refused"):
        await entering
    assert 4 < len(hand.transport.urls) < 10


async def test_a_server_that_comes_late_is_found():
    hand = Hand(open_timeout=None)
    hand.transport.failures.extend([OSError("refused")] * 20)
    entering = asyncio.create_task(hand.client.__aenter__())

    while not hand.transport.sockets:
        await hand.clock.elapse(1)
    await hand.greet()

    await entering
    assert hand.clock.monotonic() > 60
    await hand.client.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(4400, Validation), (4401, Unauthenticated), (4403, Forbidden), (4413, TooLarge)],
)
async def test_C_a_refused_client_raises_and_does_not_come_back(code: int, kind: type[Exception]):
    hand = Hand()
    entering = asyncio.create_task(hand.client.__aenter__())
    await settle()

    hand.socket.drop(code, "no")
    await hand.clock.elapse(100)

    with pytest.raises(kind, match="no"):
        await entering
    assert len(hand.transport.sockets) == 1
    with pytest.raises(kind):
        await hand.client.topics()
    with pytest.raises(kind):
        await hand.client.wait_closed()


async def test_C_a_client_that_is_refused_later_fails_what_waits():
    async with hand() as it:
        asking = asyncio.create_task(it.client.topics())
        opening = asyncio.create_task(it.client.open("t").__aenter__())
        await settle()

        it.socket.drop(4403, "no longer")
        await it.clock.elapse(100)

        for waiting in (asking, opening):
            with pytest.raises(Forbidden, match="no longer"):
                await waiting
        with pytest.raises(Forbidden):
            await it.client.topics()
        with pytest.raises(Forbidden):
            async with it.client.open("t"):
                pass
        assert len(it.transport.sockets) == 1
        assert repr(it.client) == "<Client ws://server/v1/ws ended topics=0>"


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1011, 4408])
async def test_C_other_ends_are_come_back_from(code: int):
    async with hand() as it:
        it.socket.drop(code)
        await it.clock.elapse(0.1)
        await it.greet()
        assert it.client.is_online


async def test_C1_a_restarting_server_is_come_back_to_within_a_second():
    async with hand() as it:
        for count in range(2, 6):
            it.socket.drop(1012)
            await settle()
            assert len(it.transport.sockets) == count - 1
            await it.clock.elapse(1.0)
            assert len(it.transport.sockets) == count
            await it.greet()


@pytest.mark.parametrize("code", [4429, 1013])
async def test_C_a_server_that_has_too_much_to_do_is_left_alone(code: int):
    async with hand() as it:
        it.socket.drop(code)
        await it.clock.elapse(4.9)
        assert len(it.transport.sockets) == 1
        await it.clock.elapse(5.2)
        assert len(it.transport.sockets) == 2


async def test_a_server_that_accepts_and_closes_is_not_hammered():
    hand = Hand(open_timeout=None)
    entering = asyncio.create_task(hand.client.__aenter__())
    for _ in range(600):
        await settle()
        if hand.transport.sockets:
            hand.socket.drop(1006)
        await hand.clock.elapse(0.1)

    assert len(hand.transport.sockets) < 20
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering


async def test_a_client_connects_once():
    async with hand() as it:
        with pytest.raises(RuntimeError, match="once"):
            await it.client.__aenter__()
    with pytest.raises(RuntimeError, match="once"):
        await it.client.__aenter__()


async def test_a_client_that_is_not_entered_says_so():
    with pytest.raises(RuntimeError, match="async with"):
        await connect("ws://server").topics()


async def test_cancelling_while_connecting_leaves_nothing_running():
    hand = Hand()
    entering = asyncio.create_task(hand.client.__aenter__())
    await settle()

    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering

    assert hand.socket.closed is not None
    assert hand.clock.due == []
    assert len(asyncio.all_tasks()) == 1


async def test_leaving_stops_every_task_and_timer():
    async with hand() as it:
        asking = asyncio.create_task(it.client.topics())
        await settle()
    with pytest.raises(ClientClosed, match="closed"):
        await asking
    await it.client.wait_closed()
    assert it.clock.due == []
    assert len(asyncio.all_tasks()) == 1
    with pytest.raises(ClientClosed):
        await it.client.topics()


# Tokens


async def test_H3_a_token_function_is_asked_again_once():
    tokens = iter(["old", "new"])

    async def token() -> str:
        return next(tokens)

    hand = Hand(token=token)
    entering = asyncio.create_task(hand.client.__aenter__())
    await settle()
    assert hand.socket.take()[0]["token"] == "old"
    hand.socket.drop(4401, "expired")
    await hand.clock.elapse(0.1)

    assert (await hand.greet())["token"] == "new"
    await entering
    await hand.client.__aexit__(None, None, None)


async def test_H3_the_same_refusal_twice_is_final():
    asked = []

    def token() -> str:
        asked.append(1)
        return "bad"

    hand = Hand(token=token)
    entering = asyncio.create_task(hand.client.__aenter__())
    for _ in range(5):
        await settle()
        hand.socket.drop(4401, "bad token")
        await hand.clock.elapse(1)

    with pytest.raises(Unauthenticated, match="bad token"):
        await entering
    assert len(asked) == 2


async def test_H3_each_expiry_may_ask_again():
    count = 0

    def token() -> str:
        nonlocal count
        count += 1
        return f"token{count}"

    async with hand(token=token) as it:
        for number in (2, 3, 4):
            it.socket.drop(4401)
            await it.clock.elapse(10)
            assert (await it.greet())["token"] == f"token{number}"
        it.socket.drop(1006)
        await it.clock.elapse(10)
        assert (await it.greet())["token"] == "token4"  # it is good still


async def test_a_token_function_that_fails_is_tried_again():
    outcomes: list[Any] = [OSError("sign-in is down"), OSError("sign-in is down"), "token"]

    def token() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    hand = Hand(token=token)
    entering = asyncio.create_task(hand.client.__aenter__())
    await hand.clock.elapse(1)

    assert (await hand.greet())["token"] == "token"
    await entering
    await hand.client.__aexit__(None, None, None)


async def test_a_token_function_may_end_the_client():
    def token() -> str:
        raise Unauthenticated("signed out")

    hand = Hand(token=token)
    with pytest.raises(Unauthenticated, match="signed out"):
        await hand.client.__aenter__()
    assert hand.transport.sockets == []


# Heartbeat


async def test_C2_a_silent_server_is_asked_and_then_given_up():
    async with hand() as it:
        await it.clock.elapse(19.9)
        assert it.socket.take() == []
        await it.clock.elapse(0.2)
        assert it.socket.take() == [{"type": "ping"}]
        await it.clock.elapse(20)
        assert it.socket.take() == [{"type": "ping"}]
        await it.clock.elapse(5)

        assert it.transport.sockets[0].closed is not None
        await it.clock.elapse(0.1)
        assert len(it.transport.sockets) == 2


async def test_C2_any_frame_is_a_sign_of_life():
    async with hand() as it:
        for _ in range(10):
            await it.clock.elapse(19)
            it.socket.push({"type": "pong"})
            await settle()
        assert it.socket.take() == []
        assert len(it.transport.sockets) == 1


async def test_C2_a_ping_is_answered():
    async with hand() as it:
        it.socket.push({"type": "ping"})
        assert await it.requests() == [{"type": "pong"}]


async def test_a_connection_whose_sending_is_stuck_is_given_up_too():
    async with hand() as it:
        it.socket.stall()
        asking = asyncio.create_task(it.client.topics())
        await it.clock.elapse(46)
        await it.greet()
        (request,) = await it.requests()
        await it.answer(request, topics=[], next=None)
        assert (await asking).topics == []


async def test_a_server_that_never_welcomes_is_given_up():
    hand = Hand(open_timeout=None)
    entering = asyncio.create_task(hand.client.__aenter__())
    await hand.clock.elapse(46)
    assert len(hand.transport.sockets) == 2
    assert [each["type"] for each in hand.transport.sockets[0].take()] == ["hello"]
    await hand.greet()
    await entering
    await hand.client.__aexit__(None, None, None)


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


# Topics


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
    async with world.open() as (client, live):
        async with client.open((await client.create_topic()).id) as other:
            world.server.connection.push({"type": "delta", "topic": live.id, "seq": "x"})
            await settle()
            assert other.is_synced
            world.check(other)
            world.check(live)
            opens = [
                each for each in world.server.connection.requests if isinstance(each, p.TopicOpen)
            ]
            assert [each.topic for each in opens] == [live.id, other.id, live.id]


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


def as_dict(frame: p.Delta) -> dict[str, Any]:
    return {name: getattr(frame, name) for name in frame.__struct_fields__}


def lose(world: World, when: Callable[[p.ServerFrame], bool]) -> None:
    world.server.on_send = lambda _, frame: [] if when(frame) else [frame]


def drop_at(world: World, when: Callable[[p.ServerFrame], bool]) -> None:
    """Cut the connection in place of a frame, once."""

    def send(connection: MemoryConnection, frame: p.ServerFrame) -> list[p.ServerFrame]:
        if not when(frame):
            return [frame]
        world.server.on_send = lambda _, frame: [frame]
        connection.drop()
        connection.topics.clear()
        return []

    world.server.on_send = send


def refuse_once(world: World, kind: type[p.Command], error: LivetreeError) -> None:
    before = world.server.refuse
    refused = False

    def refuse(connection: MemoryConnection, command: p.Command) -> LivetreeError | None:
        nonlocal refused
        if not refused and isinstance(command, kind):
            refused = True
            return error
        return before(connection, command)

    world.server.refuse = refuse


def elsewhere(world: World, topic_id: str, text: str) -> None:
    world.server.run(p.MessageCreate(topic=topic_id, role="user", text=text, status="success"))


def test_a_client_says_how_it_is():
    client: Client = connect("ws://server")
    assert repr(client) == "<Client ws://server/v1/ws offline topics=0>"
    assert client.statistics()["connections"] == 0
