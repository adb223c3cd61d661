"""A subscriber goes while the database is read for it: nothing of it is kept."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from livetree.core import protocol as p
from livetree_server.app import Application
from livetree_server.storage.memory import MemoryStore

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
        await asyncio.sleep(0)
        for text in wire.texts():
            frame = json.loads(text)
            if frame.get("re") == command.id:
                result: dict[str, Any] = frame["result"]
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
            await asyncio.sleep(0)

        assert application.rooms.statistics()["behind"] == 0
