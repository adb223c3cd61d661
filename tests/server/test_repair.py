"""Topics that were damaged while no server ran, opened through a real one."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from livetree import changes as c
from livetree.client import Client
from livetree.core import protocol as p
from livetree.core.errors import Internal, LivetreeError, Unavailable
from livetree.core.plan import ImportTopic
from livetree.live_topic import LiveTopic
from livetree_server.storage import MemoryStore
from livetree_server.topics.rooms import Rooms
from msgspec.structs import replace

from tests.faults.clock import hurried
from tests.faults.process import SECONDS, Server
from tests.helpers import canonical_form, check_invariants
from tests.server.damage import make, of, parent, pointer, query, seed, write

LOST = "t-lost"
STRANGE = "t-strange"
SOUND = "t-sound"

DAMAGE: dict[str, list[Any]] = {
    "t-unknown": [pointer("t-unknown", "nobody")],
    "t-other": [pointer("t-other", "only-t-sound")],
    "t-root": [pointer("t-root", "t-root-root")],
    "t-null": [pointer("t-null", None)],
    "t-orphan": [parent("t-orphan", "b", "nobody")],
    "t-cycle": [parent("t-cycle", "a", "c")],
    "t-digest": ["UPDATE topic SET digest = '0123456789abcdef' WHERE id = 't-digest'"],
    "t-version": [f"UPDATE message SET version = 99 WHERE {of('t-version')} AND id = 'c'"],
    "t-live": [
        "INSERT INTO live SELECT \"key\", 'ghost', 3, 1, NULL FROM topic WHERE id = 't-live'",
        "INSERT INTO live SELECT \"key\", 'c', 0, NULL, 1 FROM topic WHERE id = 't-live'",
    ],
    STRANGE: [
        "INSERT INTO message (topic_key, id, parent_id, role, status, siblings_group_id, preview,"
        " empty, version, created_at, updated_at, data) SELECT \"key\", 'x', 'nobody', 'user',"
        " 'success', 0, '', 1, 1, 9, 9, '{\"parts\":[]}' FROM topic WHERE id = 't-strange'"
    ],
    LOST: [f"DELETE FROM message WHERE {of(LOST)} AND id = '{LOST}-root'"],
    SOUND: [],
}
REPAIRED = [topic_id for topic_id in DAMAGE if topic_id not in (LOST, SOUND, STRANGE)]
NEWEST_LEAF = "d"

ACTIVE = {
    **dict.fromkeys(DAMAGE, "c"),
    **dict.fromkeys(("t-unknown", "t-other", "t-root"), NEWEST_LEAF),
    "t-null": None,
}
TOLD = {
    "t-unknown": "the active node is 'nobody', which is no message here",
    "t-other": "the active node is 'only-t-sound', which is no message here",
    "t-root": "the active node is 't-root-root', which is no message here",
    "t-null": "the stored digest is '",
    "t-orphan": "message 'b' has the parent 'nobody', which is not there",
    "t-cycle": "message 'a' is below itself, through its parent 'c'",
    "t-digest": "the stored digest is '0123456789abcdef', that of the rows '",
    "t-version": "message 'c' has the version 99, above the topic's seq",
    "t-live": "'c' is noted as live (epoch 0), and is no pending reply",
}


@dataclass
class Story:
    """What became of a topic: the deltas that two open clients were told, and who saw what."""

    deltas: list[list[p.Delta]] = field(default_factory=list)
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Stories:
    topics: dict[str, Story]
    refusal: str
    log: str
    path: Path

    def lines(self, topic_id: str) -> list[str]:
        return [line for line in self.log.splitlines() if re.search(rf"\b{topic_id}\b", line)]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Stories:
    """All of them happen in one database, to the same server and clients."""
    home = tmp_path_factory.mktemp("damaged")
    make(home / "data/livetree.db", *DAMAGE)
    return asyncio.run(live_through(home))


@contextlib.asynccontextmanager
async def opened(
    client: Client, topic_ids: list[str]
) -> AsyncIterator[dict[str, tuple[LiveTopic, c.Changes]]]:
    async with contextlib.AsyncExitStack() as stack:
        lives = {}
        for topic_id in topic_ids:
            live = await stack.enter_async_context(client.open(topic_id))
            lives[topic_id] = (live, live.changes())
        yield lives


async def live_through(home: Path) -> Stories:
    server = Server(home)
    topics = {topic_id: Story() for topic_id in DAMAGE}
    async with asyncio.timeout(2 * SECONDS), contextlib.AsyncExitStack() as stack:
        await server.start()
        stack.callback(server.kill)
        sides = []
        for _ in range(2):
            client = await stack.enter_async_context(hurried(server.url))
            # The one that loses its root is never synced again: it would wait for ever.
            sides.append(await stack.enter_async_context(opened(client, [*DAMAGE][:-2])))
        assert await server.stop() == 0
        write(server.database, *(each for statements in DAMAGE.values() for each in statements))
        await server.start()
        for side in sides:
            for topic_id, (live, changes) in side.items():
                await live.wait_seq(2)
                await live.wait_synced()
                deltas = []
                while len(changes):
                    change = await anext(changes)
                    if isinstance(change, c.Committed):
                        deltas.append(change.delta)
                topics[topic_id].deltas.append(deltas)
                topics[topic_id].seen[f"open {len(topics[topic_id].seen)}"] = form_of(live)
        refusal = await see(server, topics, "later")
        await server.stop()
        await server.start()
        await see(server, topics, "after another start")
        await server.stop()
    return Stories(topics, refusal, server.complaints(), server.database)


async def see(server: Server, topics: dict[str, Story], when: str) -> str:
    """Open each topic afresh; returns what is said of the one without a root."""
    async with hurried(server.url) as client:
        with pytest.raises(Internal) as refusal:
            async with client.open(LOST):
                pass
        async with opened(client, [each for each in DAMAGE if each != LOST]) as lives:
            for topic_id, (live, _) in lives.items():
                topics[topic_id].seen[when] = form_of(live)
    return str(refusal.value)


def form_of(live: LiveTopic) -> dict[str, Any]:
    check_invariants(live.tree)
    return canonical_form(live.tree)


@pytest.mark.parametrize("topic_id", REPAIRED)
def test_b10_a_damaged_topic_opens_on_a_valid_path(stories: Stories, topic_id: str):
    first, *others = stories.topics[topic_id].seen.values()

    assert len(others) == 3
    for other in others:
        assert {**other, "messages": None} == {**first, "messages": None}
        parents = [(each["id"], each["parent_id"]) for each in other["messages"]]
        assert parents == [(each["id"], each["parent_id"]) for each in first["messages"]]
    assert first["active"] == ACTIVE[topic_id]
    assert first["count"] == len(seed(topic_id).nodes)


@pytest.mark.parametrize("topic_id", REPAIRED)
def test_b10_its_repair_is_told_once_to_each_open_client(stories: Stories, topic_id: str):
    for deltas in stories.topics[topic_id].deltas:
        assert [(delta.seq, delta.cause.op) for delta in deltas] == [(2, "topic.repair")]


@pytest.mark.parametrize("topic_id", REPAIRED)
def test_b10_its_repair_is_stored_once(stories: Stories, topic_id: str):
    (first,) = query(
        stories.path, f"SELECT seq, commit_id, digest FROM event WHERE {of(topic_id)} AND seq > 1"
    )

    found = query(stories.path, "SELECT seq, commit_id, digest FROM topic WHERE id = ?", topic_id)
    assert found == [first]
    assert first[0] == 2


@pytest.mark.parametrize("topic_id", REPAIRED)
def test_b10_its_repair_is_logged_once_with_the_old_value(stories: Stories, topic_id: str):
    (line,) = stories.lines(topic_id)

    assert f"WARNING livetree.topics: topic {topic_id} was repaired: " in line
    assert TOLD[topic_id] in line


def test_b10_a_group_that_lost_its_parent_keeps_apart_below_the_root(stories: Stories):
    messages = {each["id"]: each for each in stories.topics["t-orphan"].seen["later"]["messages"]}

    assert messages["b"]["parent_id"] == "t-orphan-root"
    assert messages["b"]["siblings_group_id"] == 1
    assert messages["c"]["parent_id"] == "b"


def test_b10_a_client_that_lacks_what_was_mended_takes_a_snapshot(stories: Stories):
    first, *others = stories.topics[STRANGE].seen.values()

    assert ("x", "t-strange-root") in [
        (each["id"], each["parent_id"]) for each in first["messages"]
    ]
    assert [each["digest"] for each in others] == [first["digest"]] * 3
    assert len(stories.lines(STRANGE)) == 1


def test_b10_a_missing_root_is_refused_loudly(stories: Stories):
    assert "has lost its virtual root" in stories.refusal
    assert "livetree check --repair" in stories.refusal
    assert any(" ERROR " in line and stories.refusal in line for line in stories.lines(LOST))
    assert query(stories.path, "SELECT seq FROM topic WHERE id = ?", LOST) == [(1,)]
    assert not query(stories.path, f"SELECT * FROM message WHERE {of(LOST)} AND role = 'root'")


def test_b10_other_topics_are_as_they_were(stories: Stories):
    assert stories.topics[SOUND].seen["later"]["seq"] == 1
    assert "topic t-sound " not in stories.log
    assert "Traceback" not in stories.log


# When the repair can't be written -----------------------------------------------------------


class Nobody:
    """A fanout without subscribers."""

    def __init__(self) -> None:
        self.published: list[bytes] = []

    def join(self, topic_id: str, subscriber: Any) -> None: ...

    def leave(self, topic_id: str, subscriber: Any) -> None: ...

    def publish(self, topic_id: str, frames: list[bytes]) -> None:
        self.published += frames

    def offered(self, offers: Any) -> None: ...


@pytest.fixture
async def rooms() -> AsyncIterator[Rooms]:
    numbers = iter(range(1_000))
    async with Rooms(
        MemoryStore(), Nobody(), clock=lambda: 1_000, new_id=lambda: f"id{next(numbers)}"
    ) as rooms:
        topic = seed("T")
        await do(
            rooms.command,
            ImportTopic(
                topic="T",
                name="",
                metadata={},
                nodes=[
                    replace(each, parent_id="") if each.parent_id == topic.root_id else each
                    for each in topic.nodes
                ],
                active_node_id="c",
                last_activity_at=1,
            ),
            None,
        )
        rooms.unload("T")
        rooms.store._topics["T"].active_node_id = "nobody"
        rooms.fanout.published.clear()
        yield rooms


async def do(method: Callable[..., None], *arguments: Any) -> Any:
    """Ask, and wait for the answer; raises it if it is a refusal."""
    answered = asyncio.get_running_loop().create_future()
    method(*arguments, answered.set_result)
    answer = await answered
    if isinstance(answer, LivetreeError):
        raise answer
    return answer


def say(text: str) -> p.MessageCreate:
    return p.MessageCreate(topic="T", role="user", text=text, message_id=text)


async def test_the_repair_comes_before_the_command_that_loads_the_topic(rooms: Rooms):
    await do(rooms.command, say("new"), "ann")

    repair, said = map(p.decode_frame, rooms.fanout.published)
    assert (repair.cause.op, repair.active_node_id, repair.put) == ("topic.repair", "d", [])
    assert (said.put[0].parent_id, said.seq) == ("d", 3)


@pytest.mark.parametrize("kept", [True, False])
async def test_what_waits_is_refused_where_the_repair_fails(
    rooms: Rooms, kept: bool, caplog: pytest.LogCaptureFixture
):
    rooms.store.fail_next(after_commit=kept)
    with pytest.raises(Unavailable):
        await do(rooms.command, say("new"), "ann")

    await do(rooms.command, say("newer"), "ann")

    ops = [p.decode_frame(frame).cause.op for frame in rooms.fanout.published]
    assert ops.count("topic.repair") == 1
    assert rooms.store._topics["T"].nodes["newer"]
    repaired = [line for line in caplog.messages if line.startswith("topic T was repaired")]
    assert len(repaired) == 1


async def test_a_refused_repair_shows_nothing_of_the_topic(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def refuse(_: Any) -> None:
        raise Internal("the database refused the change")

    with monkeypatch.context() as patch:
        patch.setattr(rooms.store, "commit", refuse)
        with pytest.raises(Unavailable):
            await do(rooms.ask, p.TopicGet(topic="T"), "T")

    assert "`livetree check --repair`" in caplog.text
    assert "'nobody'" in caplog.text
    assert rooms.fanout.published == []
    await do(rooms.ask, p.TopicGet(topic="T"), "T")
    assert len(rooms.fanout.published) == 1
