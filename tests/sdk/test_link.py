import asyncio
from typing import Any

import pytest
from livetree.client import connect
from livetree.core.errors import Forbidden, TooLarge, Unauthenticated, Unavailable, Validation
from livetree.session import ClientClosed

from tests.sdk.hand import Hand, hand
from tests.sdk.kit import settle

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
async def test_a_refused_client_raises_and_does_not_come_back(code: int, kind: type[Exception]):
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


async def test_a_client_that_is_refused_later_fails_what_waits():
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
async def test_other_ends_are_come_back_from(code: int):
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
async def test_a_server_that_has_too_much_to_do_is_left_alone(code: int):
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
