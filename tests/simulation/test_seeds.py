"""Eight clients on one topic under cuts, repeats, reorders, crashes and failing commits."""

from __future__ import annotations

import asyncio
import os
import random

import msgspec
import pytest
from livetree.bots import Bot
from livetree.client import connect
from livetree.core.tree import Tree
from livetree.entropy import sleep
from livetree.prompt import Prompt
from livetree.writer import Writer
from livetree_server.storage.memory import MemoryStore
from msgspec import UNSET

from tests.helpers import assert_equal_everywhere, canonical_form, check_invariants
from tests.simulation.world import TOPIC, World

SOAK = os.environ.get("LIVETREE_SOAK") == "1"
SEEDS = 10_000 if SOAK else 1_000
SHARDS = 20
STEPS = 60


async def stored(store: MemoryStore) -> tuple[Tree, dict[str, bytes]]:
    """Read the topic as the database has it."""
    loaded = await store.load(TOPIC)
    assert loaded is not None
    tree = loaded.tree()
    contents = await store.contents(TOPIC, [node.id for node in loaded.nodes])
    return tree, {message_id: data for message_id, (_, data) in contents.items()}


async def run(seed: int) -> World:
    """Play one seed to its end and prove what must hold."""
    world = World(seed)
    clients = [
        connect(
            "ws://server",
            transport=world,
            clock=world.time,
            client=f"client {number}",
            open_timeout=None,
            random_bytes=random.Random(seed * 100 + number).randbytes,
        )
        for number in range(world.client_count)
    ]
    bots = [make_bot(world, seed * 100 + 50 + number) for number in range(2)]
    stack: list[asyncio.Task[None]] = []
    ready: list[asyncio.Event] = []
    done = asyncio.Event()

    async def live(client, number: int, up: asyncio.Event) -> None:
        async with client:
            if number == 0:
                await client.create_topic("seed", topic_id=TOPIC)
                world.born.set()
            await world.born.wait()
            async with client.open(TOPIC) as mirror:
                world.mirrors.append(mirror)
                up.set()
                await done.wait()

    async def work(bot: Bot) -> None:
        async with bot:
            await done.wait()

    stack += [asyncio.create_task(work(bot)) for bot in bots]
    for number, client in enumerate(clients):
        ready.append(asyncio.Event())
        stack.append(asyncio.create_task(live(client, number, ready[-1])))
    try:
        for _ in range(20_000):
            if all(event.is_set() for event in ready):
                break
            world.deliver_all()
            await world.settle(3)
            world.time.advance(0.05)
            for task in stack:
                if task.done():
                    task.result()
        else:
            raise AssertionError("the clients never came up")
        for _ in range(STEPS):
            await world.step()
        await world.calm_down()
        await prove(world)
    finally:
        done.set()
        for task in stack:
            task.cancel()
        await world.stop(stack)
    return world


def make_bot(world: World, seed: int) -> Bot:
    """Return a bot that writes its prompt back in pieces, in the world's time."""
    bot = Bot(
        "ws://server",
        transport=world,
        clock=world.time,
        lease_seconds=3.0,
        random_bytes=random.Random(seed).randbytes,
    )

    @bot.reply(models=["echo"])
    async def echo(prompt: Prompt, writer: Writer) -> None:
        for word in f"you said {prompt.text} \N{WAVING HAND SIGN}".split(" "):
            await writer.write(word + " ")
            await sleep(world.time, 0.2)

    return bot


async def prove(world: World) -> None:
    """Every mirror is the database's tree, and no acknowledged command is lost or doubled."""
    tree, contents = await stored(world.store)
    check_invariants(tree)
    copies = {"database": canonical_form(tree, contents)}
    assert tree.live == {}, "a reply is left live"
    for number, mirror in enumerate(world.mirrors):
        check_invariants(mirror.tree)
        copies[f"client {number}"] = canonical_form(mirror.tree, contents)
        assert mirror.statistics()["drifts"] == 0
        for node in mirror.tree.nodes():
            if node.data is not UNSET:
                # What a viewer has of a streamed reply is what the writer's end stored.
                same = msgspec.json.decode(node.data) == msgspec.json.decode(contents[node.id])
                assert same, f"client {number} has another text of {node.id}"
    assert_equal_everywhere(**copies)
    present = {node.id for node in tree.nodes()}
    assert world.created - world.deleted <= present, "an acknowledged message is lost"
    lost = world.deleted - world.restored
    assert not (lost & present), "a message came back after its deletion was told"


@pytest.mark.parametrize("shard", range(SHARDS))
def test_D3_D6_every_mirror_ends_equal_to_the_database(shard):
    for seed in range(shard, SEEDS, SHARDS):
        try:
            asyncio.run(run(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_seed_is_the_same_run_each_time():
    first, second = (asyncio.run(run(7)) for _ in range(2))
    assert [mirror.digest for mirror in first.mirrors] == [
        mirror.digest for mirror in second.mirrors
    ]
    assert first.events == second.events


def test_the_seeds_see_what_they_are_for():
    """The faults really happen: else the runs would prove nothing."""
    total: dict[str, int] = {}
    for seed in range(20):
        for event, count in asyncio.run(run(seed)).events.items():
            total[event] = total.get(event, 0) + count
    expected = {
        "stream",
        "cut",
        "slow",
        "crash",
        "twice",
        "swapped",
        "failed commit",
        "up",
        "down",
        "acknowledged",
    }
    assert expected <= {event for event, count in total.items() if count > 3}
