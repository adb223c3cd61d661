"""
A conversation as it goes: imported, opened by two, changed by both, and cut off at random.

`play` ends with a proof: both mirrors, a snapshot for somebody new, the database's rows and
the store's own reading are equal to the last byte, and equal to what was there before with
all that was told since.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import livetree
from livetree.client import Client
from livetree.core import protocol as p
from livetree.core.tree import Tree
from livetree.live_topic import LiveTopic
from livetree.results import Messages
from livetree_server.storage.sqlite import SqliteStore
from msgspec import Raw

from tests.e2e.sides import COMMANDS, Report, Side
from tests.faults.clock import Hurried, hurried
from tests.faults.database import check_database, opened
from tests.faults.load import whole
from tests.faults.process import PROGRAM, ROOT, SECONDS, Server, environment
from tests.faults.proxy import Proxy
from tests.faults.raw import Raw as RawClient
from tests.helpers import (
    assert_equal_everywhere,
    canonical_form,
    check_folds,
    check_invariants,
    tree_of_snapshot,
)

CUTS = 0.01
"""How many of the chunks that pass are the last of their connection."""

WHOLE = 200
"""How many messages are read at once."""


async def play(
    server: Server, file: Path, seed: int, *, commands: dict[str, int] = COMMANDS
) -> Report:
    """
    Play a conversation of a file, and prove that all copies of it are equal in the end.

    Args:
        server: A running server without topics; it is stopped.
        file: An export that `livetree import` takes. Its topic with most leaves is played.
        seed: Decides what is done and where the network fails.
        commands: How often each command is played.

    """
    began = time.monotonic()
    rng = random.Random(seed)
    report = Report()
    await import_file(server, file)
    async with Proxy(server.port, rng=rng, cuts=CUTS) as proxy:
        async with connected(proxy, rng) as ada, connected(proxy, rng) as ben:
            topic_id = await most_branched(ada)
            before = await fresh_copy(server, topic_id)
            report.topic = before.state["name"]
            report.before = len(before)
            async with (
                bot(proxy.url, rng),
                ada.open(topic_id) as of_ada,
                ben.open(topic_id) as of_ben,
            ):
                sides = [
                    Side(live, random.Random(rng.random()), report) for live in (of_ada, of_ben)
                ]
                deck = [kind for kind, count in commands.items() for _ in range(count)]
                rng.shuffle(deck)
                await asyncio.gather(
                    sides[0].play(deck[::2], proxy), sides[1].play(deck[1::2], proxy)
                )
                proxy.calm = True
                await settled(of_ada, of_ben)
                copies: dict[str, Any] = {
                    "ada": await whole(of_ada),
                    "ben": await whole(of_ben),
                    "somebody new": await fresh_copy(server, topic_id),
                }
                for live, side in zip((of_ada, of_ben), sides, strict=True):
                    assert live.statistics()["drifts"] == 0
                    side.check()
                report.connections = sum(
                    client.statistics()["connections"] for client in (ada, ben)
                )
        report.cuts = proxy.cut_count
    assert await server.stop() == 0
    assert server.complaints() == ""
    await prove(server.database, topic_id, before, copies)
    report.after = copies["ada"]["count"]
    report.seconds = time.monotonic() - began
    return report


async def prove(database: Path, topic_id: str, before: Tree, copies: dict[str, Any]) -> None:
    """Demand that all copies are what the database has, and that something has changed."""
    with opened(database) as connection:
        tree, log = check_database(connection)[topic_id]
    assert_equal_everywhere(database=tree, store=await stored(database, topic_id), **copies)
    written = {node.id: node.data for node in tree.nodes() if isinstance(node.data, Raw)}
    check_folds(before, log[before.seq :], tree, written)


# The pieces -----------------------------------------------------------------------------


async def import_file(server: Server, file: Path) -> None:
    """Bring a file in as a user does, through the server that runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *PROGRAM, "import", str(file), "--url", server.url),
        cwd=ROOT,
        env=environment(server.home),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(SECONDS):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


def connected(proxy: Proxy, rng: random.Random) -> Client:
    """Return a client that comes back as often as it is cut."""
    return hurried(proxy.url, random_bytes=random.Random(rng.random()).randbytes)


@contextlib.asynccontextmanager
async def bot(url: str, rng: random.Random) -> AsyncIterator[None]:
    """Have replies written: by ``echo`` what was said, by ``slow`` without an end."""
    writer = livetree.Bot(url, clock=Hurried(), random_bytes=random.Random(rng.random()).randbytes)

    @writer.reply(models=["echo"])
    async def echo(prompt: livetree.Prompt, pen: livetree.Writer) -> None:
        for word in prompt.text.split(" "):
            await pen.write(f"{word} ")
            await asyncio.sleep(0.002)

    @writer.reply(models=["slow"])
    async def slow(_: livetree.Prompt, pen: livetree.Writer) -> None:
        await pen.write("Let me think")
        while True:
            await asyncio.sleep(0.01)
            await pen.write(".")

    async with writer:
        yield


async def most_branched(client: Client) -> str:
    """Return the topic with the most leaves."""
    leaves: dict[str, int] = {}
    cursor: str | None = None
    while True:
        page = await client.topics(limit=200, cursor=cursor)
        for topic in page.topics:
            async with client.open(topic.id) as live:
                leaves[topic.id] = sum(not live.children(node.id) for node in live.tree.nodes())
        cursor = page.next
        if cursor is None:
            return max(leaves, key=lambda topic_id: (leaves[topic_id], topic_id))


async def fresh_copy(server: Server, topic_id: str) -> Tree:
    """Take a snapshot over a connection of its own, with all content."""
    async with RawClient(server.port) as raw:
        await raw.greet()
        await raw.send(p.TopicOpen(id=1, topic=topic_id))
        chunks: list[p.Snapshot] = []
        while not isinstance(frame := await raw.frame(), p.Synced):
            if isinstance(frame, p.Snapshot):
                chunks.append(frame)
        tree = tree_of_snapshot(chunks)
        assert (tree.seq, tree.commit, tree.digest) == (frame.seq, frame.commit, frame.digest)
        ids = [node.id for node in tree.nodes()]
        for start in range(0, len(ids), WHOLE):
            some = ids[start : start + WHOLE]
            command = p.MessageGet(id=2 + start, topic=topic_id, message_ids=some)
            for node in (await raw.ask(command, Messages)).nodes:
                assert isinstance(node.data, Raw)
                assert tree.hold(node.id, node.version, node.data)
    check_invariants(tree)
    return tree


async def settled(*mirrors: LiveTopic) -> None:
    """Wait until nothing is being written any more, and all have seen all."""
    async with asyncio.timeout(SECONDS):
        for live in mirrors:
            await live.wait_idle()
        seq = max(live.seq for live in mirrors)
        for live in mirrors:
            await live.wait_seq(seq)
            await live.wait_synced()


async def stored(database: Path, topic_id: str) -> dict[str, Any]:
    """Return the form of what the store reads, once its server has stopped."""
    async with await SqliteStore.open(database) as store:
        loaded = await store.load(topic_id)
        assert loaded is not None
        contents = await store.contents(topic_id, [node.id for node in loaded.nodes])
    tree = loaded.tree()
    return canonical_form(tree, {message_id: data for message_id, (_, data) in contents.items()})
