"""What the tests of the SDK share: a server, clients on it, and views of frames."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import livetree
import msgspec
from livetree.client import Client
from livetree.core import protocol as p
from livetree.live_topic import LiveTopic
from livetree.mirror import Mirror
from livetree.testing import FakeClock, FakeRandom, MemoryServer, MemoryTopic, settle

from tests.helpers import assert_equal_everywhere, canonical_form, check_invariants

WELCOME: dict[str, Any] = {
    "type": "welcome",
    "protocol": p.PROTOCOL,
    "connectionId": "connection",
    "subject": "local",
    "limits": {"frameBytes": 10_000, "dataBytes": 10_000, "subscriptions": 10},
    "done": {},
    "server": "hand",
    "now": 0,
}


def welcome(**changes: Any) -> dict[str, Any]:
    """Return a welcome frame as JSON."""
    return {**WELCOME, **changes}


def frame(value: dict[str, Any]) -> p.ServerFrame:
    """Return a frame as a client reads it."""
    read: p.ServerFrame = p.decode_frame(msgspec.json.encode(value))
    return read


def read(text: str) -> dict[str, Any]:
    """Return a sent frame as JSON."""
    value: dict[str, Any] = msgspec.json.decode(text)
    return value


class World:
    """A server in memory and what belongs to it."""

    def __init__(self, seed: int = 0) -> None:
        self.clock = FakeClock()
        self.server = MemoryServer(self.clock, seed=seed)
        self._clients = 0

    def client(self, **options: Any) -> Client:
        """Return a client that isn't connected yet."""
        self._clients += 1
        return livetree.connect(
            "ws://server",
            transport=self.server,
            clock=self.clock,
            random_bytes=FakeRandom(self._clients),
            **options,
        )

    def bot(self, **options: Any) -> livetree.Bot:
        """Return a bot that isn't started yet."""
        self._clients += 1
        return livetree.Bot(
            "ws://server",
            transport=self.server,
            clock=self.clock,
            random_bytes=FakeRandom(self._clients),
            **options,
        )

    @contextlib.asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[tuple[Client, LiveTopic]]:
        """Connect a client, make a topic and open it."""
        async with self.client(**options) as client:
            topic = await client.create_topic("Trip")
            async with client.open(topic.id) as live:
                yield client, live

    def check(self, live: LiveTopic) -> None:
        """Demand that a mirror is what the server has."""
        check_mirror(live.mirror, self.server.topics[live.id])


def check_mirror(mirror: Mirror, topic: MemoryTopic) -> None:
    """Demand that a mirror is what the server has: the tree, content, and live text."""
    assert mirror.synced, mirror
    assert mirror.tree is not None
    contents = {node.id: node.data for node in topic.tree.nodes()}
    # What is cold may be; what is there must be right.
    assert_equal_everywhere(mirror=canonical_form(mirror.tree, contents), server=topic.tree)
    check_invariants(mirror.tree)
    for message_id, epoch in topic.tree.live.items():
        if epoch and (parts := topic.reply(message_id).parts()):
            assert mirror.parts(message_id) == parts


__all__ = ["WELCOME", "World", "check_mirror", "frame", "read", "settle", "welcome"]
