"""The server is killed while it writes, over and over: what it acknowledged, it has."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import livetree
import pytest
from livetree.core.content import text_of

from tests.faults.clock import Hurried, hurried
from tests.faults.database import check_database, left_by_the_dead, opened
from tests.faults.load import Load, whole
from tests.faults.process import SECONDS, Server
from tests.helpers import assert_equal_everywhere

SOAK = os.environ.get("LIVETREE_SOAK") == "1"
KILLS = 200 if SOAK else 50
SEED = random.SystemRandom().getrandbits(32) if SOAK else 7
CHECK_EVERY = 5


def moments(rng: random.Random) -> list[str]:
    """Draw the kinds of moments at which it is killed, each of them often enough."""
    tenth = KILLS // 10
    kinds = ["answer"] * 5 * tenth + ["load"] * 3 * tenth + ["return"] * tenth + ["start"] * tenth
    rng.shuffle(kinds)
    return kinds


async def kill(server: Server, load: Load, kind: str, rng: random.Random) -> None:
    """
    End the server.

    Args:
        server: The server.
        load: What is written to it.
        kind: With an answer, at some time of the load, as clients come back, or as it starts.
        rng: Decides the moment.

    """
    if kind == "start":
        # Nothing serves yet: it may be opening its database.
        server.kill()
        await server.wait()
        await server.spawn()
        await asyncio.sleep(rng.uniform(0.05, 0.7))
        server.kill()
    elif kind == "answer":
        await load.after(rng.randrange(1, 150), server.kill)
    else:
        # Long enough to write, or so short that clients are just coming back.
        await asyncio.sleep(rng.uniform(0.15, 0.4) if kind == "load" else rng.uniform(0, 0.05))
        server.kill()
    await server.wait()


@pytest.mark.timeout(KILLS * 6)
async def test_X6_what_was_acknowledged_survives_each_kill(tmp_path: Path):
    rng = random.Random(SEED)
    kinds: Counter[str] = Counter()
    try:
        async with Server(tmp_path) as server:
            load = Load(server, SEED)
            async with load.running():
                await load.after(20, lambda: None)
                for number, kind in enumerate(moments(rng), 1):
                    await kill(server, load, kind, rng)
                    kinds[kind] += 1
                    load.raise_what_failed()
                    if number % CHECK_EVERY == 0:
                        with left_by_the_dead(server.database) as database:
                            load.check(database)
                    await server.start()
                await load.finish()
                assert await server.stop() == 0
            with opened(server.database) as database:
                load.check(database)
                load.check_mirrors(database)
        assert load.acknowledged > KILLS * 10, "too little was written to prove anything"
        assert "Traceback" not in server.complaints(), server.complaints()
    except BaseException as error:
        error.add_note(f"seed {SEED}, after {dict(kinds)}, {load.acknowledged} acknowledged")
        raise
    print(f"seed {SEED}: {dict(kinds)}, {load.acknowledged} acknowledged")


REPLIES = 8
WORDS = [f"word{number} " for number in range(30)]


async def test_L6_a_reply_is_written_to_its_end_through_each_kill(tmp_path: Path):
    rng = random.Random(SEED)
    written: list[str] = []
    try:
        async with Server(tmp_path) as server:
            bot = livetree.Bot(server.url, clock=Hurried(), random_bytes=rng.randbytes)

            @bot.reply(models=["words"])
            async def answer(_: livetree.Prompt, pen: livetree.Writer) -> None:
                for word in WORDS:
                    await pen.write(word)
                    await asyncio.sleep(0.005)

            client = hurried(server.url, random_bytes=rng.randbytes)
            async with bot, client:
                topic = await client.create_topic()
                async with client.open(topic.id) as live:
                    for _ in range(REPLIES):
                        turn = await live.submit("Go on", models=["words"])
                        (reply,) = turn.placeholder_ids
                        written.append(reply)
                        seen = rng.choice(WORDS)
                        async with asyncio.timeout(SECONDS):
                            await live.wait_for(lambda live: seen in (live.text(reply) or ""))  # noqa: B023
                        server.kill()
                        await server.wait()
                        await server.start()
                        async with asyncio.timeout(SECONDS):
                            await live.wait_idle()
                        (node,) = await live.content([reply])
                        assert node.status == "success"
                        assert text_of(node.data) == "".join(WORDS)  # type: ignore[arg-type]
                    form = await whole(live)
            assert await server.stop() == 0
        with opened(server.database) as database:
            ((tree, _),) = check_database(database).values()
        assert_equal_everywhere(database=tree, viewer=form)
        texts = {node.id: text_of(node.data) for node in tree.nodes()}  # type: ignore[arg-type]
        assert [texts[reply] for reply in written] == ["".join(WORDS)] * REPLIES
    except BaseException as error:
        error.add_note(f"seed {SEED}, reply {len(written)}")
        raise


async def test_the_check_sees_what_it_is_for(tmp_path: Path):
    async with Server(tmp_path) as server:
        load = Load(server, SEED)
        async with load.running():
            await load.after(60, lambda: None)
            await load.finish()
        await server.stop()
    writer = next(writer for writer in load.writers if writer.texts)
    kept = next(iter(writer.texts))

    with opened(server.database) as database:
        load.check(database)
        for doctor, undo in (
            (lambda: writer.texts.update(lost="a text"), lambda: writer.texts.pop("lost")),
            (lambda: writer.gone.add(kept), lambda: writer.gone.remove(kept)),
            (lambda: writer.done.add("lost"), lambda: writer.done.remove("lost")),
            (lambda: writer.changed.add("lost"), lambda: writer.changed.remove("lost")),
        ):
            doctor()
            with pytest.raises(AssertionError, match=writer.name):
                load.check(database)
            undo()
        load.check(database)
    with left_by_the_dead(server.database) as copy:
        copy.execute("UPDATE message SET version = version - 1 WHERE id = ?", (kept,))
        with pytest.raises(AssertionError):
            load.check(copy)
    with left_by_the_dead(server.database) as copy:
        copy.execute("DELETE FROM event WHERE seq = 2")
        with pytest.raises(AssertionError, match="hole"):
            load.check(copy)
