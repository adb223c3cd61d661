"""Connections come back: nothing is told twice, and nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from livetree import changes
from livetree.core import protocol as p
from livetree.core.errors import Conflict, error_of
from livetree.live_topic import LiveTopic

from tests.faults.clock import hurried
from tests.faults.database import check_database, opened
from tests.faults.process import SECONDS, Server
from tests.faults.proxy import Proxy
from tests.faults.raw import Raw
from tests.helpers import assert_equal_everywhere

MESSAGES = 500
CUTS = 20
HANDSHAKE_BYTES = 400
"""What a websocket's handshake may cost."""

FRAMES_BYTES = 800
"""What `welcome` and `synced` may cost."""


@contextlib.asynccontextmanager
async def through_a_proxy(home: Path) -> AsyncIterator[tuple[Server, Proxy, LiveTopic, LiveTopic]]:
    """Open a topic twice: through a proxy, and directly."""
    async with (
        Server(home) as server,
        Proxy(server.port) as proxy,
        hurried(proxy.url) as far,
        hurried(server.url) as near,
    ):
        topic = await near.create_topic("topic", topic_id="topic")
        async with far.open(topic.id) as there, near.open(topic.id) as here:
            yield server, proxy, there, here


async def test_S5_a_reconnect_with_nothing_new_costs_two_frames(tmp_path: Path):
    async with through_a_proxy(tmp_path) as (_, proxy, there, here):
        for start in range(0, MESSAGES, 100):
            await here.batch(
                [
                    p.MessageCreate(parent="ROOT", role="user", text=f"{start + n}" * 50)
                    for n in range(100)
                ]
            )
        await there.wait_seq(here.seq)
        told = there.changes()
        for _ in range(CUTS):
            before = proxy.bytes_down
            proxy.cut_all()
            async with asyncio.timeout(SECONDS):
                await there.wait_for(lambda live: not live.is_synced)
                await there.wait_synced()
            assert proxy.bytes_down - before < HANDSHAKE_BYTES + FRAMES_BYTES
        await here.create("the end")
        seen = []
        async with asyncio.timeout(SECONDS):
            async for change in told:
                seen.append(change)
                if isinstance(change, changes.Committed):
                    break
        kinds = [type(change) for change in seen]
        assert kinds.count(changes.Offline) == CUTS
        assert set(kinds) == {changes.Offline, changes.Synced, changes.Committed}
        assert_equal_everywhere(here=here.tree, there=there.tree)


async def test_X1_a_command_whose_answer_is_lost_happens_once(tmp_path: Path):
    async with through_a_proxy(tmp_path) as (server, proxy, there, here):
        for number in range(CUTS):
            proxy.mute_all(up=False)
            # It has happened, and who asked doesn't know.
            creating = asyncio.create_task(there.create(f"{number}", parent=there.root_id))
            async with asyncio.timeout(SECONDS):
                await here.wait_for(lambda live: len(live.tree) == number + 1)  # noqa: B023
            assert not creating.done()
            proxy.cut_all()
            async with asyncio.timeout(SECONDS):
                created = await creating
            for live in (here, there):
                children = live.children(live.root_id)
                assert [live.text(each) for each in children] == [f"{n}" for n in range(number + 1)]
                assert children[-1] == created.message_id
        assert_equal_everywhere(here=here.tree, there=there.tree)
        assert await server.stop() == 0
        with opened(server.database) as database:
            (tree, log) = check_database(database)["topic"]
        assert len(log) == 1 + CUTS
        assert_equal_everywhere(database=tree, mirror=there.tree)


async def test_X1_X2_repeats_at_the_same_moment_on_two_connections(tmp_path: Path):
    async with (
        Server(tmp_path) as server,
        Raw(server.port) as first,
        Raw(server.port) as second,
    ):
        await first.greet()
        await second.greet()
        await first.ask(p.TopicCreate(id=0, topic="topic"))
        for number in range(1, 51):
            command = p.MessageCreate(
                id=number, topic="topic", mutation=f"m{number}", role="user", text=f"{number}"
            )
            await asyncio.gather(first.send(command), second.send(command))
            (one,), (other,) = await asyncio.gather(first.answers(1), second.answers(1))
            assert isinstance(one, p.ResultFrame)
            assert one == other
        another = p.MessageCreate(id=99, topic="topic", mutation="m1", role="user", text="other")
        await second.send(another)
        (refused,) = await second.answers(1)
        assert isinstance(refused, p.ErrorFrame)
        assert isinstance(error_of(refused.code, refused.message, refused.details), Conflict)
        assert (await first.ask(p.TopicGet(id=100, topic="topic")))["topic"]["seq"] == 51
