"""
Large trees: what opening, paging, switching, writing and deleting cost against a topic's size.

``python3 dev bench bench_large`` prints a table as `bench_first` does, and draws
``docs/large-trees.svg``. The topics are written into the file before the server starts.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from livetree.core import protocol as p
from livetree.core.content import data_of_text
from livetree.core.plan import Context, ImportTopic, plan
from livetree.core.tree import Tree
from livetree_server.storage.sqlite import SqliteStore
from livetree_server.topics.ports import Entry, Run
from msgspec import Raw

from tests.bench.process import cpu_seconds, livetree, memory_kib
from tests.bench.raw import RawClient, raw_snapshot

SIZES = (100, 1_000, 10_000, 100_000)
DEEP = (50, 500, 5_000, 20_000)
TEXT = "The quick brown fox jumps over the lazy dog while the model streams its answer. " * 3
ROUNDS = 15
MIB = 1024 * 1024
IMAGE = Path(__file__).parents[2] / "docs/large-trees.svg"
ROWS: list[tuple[str, str, str, str]] = []


def row(what: str, ours: str, limit: str, ratio: float | None, target: str) -> None:
    """Show a row of the table at once: the whole takes minutes."""
    shown = "" if ratio is None else f"{ratio:.2f}"
    ROWS.append((what, ours, shown, target))
    print(f"  {what}: {ours} | limit {limit} | {shown} | target {target}", flush=True)


# What is measured on ----------------------------------------------------------------------


def chat(size: int) -> list[p.Node]:
    """Return a conversation: a long line, and at every tenth reply two alternatives with a tail."""
    nodes: list[p.Node] = []
    above = ""

    def add(parent_id: str, role: p.Role, group: int = 0) -> str:
        number = len(nodes) + 1
        node = p.Node(
            id=f"m{number}",
            parent_id=parent_id,
            role=role,
            siblings_group_id=group,
            data=Raw(data_of_text(f"{number} {TEXT}")),
            version=0,
            created_at=number,
            updated_at=number,
        )
        nodes.append(node)
        return node.id

    turn = 0
    while len(nodes) < size:
        turn += 1
        prompt = add(above, "user")
        if turn % 10 == 0:
            for _ in range(2):
                add(add(prompt, "assistant", 1), "user")
            above = add(prompt, "assistant", 1)
        else:
            above = add(prompt, "assistant")
    return nodes


def line(depth: int) -> list[p.Node]:
    """Return a chain."""
    return [
        p.Node(
            id=f"m{number}",
            parent_id=f"m{number - 1}" if number > 1 else "",
            role=("assistant", "user")[number % 2],
            data=Raw(data_of_text(f"{number} {TEXT}")),
            version=0,
            created_at=number,
            updated_at=number,
        )
        for number in range(1, depth + 1)
    ]


async def write(path: Path, topics: dict[str, list[p.Node]]) -> None:
    """Make topics in a file that no server has open."""
    store = await SqliteStore.open(path)
    ids = (f"id-{number}" for number in itertools.count())
    for topic_id, nodes in topics.items():
        command = ImportTopic(
            topic=topic_id,
            name=topic_id,
            metadata={},
            nodes=nodes,
            active_node_id=nodes[-1].id,
            last_activity_at=nodes[-1].created_at,
        )
        tree = Tree(topic_id, f"root-{topic_id}")
        context = Context(now=1, commit=next(ids), new_id=ids.__next__)
        planned = plan(tree, command, context)
        delta = planned.delta
        assert delta is not None
        entry = Entry(
            delta=delta,
            frame=b"{}",
            nodes=[planned.draft.node(put.id) for put in delta.put],
            key=None,
            mutation=None,
        )
        await store.commit(
            Run(
                topic_id=topic_id,
                root_id=tree.root_id,
                base_seq=0,
                entries=[entry],
                seq=delta.seq,
                commit=delta.commit,
                digest=delta.digest,
                active_node_id=delta.active_node_id,
                state=planned.draft.state,
                last_created_at=planned.draft.last_created_at,
                leases={},
                now=1,
            )
        )
    await store.close()


# Measuring --------------------------------------------------------------------------------


async def median_of(work: Callable[[], Awaitable[Any]], rounds: int = ROUNDS) -> float:
    """Return the median seconds of some rounds, after one that warms up."""
    await work()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        await work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


async def opened(port: int, topic: str) -> tuple[float, int]:
    """Return the seconds from ``topic.open`` to ``synced``, and the bytes that came."""
    done = asyncio.get_running_loop().create_future()

    def heard(_: RawClient, text: bytes) -> None:
        if text.startswith(b'{"type":"synced"') and not done.done():
            done.set_result(None)

    client = await RawClient.connect(port, heard)
    before = client.bytes
    begun = time.perf_counter()
    client.send(b'{"id":1,"op":"topic.open","topic":"%b"}' % topic.encode())
    await done
    seconds = time.perf_counter() - begun
    size = client.bytes - before
    client.close()
    return seconds, size


async def measured(port: int, pid: int, topic: str, size: int) -> dict[str, float]:
    """Return what one topic costs: seconds, and for ``memory`` and ``wire`` bytes a message."""
    found: dict[str, float] = {}
    before = memory_kib(pid)
    found["open, cold"], wire = await opened(port, topic)
    found["memory"] = max(0, memory_kib(pid) - before) * 1024 / size
    found["wire"] = wire / size
    found["open, warm"] = await median_of(lambda: opened(port, topic), 5)
    client = await RawClient.connect(port)
    names = iter(range(10**9))

    async def ask(op: str, **request: Any) -> dict[str, Any]:
        return await client.ask(op=op, topic=topic, **request)

    async def page(cursor: str | None = None) -> None:
        await ask("branch.get", **({"cursor": cursor} if cursor else {}))

    path = (await ask("branch.get", limit=1))["items"][0]
    leaf, depth = path["node"]["id"], path["index"] + 1
    middle = (await ask("path.get", nodeId=leaf))["ids"][depth // 2]
    found["page, last"] = await median_of(page)
    found["page, middle"] = await median_of(lambda: page(middle))
    ends = itertools.cycle([middle, leaf])
    found["switch"] = await median_of(lambda: ask("topic.setActive", nodeId=next(ends)))
    await ask("topic.setActive", nodeId=leaf)

    async def append() -> str:
        mutation = f"{topic}-{next(names)}"
        made = await ask(
            "message.create", role="user", text=TEXT, parent=leaf, setActive=False,
            status="success", mutation=mutation,
        )  # fmt: skip
        return str(made["messageId"])

    found["append"] = await median_of(append)
    leaves = [await append() for _ in range(ROUNDS + 1)]
    found["delete a leaf"] = await median_of(lambda: ask("message.delete", messageId=leaves.pop()))
    found["undo it"] = await median_of(lambda: ask("topic.undo"))
    client.close()
    return found


def raw_delete(rows: int) -> float:
    """Return the seconds of one transaction that moves so many rows to another table."""
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(f"{folder}/raw.db", isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        for table in ("message", "trash"):
            db.execute(
                f"CREATE TABLE {table}(t INT, id TEXT, parent TEXT, role TEXT, at INT, data TEXT,"
                " PRIMARY KEY(t, id))"
            )
        db.execute("BEGIN")
        db.executemany(
            "INSERT INTO message VALUES(1,?,?,'user',?,?)",
            [(f"m{each}", f"m{each - 1}", each, TEXT) for each in range(rows)],
        )
        db.execute("COMMIT")
        gone = [(1, f"m{each}") for each in reversed(range(rows))]
        begun = time.perf_counter()
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO trash SELECT * FROM message WHERE t = ? AND id = ?", gone)
        db.executemany("DELETE FROM message WHERE t = ? AND id = ?", gone)
        db.execute("COMMIT")
        seconds = time.perf_counter() - begun
        db.close()
        return seconds


def told(what: str, value: float) -> str:
    """Return a figure with its unit."""
    return f"{value:,.0f} B" if what in ("memory", "wire") else f"{value * 1e3:.2f} ms"


async def bench_sizes(port: int, pid: int, database: Path) -> dict[int, dict[str, float]]:
    found = {}
    for size in SIZES:
        found[size] = await measured(port, pid, f"chat-{size}", size)
        shown = ", ".join(f"{what} {told(what, value)}" for what, value in found[size].items())
        print(f"  {size:,} messages: {shown}", flush=True)
    small, large = found[SIZES[0]], found[SIZES[-1]]
    for what in ("append", "switch", "page, last", "page, middle", "delete a leaf", "undo it"):
        row(
            f"T4 {what}, 100,000 messages",
            f"{large[what] * 1e3:.2f} ms",
            f"{small[what] * 1e3:.2f} ms (100 messages)",
            large[what] / small[what],
            "<= 1.2",
        )
    for size in SIZES[2:]:
        limit, _, _ = raw_snapshot(database, f"chat-{size}")
        row(
            f"T1 snapshot of {size:,}, cold",
            f"{found[size]['open, cold'] * 1e3:.0f} ms",
            f"{limit * 1e3:.0f} ms (SELECT + encode)",
            found[size]["open, cold"] / limit,
            "<= 2",
        )
    row("T2 wire bytes a message", f"{large['wire']:.0f}", "", None, "<= 170")
    row("T7 memory a message, without content", f"{large['memory']:.0f} B", "", None, "<= 400 B")
    return found


async def bench_depths(port: int) -> dict[int, float]:
    pages = {}
    client = await RawClient.connect(port)
    for depth in DEEP:
        pages[depth] = await median_of(partial(client.ask, op="branch.get", topic=f"line-{depth}"))
    client.close()
    row(
        "T6 page of 50 at depth 20,000",
        f"{pages[20_000] * 1e3:.2f} ms",
        f"{pages[50] * 1e3:.2f} ms (at depth 50)",
        pages[20_000] / pages[50],
        "<= 2",
    )
    return pages


async def others(port: int, until: asyncio.Event) -> list[float]:
    """Append to another topic, one at a time, until told to stop; returns the latencies."""
    client = await RawClient.connect(port)
    topic = (await client.ask(op="topic.create", name="other"))["topic"]
    times = []
    while not until.is_set():
        begun = time.perf_counter()
        await client.ask(op="message.create", topic=topic, role="user", text=TEXT, parent="ROOT")
        times.append(time.perf_counter() - begun)
    client.close()
    return sorted(times)


async def bench_deletes(port: int) -> dict[int, float]:
    """Delete a line from its top, of each depth, while another topic is written to."""
    idle_over = asyncio.Event()
    idle_task = asyncio.create_task(others(port, idle_over))
    await asyncio.sleep(2)
    idle_over.set()
    idle = await idle_task
    client = await RawClient.connect(port)
    found = {}
    for depth in DEEP:
        topic = f"line-{depth}"
        await client.ask(op="branch.get", topic=topic)
        over = asyncio.Event()
        task = asyncio.create_task(others(port, over))
        await asyncio.sleep(0.3)
        begun = time.perf_counter()
        await client.ask(op="message.delete", topic=topic, messageId="m1", cascade=True)
        found[depth] = time.perf_counter() - begun
        over.set()
        busy = await task
        limit = raw_delete(depth)
        row(
            f"T5 delete a line of {depth:,}",
            f"{found[depth] * 1e3:.1f} ms",
            f"{limit * 1e3:.1f} ms (raw statements)",
            found[depth] / limit,
            "<= 3 (5,000)",
        )
        row(
            f"   slowest append of another topic meanwhile ({len(busy)} of them)",
            f"{busy[-1] * 1e3:.1f} ms",
            f"{idle[len(idle) * 99 // 100] * 1e3:.1f} ms (p99, idle)",
            busy[-1] / idle[len(idle) * 99 // 100],
            "<= 2 (p99)",
        )
        begun = time.perf_counter()
        await client.ask(op="topic.undo", topic=topic)
        print(f"  undo of it: {(time.perf_counter() - begun) * 1e3:.1f} ms", flush=True)
    client.close()
    return found


# The image --------------------------------------------------------------------------------


def draw(
    sizes: dict[int, dict[str, float]], pages: dict[int, float], deletes: dict[int, float]
) -> None:
    """Plot time and memory against size, on logarithmic axes."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "livetree"  # the same figures make the same file
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    times = [what for what in sizes[SIZES[0]] if what not in ("memory", "wire")]
    for what in times:
        left.plot(SIZES, [sizes[size][what] * 1e3 for size in SIZES], marker="o", label=what)
    left.set(xscale="log", yscale="log", xlabel="messages in the topic", ylabel="ms")
    left.set_title("One request, by the topic's size")
    left.legend(fontsize=7)
    middle.plot(DEEP, [pages[depth] * 1e3 for depth in DEEP], marker="o", label="page of 50")
    middle.plot(DEEP, [deletes[each] * 1e3 for each in DEEP], marker="o", label="delete it all")
    middle.set(xscale="log", yscale="log", xlabel="depth of the line", ylabel="ms")
    middle.set_title("One line, by its depth")
    middle.legend(fontsize=7)
    for what, name in (("memory", "server memory"), ("wire", "snapshot on the wire")):
        right.plot(
            SIZES, [sizes[each][what] * each / MIB for each in SIZES], marker="o", label=name
        )
    right.set(xscale="log", yscale="log", xlabel="messages in the topic", ylabel="MiB")
    right.set_title("What it takes to hold and to send it")
    right.legend(fontsize=7)
    figure.savefig(IMAGE, metadata={"Date": None})
    print(f"drawn: {IMAGE}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        topics = {f"chat-{size}": chat(size) for size in SIZES}
        topics |= {f"line-{depth}": line(depth) for depth in DEEP}
        print("writing the topics", flush=True)
        await write(folder / "livetree.db", topics)
        del topics
        with livetree(folder) as (process, port):
            sizes = await bench_sizes(port, process.pid, folder / "livetree.db")
            pages = await bench_depths(port)
            deletes = await bench_deletes(port)
            used = cpu_seconds(process.pid)
            print(f"  server: {memory_kib(process.pid) / 1024:.0f} MiB, {used:.1f} s of CPU")
    draw(sizes, pages, deletes)


if __name__ == "__main__":
    uvloop.run(main())
