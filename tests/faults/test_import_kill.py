"""An import is killed half-way: each conversation is there whole, or not at all."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import sys
from pathlib import Path

import pytest
from livetree.core.canonical import canonical
from livetree.formats import Conversation, read
from msgspec.json import decode

from tests.faults.database import check_database, left_by_the_dead, opened
from tests.faults.process import PROGRAM, ROOT, SECONDS, Server, environment
from tests.sdk.formats.exports import export

SEED = 11
KILLS = 4
CONVERSATIONS = 30
MESSAGES = 60


def export_file(folder: Path, rng: random.Random) -> Path:
    """Write an export of many branched conversations, each with a title of its own."""
    conversations = []
    for number in range(CONVERSATIONS):
        lines = ["m0: user Begin"]
        for message in range(1, MESSAGES):
            parent = rng.randrange(max(0, message - 4), message)
            lines.append(f"m{message} < m{parent}: {rng.choice(('user', 'assistant'))} {message}")
        fields = {"id": f"c{number}", "conversation_id": f"c{number}", "title": f"Talk {number}"}
        conversations.append(export("\n".join(lines), **fields))
    path = folder / "conversations.json"
    path.write_text(json.dumps(conversations), "utf-8")
    return path


def expected_of(path: Path) -> dict[str, Conversation]:
    """Return what the file holds, by title."""
    found = [record.conversation for record in read([path.read_bytes()], name=path.name)]
    return {str(each.name): each for each in found if each is not None}


def check_whole(database: sqlite3.Connection, expected: dict[str, Conversation]) -> set[str]:
    """Demand that each topic is all of its conversation; returns the titles that are there."""
    topics = check_database(database)
    names: list[str] = []
    for tree, log in topics.values():
        name = tree.state["name"]
        conversation = expected[name]
        names.append(name)
        assert len(log) == 1
        assert tree.active_node_id == conversation.active_id
        stored = {
            node.id: (node.parent_id, node.role, canonical(decode(node.data)))  # type: ignore[arg-type]
            for node in tree.nodes()
        }
        assert stored == {
            message.id: (message.parent_id or tree.root_id, message.role, canonical(message.data))
            for message in conversation.messages
        }
    assert len(set(names)) == len(names), "a conversation was imported twice"
    return set(names)


class Import:
    """`livetree import` of a file, as a process that tells what it has done."""

    def __init__(self, server: Server, path: Path) -> None:
        self._server = server
        self._path = path

    async def __aenter__(self) -> Import:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *PROGRAM),
            *("import", str(self._path), "--data", str(self._server.data)),
            cwd=ROOT,
            env=environment(self._server.home),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        self._output = self.process.stdout
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def told(self, count: int) -> set[str]:
        """Wait until it has told of so many conversations; returns the titles of those done."""
        done: set[str] = set()
        async with asyncio.timeout(SECONDS):
            for _ in range(count):
                line = (await self._output.readline()).decode()
                assert line.startswith(("imported ", "already there: ")), line
                done.add(line.removeprefix("already there:").split(" ", 2)[2].strip())
        return done

    async def rest(self) -> tuple[int, str]:
        """Wait for its end; returns the exit status and what it said yet."""
        async with asyncio.timeout(SECONDS):
            text = (await self._output.read()).decode()
            return await self.process.wait(), text


@pytest.mark.parametrize("way", ["into the database", "through the server"])
async def test_T9_a_killed_import_leaves_whole_conversations(tmp_path: Path, way: str):
    rng = random.Random(SEED)
    path = export_file(tmp_path, rng)
    expected = expected_of(path)
    assert len(expected) == CONVERSATIONS
    server = Server(tmp_path)
    there: set[str] = set()
    try:
        for _ in range(KILLS):
            if way == "through the server":
                await server.start()
            already = len(there)
            async with Import(server, path) as running:
                done = await running.told(rng.randrange(already, already + 7))
                await asyncio.sleep(rng.uniform(0, 0.02))
                if way == "through the server":
                    server.kill()
                    await server.wait()
                    status, text = await running.rest()
                    assert status == 1
                    assert "broke off" in text
                else:
                    running.process.kill()
                    await running.process.wait()
            with left_by_the_dead(server.database) as database:
                now = check_whole(database, expected)
            assert there | done <= now, "what was told to be imported is lost"
            there = now
        assert 0 < len(there) < CONVERSATIONS, "it was killed too early or too late"

        async with Import(server, path) as running:
            status, text = await running.rest()
        assert status == 0, text
        missing = CONVERSATIONS - len(there)
        assert f"{missing} topics imported" in text
        with opened(server.database) as database:
            assert check_whole(database, expected) == expected.keys()
    except BaseException as error:
        error.add_note(f"seed {SEED}")
        raise
    finally:
        if server.process is not None:
            server.kill()
            await server.wait()


async def test_C1_an_import_is_finished_when_the_server_is_told_to_stop(tmp_path: Path):
    path = export_file(tmp_path, random.Random(SEED))
    async with Server(tmp_path) as server, Import(server, path) as running:
        await running.told(1)
        assert await server.stop() == 0
        status, text = await running.rest()
        assert status == 0, text
    with opened(server.database) as database:
        assert len(check_whole(database, expected_of(path))) == CONVERSATIONS
    assert server.complaints() == ""
