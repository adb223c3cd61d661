"""What went wrong in other apps, played on a real server with real clients."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import livetree
import pytest
import pytest_asyncio
from livetree import changes as c
from livetree.core import protocol as p
from livetree.core.errors import InvalidOperation, LivetreeError, NotFound, StaleStream, Validation
from livetree.core.reads import TreePage, tree_page
from livetree.live_topic import LiveTopic
from livetree_server.topics.rooms import Settings
from msgspec import to_builtins

from tests.conformance.backend import Seed
from tests.helpers import assert_equal_everywhere, check_invariants
from tests.server.house import DAY, House
from tests.tree.topic import chain, message

ROOT = "root-of-T"


def seed(*nodes: p.Node, active: str | None, topic_id: str = "T") -> Seed:
    return Seed(topic_id, f"root-of-{topic_id}", active, 5, list(nodes), [])


def prompt(message_id: str, parent_id: str, at: int, **fields: object) -> p.Node:
    return message(message_id, parent_id, role="user", created_at=at, **fields)


def reply(message_id: str, parent_id: str, at: int, **fields: object) -> p.Node:
    return message(message_id, parent_id, role="assistant", created_at=at, **fields)


class Deltas:
    """The deltas that a client is shown, each with what the mirror held then."""

    def __init__(self, live: LiveTopic) -> None:
        self.live = live
        self.seen: list[p.Delta] = []
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        async for change in self.live.changes():
            check_invariants(self.live.tree)  # the pointer is never left dangling
            if isinstance(change, c.Committed):
                self.seen.append(change.delta)

    def stop(self) -> None:
        self._task.cancel()


@pytest_asyncio.fixture
async def watching() -> AsyncIterator[list[Deltas]]:
    watching: list[Deltas] = []
    yield watching
    for each in watching:
        each.stop()


async def equal(house: House, *mirrors: LiveTopic) -> None:
    """Demand that all that were open answer as the server, and hold what a newcomer is shown."""
    topic_id = mirrors[0].id
    client = await house.client()
    told = await client.tree(topic_id, depth=-1)
    async with client.open(topic_id) as fresh:
        for mirror in mirrors:
            await mirror.wait_seq(fresh.seq)
            assert mirror.digest == fresh.digest
            check_invariants(mirror.tree)
            for live in (mirror, fresh):
                page = tree_page(live.tree, p.TreeGet(topic=topic_id, depth=-1))
                assert_equal_everywhere(told=of(told), mirror=of(page))


def of(page: TreePage) -> dict[str, Any]:
    return {"page": to_builtins(page)}


# B09: the active node is deleted ------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "cascade", "then"), [(0, True, "u1"), (3, True, "u1"), (3, False, "b2")]
)
async def test_b09_the_active_node_is_deleted(
    tmp_path: Path, watching: list[Deltas], group: int, cascade: bool, then: str
):
    nodes = (
        prompt("u1", ROOT, 1),
        reply("a2", "u1", 2, siblings_group_id=group),
        reply("b2", "u1", 3, siblings_group_id=group),
        prompt("below", "a2", 4),
    )
    async with House(tmp_path, [seed(*nodes, active="a2")]) as house:
        one, two = await house.client(), await house.client()
        async with one.open("T") as mine, two.open("T") as theirs:
            told = Deltas(theirs)
            watching.append(told)
            await asyncio.sleep(0)

            deleted = await mine.delete("a2", cascade=cascade)
            await theirs.wait_seq(deleted.seq)

            assert mine.active_node_id == theirs.active_node_id == then
            (delta,) = told.seen  # the removal and the move in one
            assert "a2" in delta.drop
            assert delta.active_node_id == then
            assert ("below" in theirs.tree) == (not cascade)
            await equal(house, mine, theirs)
            async with (await house.client()).open("T") as late:
                assert [node.id for node in late.path()] == (
                    ["u1"] if then == "u1" else ["u1", "b2"]
                )


# B11: one sibling goes, the others stay ------------------------------------------------------


async def test_b11_of_three_replies_one_is_deleted(tmp_path: Path):
    group = {"siblings_group_id": 7}
    nodes = (
        prompt("u1", ROOT, 1),
        reply("a", "u1", 2, **group),
        reply("b", "u1", 3, **group),
        reply("c", "u1", 4, **group),
        prompt("under", "b", 5),
    )
    async with House(tmp_path, [seed(*nodes, active="under")]) as house:
        one, two = await house.client(), await house.client()
        async with one.open("T") as mine, two.open("T") as theirs:
            deleted = await mine.delete("b", cascade=True)
            await theirs.wait_seq(deleted.seq)

            for live in (mine, theirs):
                assert live.children("u1") == ["a", "c"]
                assert live.siblings("a") == ["c"]
                assert [node.id for node in await live.content(["a", "c"])] == ["a", "c"]
                assert (live.text("a"), live.text("c")) == ("a", "c")
                assert live.active_node_id == "u1"

            await mine.delete("a", cascade=True)
            gone = await mine.delete("c", cascade=True)
            await theirs.wait_seq(gone.seq)
            for live in (mine, theirs):
                assert live.children("u1") == []
                assert live.active_node_id == "u1"
            await equal(house, mine, theirs)


# B12: very deep ------------------------------------------------------------------------------


async def pages(live: LiveTopic, house: House) -> list[str]:
    """Read the path from the leaf to the root, page by page."""
    client = await house.client()
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await client.branch(live.id, cursor=cursor, limit=500)
        found[:0] = [item.node.id for item in page.items]
        if (cursor := page.next) is None:
            return found


@pytest.mark.parametrize("depth", [5_000, 20_000])
async def test_b12_a_very_deep_line_is_paged_cut_brought_back_and_erased(
    tmp_path: Path, depth: int
):
    nodes = chain(depth, parent_id=ROOT)
    ids = [node.id for node in nodes]
    async with House(tmp_path, [seed(*nodes, active=ids[-1]), seed(active=None, topic_id="O")]) as (
        house
    ):
        other = await house.client()
        over = asyncio.Event()

        async def meanwhile() -> int:
            count = 0
            while not over.is_set():
                await other.create_message("O", f"{count}", parent="ROOT")
                count += 1
            return count

        writing = asyncio.create_task(meanwhile())
        client = await house.client()
        async with client.open("T") as live:
            assert live.active_node_id == ids[-1]
            assert await pages(live, house) == ids
            copy = await client.duplicate_topic("T", ids[-1])
            assert [node.text for node in await texts(client, copy.id, copy.active_node_id)] == [
                ids[-1]
            ]

            cut = await live.delete(ids[10], cascade=True)
            assert len(cut.deleted) == depth - 10
            assert (len(live.tree), live.active_node_id) == (10, ids[9])
            assert house.ask("SELECT count(*) FROM trash_message") == [(depth - 10,)]
            back = await live.undo()
            assert len(back.restored) == depth - 10
            assert live.active_node_id == ids[-1]
            spliced = await live.delete(ids[10])
            assert spliced.reparented == [ids[11]]
            cleared = await live.clear()
            assert len(cleared.deleted) == depth - 1
            assert len((await live.undo(cleared.seq)).restored) == depth - 1
            await equal(house, live)
        for topic_id in ("T", copy.id):
            await client.delete_topic(topic_id)
        over.set()
        assert await writing > 10

        await house.pass_time(31 * DAY)

        left = house.ask("SELECT id FROM topic")
        assert left == [("O",)]
        for table in ("message", "trash", "trash_message", "event"):
            of_others = house.ask(
                f"SELECT count(*) FROM {table} WHERE topic_key NOT IN (SELECT key FROM topic)"
            )
            assert of_others == [(0,)]
        assert house.ask("PRAGMA integrity_check") == [("ok",)]


class Text:
    """The text of a message."""

    def __init__(self, node: p.Node) -> None:
        assert isinstance(node.data, bytes) or node.data
        self.text = bytes(node.data).decode().split('"text":"')[1].split('"')[0]  # type: ignore[arg-type]


async def texts(client: livetree.Client, topic_id: str, node_id: str) -> list[Text]:
    page = await client.branch(topic_id, node_id, limit=1)
    return [Text(item.node) for item in page.items]


async def test_b12_ten_thousand_siblings(tmp_path: Path):
    nodes = [prompt("u", ROOT, 1)]
    nodes += [reply(f"a{n}", "u", n + 2, siblings_group_id=1) for n in range(10_000)]
    nodes += [prompt("below", "a5000", 20_000)]
    async with House(tmp_path, [seed(*nodes, active="below")]) as house:
        client = await house.client()
        async with client.open("T") as live:
            page = await client.branch("T")
            assert [len(item.siblings) for item in page.items] == [0, 9_999, 0]

            deleted = await live.delete("a5000")
            assert (live.node("below").parent_id, deleted.reparented) == ("a5001", ["below"])
            await live.undo(deleted.seq)
            assert live.node("below").parent_id == "a5000"
            assert live.node("a5000").siblings_group_id == 1
            group = await live.delete_group("a1")
            assert len(group.deleted) == 10_000
            assert live.children("u") == ["below"]
            assert len((await live.undo()).restored) == 10_000
            assert len(live.children("u")) == 10_000
            await equal(house, live)


# B14 (a): a bot dies in the middle of its reply ----------------------------------------------

BOT = """
import asyncio, sys, livetree
from livetree.core import protocol as p

async def main():
    async with livetree.connect(sys.argv[1]) as client:
        topic, reply = sys.argv[2:]
        claim = await client.request(p.StreamClaim(topic=topic, message_id=reply))
        ops = [p.TextOp(0, f"chunk {n} ") for n in range(20)]
        client.post(
            p.StreamAppend(topic=topic, message_id=reply, epoch=claim["epoch"], first=1, ops=ops),
            lambda answer: None,
        )
        await client.topic(topic)
        print(claim["epoch"], flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""
CHUNKS = "".join(f"chunk {n} " for n in range(20))


async def test_b14_a_reply_whose_bot_was_killed_ends_and_can_be_worked_with(tmp_path: Path):
    settings = Settings(lease_grace_seconds=0, offer_seconds=30)
    async with House(tmp_path, settings=settings) as house:
        client, viewer = await house.client(), await house.client()
        topic = await client.create_topic("t")
        async with client.open(topic.id) as live, viewer.open(topic.id) as seen:
            turn = await live.submit("hi", models=["bot"])
            (a2,) = turn.placeholder_ids
            bot = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", BOT, house.url, topic.id, a2),
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                assert bot.stdout is not None
                async with asyncio.timeout(60):
                    epoch = int(await bot.stdout.readline())
            finally:
                bot.kill()
                await bot.wait()
            async with asyncio.timeout(60):
                await seen.wait_for(lambda each: each.text(a2) == CHUNKS)

            await house.pass_time(16_000)  # the lease is over: the reply is offered
            async with asyncio.timeout(60):
                await seen.wait_for(lambda each: each.tree.live.get(a2) == 0)
            await house.pass_time(31_000)  # and nobody takes it
            async with asyncio.timeout(60):
                await seen.wait_for(lambda each: not each.tree.live)

            assert seen.node(a2).status == "error"
            (node,) = await seen.content([a2])
            assert (seen.text(a2), node.id) == (CHUNKS, a2)
            late = p.StreamRenew(topic=topic.id, message_id=a2, epoch=epoch)
            with pytest.raises(StaleStream):
                await client.request(late)
            await late_chunk_is_refused(client, topic.id, a2, epoch)
            await live.set_active(turn.user_id)
            await live.retry(a2)
            assert live.node(a2).status == "pending"
            await live.abort(a2)
            await live.delete(a2)
            await equal(house, live, seen)


async def late_chunk_is_refused(
    client: livetree.Client, topic_id: str, message_id: str, epoch: int
) -> None:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    append = p.StreamAppend(
        topic=topic_id, message_id=message_id, epoch=epoch, first=21, ops=[p.TextOp(0, "late")]
    )
    client.post(append, answer.set_result)
    assert isinstance(await answer, StaleStream)


# Bad parents -----------------------------------------------------------------------------------

OF_ANOTHER = "x1"
DELETED = "gone"
BAD = ["nope", OF_ANOTHER, DELETED, "root-of-O", "", "a b", "é", "x" * 10_000, "null", "m\0"]


@pytest.mark.parametrize("parent", BAD, ids=lambda each: ascii(each)[:20])
async def test_a_bad_parent_is_refused_everywhere_and_changes_nothing(tmp_path: Path, parent: str):
    nodes = (prompt("u1", ROOT, 1), reply("a1", "u1", 2), prompt("gone", "a1", 3))
    others = seed(prompt("x1", "root-of-O", 1), active="x1", topic_id="O")
    async with House(tmp_path, [seed(*nodes, active="a1"), others]) as house:
        client = await house.client()
        async with client.open("T") as live:
            await live.delete(DELETED)
            seq, before = live.seq, live.digest
            asked: Sequence[p.Command] = [
                p.MessageCreate(topic="T", role="user", text="x", parent=parent),
                p.MessageUpdate(topic="T", message_id="a1", parent=parent),
                p.TurnSubmit(
                    topic="T", user=p.Fresh(text="x", parent=parent), placeholders=[p.Placeholder()]
                ),
                p.TurnSubmit(
                    topic="T", user=p.Existing(message_id=parent), placeholders=[p.Placeholder()]
                ),
                p.TurnSubmit(
                    topic="T", user=p.Reserved(message_id=parent, text="x"), placeholders=[]
                ),
                p.MessageCreateSibling(topic="T", source_id=parent, text="x"),
                p.BranchReserve(topic="T", anchor_id=parent),
                p.TopicSetActive(topic="T", node_id=parent),
                p.TopicDuplicate(topic="T", node_id=parent),
                p.Batch(
                    topic="T",
                    commands=[
                        p.TopicUpdate(name="never"),
                        p.MessageCreate(role="user", text="x", parent="ROOT"),
                        p.MessageCreate(role="user", text="x", parent=parent),
                    ],
                ),
            ]
            for command in asked:
                with pytest.raises((NotFound, InvalidOperation, Validation)) as refusal:
                    await client.request(command)
                assert len(str(refusal.value)) > 20

            assert (await client.topic("T")).seq == seq
            assert (live.seq, live.digest) == (seq, before)
            await live.create("the connection goes on")
            await equal(house, live)


async def test_a_message_is_never_moved_below_itself(tmp_path: Path):
    nodes = (prompt("u1", ROOT, 1), reply("a1", "u1", 2), prompt("u2", "a1", 3))
    async with House(tmp_path, [seed(*nodes, active="u2")]) as house:
        client = await house.client()
        for parent in ("u1", "a1", "u2"):
            with pytest.raises(LivetreeError, match="below itself"):
                await client.update_message("T", "u1", parent=parent)
        with pytest.raises(Validation):
            await client.request(
                p.MessageUpdate(topic="T", message_id="root-of-T", parent="\ud800")
            )
        with pytest.raises(InvalidOperation):
            await client.request(p.MessageUpdate(topic="T", message_id="u2", parent=None))
