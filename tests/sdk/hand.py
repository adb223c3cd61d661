"""A client whose server is the test, and faults for the server in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from livetree.client import connect
from livetree.core import protocol as p
from livetree.core.errors import LivetreeError
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
