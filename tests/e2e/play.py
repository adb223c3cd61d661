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
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import livetree
from livetree.client import Client
from livetree.core import protocol as p
from livetree.core.errors import LivetreeError
from livetree.core.tree import Tree
from livetree.live_topic import LiveTopic
from livetree.results import Messages
from livetree_server.storage.sqlite import SqliteStore
from msgspec import UNSET, Raw, Struct, field

from tests.faults.clock import HOURS, Hurried
from tests.faults.database import check_database, opened
from tests.faults.process import PROGRAM, ROOT, SECONDS, Server, environment
from tests.faults.proxy import Proxy
from tests.faults.raw import Raw as RawClient
from tests.helpers import (
    assert_equal_everywhere,
    canonical_form,
    check_folds,
    check_invariants,
    differences,
    tree_of_snapshot,
)

COMMANDS = {
    "submit": 24,
    "create": 30,
    "edit": 20,
    "update": 24,
    "move": 18,
    "delete": 18,
    "cascade": 8,
    "activate": 18,
    "rename": 8,
    "metadata": 12,
    "batch": 10,
    "abort": 10,
}
"""How often each is played: 200 in all."""

CUTS = 0.01
"""How many of the chunks that pass are the last of their connection."""

ATTEMPTS = 50
WHOLE = 200


class Report(Struct):
    """What was played."""

    topic: str = ""
    before: int = 0
    after: int = 0
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)
    cuts: int = 0
    connections: int = 0
    seconds: float = 0.0
    rewritten: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"{self.topic}: {self.before} messages became {self.after} by {self.done.total()} "
            f"commands, {self.cuts} cuts, {self.connections} connections in {self.seconds:.1f} s; "
            f"replies {dict(self.replies)}, refusals {dict(self.refused)}"
        )


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
        async with connected(proxy.url, rng) as ada, connected(proxy.url, rng) as ben:
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
                for side in sides:
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
    assert differences(canonical_form(before), canonical_form(tree))


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


def connected(url: str, rng: random.Random) -> Client:
    """Return a client that comes back at once, as often as it is cut."""
    return livetree.connect(
        url,
        open_timeout=None,
        ping_seconds=HOURS,
        silence_seconds=HOURS,
        clock=Hurried(),
        random_bytes=random.Random(rng.random()).randbytes,
    )


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


async def whole(live: LiveTopic) -> dict[str, Any]:
    """Return a mirror's form with all its content."""
    check_invariants(live.tree)
    assert live.statistics()["drifts"] == 0
    nodes = await live.content([node.id for node in live.tree.nodes()])
    return canonical_form(live.tree, {node.id: node.data for node in nodes})  # type: ignore[misc]


async def stored(database: Path, topic_id: str) -> dict[str, Any]:
    """Return the form of what the store reads, once its server has stopped."""
    async with await SqliteStore.open(database) as store:
        loaded = await store.load(topic_id)
        assert loaded is not None
        contents = await store.contents(topic_id, [node.id for node in loaded.nodes])
    tree = loaded.tree()
    return canonical_form(tree, {message_id: data for message_id, (_, data) in contents.items()})


class Side:
    """One of the two who talk."""

    def __init__(self, live: LiveTopic, rng: random.Random, report: Report) -> None:
        self._live = live
        self._rng = rng
        self._report = report
        self._made: set[str] = set()
        self._echoes: dict[str, str] = {}

    async def play(self, kinds: list[str], proxy: Proxy) -> None:
        """Carry commands out, one after the other, whatever comes in between."""
        loop = asyncio.get_running_loop()
        for kind in kinds:
            if self._rng.random() < 0.1:
                loop.call_later(self._rng.uniform(0, 0.02), proxy.cut_one)
            async with asyncio.timeout(SECONDS):
                await self._carry_out(kind)
            self._report.done[kind] += 1

    async def _carry_out(self, kind: str) -> None:
        for _ in range(ATTEMPTS):
            try:
                await getattr(self, f"_{kind}")()
            except LivetreeError as error:
                # The other side was first, or a reply is being written.
                self._report.refused[error.code] += 1
                await self._live.wait_idle()
            except KeyError:
                # What was chosen went while something else was waited for.
                self._report.refused["gone"] += 1
            else:
                return
        raise AssertionError(f"{kind} was refused {ATTEMPTS} times: {self._report}")

    def check(self) -> None:
        """Demand that what was acknowledged here is so."""
        tree = self._live.tree
        present = {node.id for node in tree.nodes()}
        assert not self._report.gone & present, "messages came back"
        lost = self._made - self._report.gone - present
        assert not lost, f"acknowledged messages are lost: {lost}"
        for message_id, text in self._echoes.items():
            if message_id in present - self._report.rewritten:
                status = tree.node(message_id).status
                self._report.replies[status] += 1
                if status == "success":
                    assert self._live.text(message_id) == f"{text} ", message_id

    # What is played -----------------------------------------------------------------------

    def _some(self) -> str:
        nodes = [node.id for node in self._live.tree.nodes()]
        return self._rng.choice(nodes) if nodes else self._live.root_id

    def _text(self) -> str:
        words = ("leaf", "root", "twig", "bark", "Ast", "枝", "🌿", "sap", "ring", "grain")
        return " ".join(self._rng.choices(words, k=self._rng.randrange(1, 12)))

    async def _submit(self) -> None:
        text, count = self._text(), self._rng.choice((1, 1, 2, 3))
        parent = self._some() if self._rng.random() < 0.5 else None
        turn = await self._live.submit(text, models=["echo"] * count, parent=parent)
        self._made.update([turn.user_id, *turn.placeholder_ids])
        self._echoes.update(dict.fromkeys(turn.placeholder_ids, text))

    async def _create(self) -> None:
        role: Any = self._rng.choice(("user", "assistant", "system"))
        parent = self._some() if self._rng.random() < 0.9 else self._live.root_id
        created = await self._live.create(self._text(), role=role, parent=parent)
        self._made.add(created.message_id)

    async def _edit(self) -> None:
        self._made.add((await self._live.edit(self._some(), self._text())).message_id)

    async def _update(self) -> None:
        message_id = self._some()
        self._report.rewritten.add(message_id)
        await self._live.update(message_id, text=self._text(), stats={"n": self._rng.random()})

    async def _move(self) -> None:
        message_id = self._some()
        parents = [
            node.id
            for node in self._live.tree.nodes()
            if not self._live.tree.is_within(node.id, message_id)
        ]
        parent = self._rng.choice([*parents, self._live.root_id])
        await self._live.update(message_id, parent=parent)

    async def _delete(self) -> None:
        self._report.gone.update((await self._live.delete(self._some())).deleted)

    async def _cascade(self) -> None:
        tree = self._live.tree
        small = [node.id for node in tree.nodes() if len(tree.subtree(node.id)) < 6]
        deleted = await self._live.delete(self._rng.choice(small), cascade=True)
        self._report.gone.update(deleted.deleted)

    async def _activate(self) -> None:
        await self._live.set_active(self._some() if self._rng.random() < 0.9 else None)

    async def _rename(self) -> None:
        await self._live.rename(self._text())

    async def _metadata(self) -> None:
        key = self._rng.choice("abc")
        value = UNSET if self._rng.random() < 0.2 else {"text": self._text(), "n": [1.5, None]}
        await self._live.set_metadata_namespace(key, value)

    async def _batch(self) -> None:
        new, text = self._live.mirror.topic_id[:8] + f"-{self._rng.getrandbits(64):x}", self._text()
        some = self._some()
        self._report.rewritten.add(some)
        await self._live.batch(
            [
                p.MessageCreate(
                    message_id=new, parent=some, role="user", text=text, status="success"
                ),
                p.MessageUpdate(message_id=some, text=self._text()),
                p.TopicSetActive(node_id=new),
                p.TopicUpdate(name=text),
            ]
        )
        self._made.add(new)

    async def _abort(self) -> None:
        turn = await self._live.submit(self._text(), models=["slow"])
        (reply,) = turn.placeholder_ids
        if self._rng.random() < 0.7:
            await self._live.wait_for(lambda live: bool(live.text(reply)))
        await self._live.abort(reply)
