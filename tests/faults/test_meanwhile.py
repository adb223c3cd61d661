"""Somebody goes, or comes back, while the server is busy with what that means."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from livetree.core import protocol as p
from livetree_server.app import Application
from livetree_server.storage.memory import MemoryStore
from livetree_server.topics.ports import LoadedTopic, Run
from livetree_server.topics.rooms import Settings

from tests.faults.process import SECONDS
from tests.simulation.wire import Wire


class Slow(MemoryStore):
    """A store whose reads for subscribers wait until they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def contents(self, *arguments: Any, **options: Any) -> Any:
        await self._wait()
        return await super().contents(*arguments, **options)

    async def deltas(self, *arguments: Any, **options: Any) -> Any:
        await self._wait()
        return await super().deltas(*arguments, **options)

    async def _wait(self) -> None:
        self.reading.set()
        await self.may_go_on.wait()


async def asked(wire: Wire, command: p.Command) -> dict[str, Any]:
    """Send a request and return its result."""
    wire.send(p.encode(command))
    while True:
        await asyncio.sleep(0.001)
        for text in wire.texts():
            frame = p.decode_frame(text)
            if isinstance(frame, p.ResultFrame | p.ErrorFrame) and frame.re == command.id:
                assert isinstance(frame, p.ResultFrame), frame
                result: dict[str, Any] = msgspec.json.decode(frame.result)
                return result


@pytest.mark.parametrize("has", ["nothing", "the first commit"])
async def test_S1_who_goes_while_it_is_caught_up_is_forgotten(has: str):
    store = Slow()
    hello = p.Hello(protocol=p.PROTOCOL)
    async with Application(store) as application, asyncio.timeout(SECONDS):
        wire = Wire(application.gateway)
        wire.send(p.encode(hello))
        born = await asked(wire, p.TopicCreate(id=1, topic="topic"))
        await asked(wire, p.MessageCreate(id=2, topic="topic", role="user", text="Hi"))
        wire.cut()
        application.rooms.unload("topic")
        assert application.rooms.statistics()["rooms"] == 0

        wire = Wire(application.gateway)
        wire.send(p.encode(hello))
        at = (0, None) if has == "nothing" else (born["seq"], born["commit"])
        wire.send(p.encode(p.TopicOpen(id=1, topic="topic", seq=at[0], commit=at[1])))
        await store.reading.wait()
        wire.cut()
        store.may_go_on.set()
        while application.rooms.statistics()["waiting"] or application.rooms._tasks:
            await asyncio.sleep(0.001)

        assert application.rooms.statistics()["behind"] == 0


DELAYS = 101


class Reluctant(MemoryStore):
    """A store that takes its time to make something durable."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = 0

    async def commit(self, run: Run) -> None:
        await asyncio.sleep(0.03)
        await super().commit(run)

    async def load(self, topic_id: str) -> LoadedTopic | None:
        self.loads += 1
        return await super().load(topic_id)


async def test_X6_a_topic_that_is_let_go_of_as_somebody_comes_back_is_not_two(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("livetree_server.topics.rooms.SWEEP_SECONDS", 0.001)
    store = Reluctant()
    settings = Settings(idle_seconds=0.02)

    async with Application(store, settings=settings) as application:

        def connected() -> Wire:
            wire = Wire(application.gateway)
            wire.send(p.encode(p.Hello(protocol=p.PROTOCOL)))
            return wire

        async def leave_and_come_back(topic: str, delay: float) -> None:
            wire = connected()
            await asked(wire, p.TopicCreate(id=1, topic=topic))
            await asked(wire, p.TopicOpen(id=2, topic=topic))
            wire.send(p.encode(p.MessageCreate(id=3, topic=topic, role="user", text="first")))
            wire.cut()
            await asyncio.sleep(delay)
            wire = connected()
            await asked(wire, p.TopicOpen(id=1, topic=topic))
            for number, text in ((2, "second"), (3, "third")):
                create = p.MessageCreate(id=number, topic=topic, role="user", text=text)
                await asked(wire, create)
            other = connected()
            page = await asked(other, p.TreeGet(id=1, topic=topic, depth=-1))
            loaded = await MemoryStore.load(store, topic)
            assert loaded is not None
            texts = ["first", "second", "third"]
            assert [node.preview for node in loaded.nodes] == texts, delay
            assert page["seq"] == loaded.seq == 4, delay
            wire.cut()
            other.cut()

        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for delay in range(DELAYS):
                group.create_task(leave_and_come_back(f"after-{delay}", delay / 1000))
        assert store.loads > DELAYS, "none was let go of"
