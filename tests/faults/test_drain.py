"""A server that is told to stop finishes what it has accepted, and its clients come back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from livetree.core import protocol as p
from livetree.core.content import text_of

from tests.faults.database import check_database, opened
from tests.faults.load import Load
from tests.faults.process import Server
from tests.faults.raw import Ended, Raw

SEED = 3
BURST = 2_000
STOPS = 4


async def test_C1_what_is_under_way_is_answered_or_not_done(tmp_path: Path):
    async with (
        Server(tmp_path) as server,
        Raw(server.port) as raw,
        Raw(server.port) as silent,
        Raw(server.port) as idle,
    ):
        await raw.greet()
        await idle.greet()
        await raw.ask(p.TopicCreate(id=0, topic="topic", mutation="birth"))
        burst = [
            p.MessageCreate(
                id=number,
                topic="topic",
                mutation=f"m{number}",
                role="user",
                text=f"{number}",
                status="success",
            )
            for number in range(1, BURST + 1)
        ]
        sending = asyncio.create_task(raw.send(*burst))
        answered = [frame.re for frame in await raw.answers(100)]
        stopping = asyncio.create_task(server.stop())
        with pytest.raises(Ended) as ended:
            while True:
                frame = await raw.frame()
                assert isinstance(frame, p.ResultFrame), "a command was refused"
                answered.append(frame.re)
        raw.socket.close()
        codes = [ended.value.code, await idle.close_code(), await silent.close_code()]
        await asyncio.gather(sending, return_exceptions=True)
        assert await stopping == 0
    assert codes == [p.Close.RESTARTING] * 3
    assert len(answered) < BURST, "it was told to stop too late"
    assert answered == [*range(1, len(answered) + 1)], "commands were left out in between"
    with opened(server.database) as database:
        tree, _ = check_database(database)["topic"]
        stored = {int(text_of(node.data)) for node in tree.nodes()}  # type: ignore[arg-type]
    assert stored == set(answered)
    assert server.complaints() == ""


async def test_C1_clients_come_back_after_each_restart_and_miss_nothing(tmp_path: Path):
    rng = random.Random(SEED)
    try:
        async with Server(tmp_path) as server:
            load = Load(server, SEED)
            async with load.running():
                for _ in range(STOPS):
                    await load.after(rng.randrange(20, 150), lambda: None)
                    assert await server.stop() == 0
                    with opened(server.database) as database:
                        load.check(database)
                    await server.start()
                await load.after(20, lambda: None)
                await load.finish()
                assert await server.stop() == 0
            with opened(server.database) as database:
                load.check(database)
                load.check_mirrors(database)
        assert server.complaints() == ""
    except BaseException as error:
        error.add_note(f"seed {SEED}")
        raise
