"""The doubles that other tests lean on keep their own promises."""

import asyncio

import pytest
from livetree.core import protocol as p
from livetree.core.errors import Conflict, InvalidOperation, NotFound
from livetree.testing import (
    FakeClock,
    FakeRandom,
    HandCrankedSocket,
    HandCrankedTransport,
    MemoryServer,
    settle,
)
from livetree.transport import SocketClosed

from tests.sdk.kit import World


async def test_time_passes_in_order_and_only_when_it_is_told():
    clock = FakeClock(now_ms=1000)
    called: list[tuple[str, float]] = []

    def note(name: str) -> None:
        called.append((name, clock.monotonic()))
        if name == "a":
            clock.call_later(0.5, lambda: note("c"))

    clock.call_later(2, lambda: note("b"))
    clock.call_later(1, lambda: note("a"))
    clock.call_later(1, lambda: note("never")).cancel()
    clock.call_later(9, lambda: note("later"))

    await clock.elapse(3)

    assert called == [("a", 1), ("c", 1.5), ("b", 2)]
    assert (clock.monotonic(), clock.now_ms()) == (3, 4000)
    assert clock.due == [6]
    assert repr(clock) == "<FakeClock 3.000 s, 1 timers>"


def test_chance_is_the_same_for_the_same_seed():
    assert FakeRandom(1)(8) == FakeRandom(1)(8) != FakeRandom(2)(8)
    assert repr(FakeRandom(1)) == "FakeRandom(seed=1)"


async def test_a_socket_gives_what_was_pushed_before_it_ended():
    socket = HandCrankedSocket()
    socket.push("one")
    socket.push({"two": 2})
    socket.drop(4000, "why")
    socket.push("three")

    assert [await socket.recv(), await socket.recv()] == ["one", '{"two":2}']
    with pytest.raises(SocketClosed) as closed:
        await socket.recv()
    assert (closed.value.code, str(closed.value)) == (4000, "closed with 4000 (why)")
    with pytest.raises(SocketClosed):
        await socket.send("x")
    await socket.close()
    assert repr(socket) == "<HandCrankedSocket closed with 4000 (why) sent=0>"


async def test_a_stalled_socket_takes_nothing_until_it_ends():
    socket = HandCrankedSocket()
    socket.stall()
    sending = asyncio.create_task(socket.send("x"))
    await settle()
    assert not sending.done()
    socket.drop()
    with pytest.raises(SocketClosed):
        await sending


async def test_a_transport_fails_as_told():
    transport = HandCrankedTransport()
    transport.failures.append(OSError("no"))
    with pytest.raises(OSError, match="no"):
        await transport.open("ws://server")
    assert await transport.open("ws://server") is transport.socket
    assert repr(transport) == "<HandCrankedTransport opened=1>"


def test_the_server_keeps_the_rules():
    server = MemoryServer()
    server.run(p.TopicCreate(topic="t", mutation="m"))
    server.run(p.TopicCreate(topic="t", mutation="m"))
    with pytest.raises(Conflict):
        server.run(p.TopicCreate(topic="other", mutation="m"))
    with pytest.raises(Conflict):
        server.run(p.TopicCreate(topic="t"))
    with pytest.raises(NotFound):
        server.run(p.TopicClear(topic="nothing"))
    server.run(p.MessageCreate(topic="t", message_id="r", role="assistant", text="x"))
    with pytest.raises(InvalidOperation):
        server.expire_lease("t", "r")
    server.run(p.TopicDelete(topic="t"))
    with pytest.raises(NotFound):
        server.run(p.TopicClear(topic="t"))
    assert repr(server) == "<MemoryServer topics=1 connections=0>"


async def test_X4_a_command_that_changes_nothing_tells_nobody():
    world = World()
    async with world.open() as (_, live):
        changes = live.changes()
        done = await live.rename("Trip")
        assert done.seq == live.seq
        assert len(changes) == 0


async def test_two_clients_see_the_same():
    world = World()
    async with world.open() as (_, live), world.client() as other:
        async with other.open(live.id) as mirror:
            turn = await live.submit("Where to?", models=["echo"])
            await mirror.wait_seq(turn.seq)
            assert mirror.digest == live.digest
            world.check(mirror)
            await mirror.abort(turn.placeholder_ids[0])
        await live.wait_idle()
        world.check(live)
        assert len(world.server.connections) == 2
        assert "MemoryTopic" in repr(world.server.topics[live.id])
