"""
First figures: durable appends, the snapshot of 10,000 messages, fan-out to 200 clients.

``python3 dev bench bench_first`` prints a table: what was measured, the limit measured in
the same run, their ratio, and the ratio that is aimed at.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from tests.bench.process import cpu_seconds, free_port, livetree, memory_kib, running
from tests.bench.raw import RawClient, raw_snapshot

TEXT = "The quick brown fox jumps over the lazy dog while the model streams its answer. " * 3
SECONDS = 3.0
ROWS: list[tuple[str, str, str, str, str]] = []


def row(what: str, ours: str, limit: str, ratio: float | None, target: str) -> None:
    """Keep a row of the table and show it at once: the whole takes a minute."""
    shown = "" if ratio is None else f"{ratio:.2f}"
    ROWS.append((what, ours, limit, shown, target))
    print(f"  {what}: {ours} | limit {limit} | {shown}", flush=True)


# Limits ---------------------------------------------------------------------------------


def raw_sqlite(group: int) -> tuple[float, float]:
    """Return messages a second and seconds a transaction: one message, event and topic row each."""
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(f"{folder}/raw.db", isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE topic(key INTEGER PRIMARY KEY, seq INT, active TEXT, at INT)")
        db.execute(
            "CREATE TABLE message(t INT, id TEXT, parent TEXT, role TEXT, data TEXT, at INT,"
            " PRIMARY KEY(t, id)) WITHOUT ROWID"
        )
        db.execute(
            "CREATE TABLE event(t INT, seq INT, body TEXT, PRIMARY KEY(t, seq)) WITHOUT ROWID"
        )
        db.executemany("INSERT INTO topic VALUES(?,0,NULL,0)", [(key,) for key in range(100)])
        number, times, end = 0, [], time.perf_counter() + SECONDS / 2
        while time.perf_counter() < end:
            begun = time.perf_counter()
            keys = range(number, number + group)
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "INSERT INTO message VALUES(?,?,?,?,?,?)",
                [
                    (key % 100, f"m{key:030}", f"m{key - 100:030}", "user", TEXT, key)
                    for key in keys
                ],
            )
            db.executemany(
                "INSERT INTO event VALUES(?,?,?)", [(key % 100, key // 100, TEXT) for key in keys]
            )
            db.executemany(
                "UPDATE topic SET seq=?, active=?, at=? WHERE key=?",
                [(key // 100, f"m{key:030}", key, key % 100) for key in keys],
            )
            db.execute("COMMIT")
            number += group
            times.append(time.perf_counter() - begun)
        db.close()
        return number / sum(times), statistics.median(times)


async def loopback_seconds() -> float:
    """Return the median time of one round trip over a loopback socket."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    times = []
    for _ in range(500):
        begun = time.perf_counter()
        writer.write(b"x" * 300)
        await reader.read(1000)
        times.append(time.perf_counter() - begun)
    writer.close()
    server.close()
    return statistics.median(times)


# Appends --------------------------------------------------------------------------------


async def appends(port: int, *, in_flight: int, topics: int) -> tuple[float, float, float]:
    """Return acknowledged commands a second, and p50 and p99 of their latency in seconds."""
    maker = await RawClient.connect(port)
    names = [(await maker.ask(op="topic.create", name="bench"))["topic"] for _ in range(topics)]
    times: list[float] = []
    counting = False
    stop = False
    number = 0
    begun: dict[RawClient, float] = {}

    def go(client: RawClient) -> None:
        nonlocal number
        number += 1
        topic = names[number % topics]
        begun[client] = time.perf_counter()
        client.send(
            b'{"id":1,"op":"message.create","topic":"%b","role":"user","mutation":"m%d-%d",'
            b'"parent":"ROOT","text":"%b"}' % (topic.encode(), id(names), number, TEXT.encode())
        )

    def heard(client: RawClient, text: bytes) -> None:
        if text.startswith(b'{"type":"result"'):
            if counting:
                times.append(time.perf_counter() - begun[client])
            if not stop:
                go(client)
        elif text.startswith(b'{"type":"error"'):
            raise RuntimeError(text)

    clients = [await RawClient.connect(port, heard) for _ in range(in_flight)]
    for client in clients:
        go(client)
    await asyncio.sleep(0.5)
    counting = True
    await asyncio.sleep(SECONDS)
    counting, stop = False, True
    for client in (*clients, maker):
        client.close()
    times.sort()
    return len(times) / SECONDS, times[len(times) // 2], times[len(times) * 99 // 100]


async def bench_appends(port: int) -> None:
    each, each_seconds = raw_sqlite(1)
    grouped, _ = raw_sqlite(200)
    _, of_sixteen = raw_sqlite(16)
    trip = await loopback_seconds()
    rate, _, p99 = await appends(port, in_flight=64, topics=100)
    row(
        "D1 appends/s, 64 in flight, 100 topics",
        f"{rate:,.0f}",
        f"{grouped:,.0f} (raw, 200 a transaction)",
        rate / grouped,
        ">= 0.25",
    )
    row(
        "   the same against raw, one a transaction",
        f"{rate:,.0f}",
        f"{each:,.0f}",
        rate / each,
        "",
    )
    one, _, _ = await appends(port, in_flight=64, topics=1)
    row("D2 the same, one topic", f"{one:,.0f}", f"{rate:,.0f} (D1)", one / rate, ">= 0.8")
    _, p50, p99 = await appends(port, in_flight=16, topics=100)
    row(
        "D4 latency p50, 16 in flight",
        f"{p50 * 1e3:.2f} ms",
        f"{of_sixteen * 1e3:.2f} ms (raw group of 16)",
        p50 / of_sixteen,
        "<= 3",
    )
    row(
        "D4 latency p99, 16 in flight",
        f"{p99 * 1e3:.2f} ms",
        f"{of_sixteen * 1e3:.2f} ms",
        p99 / of_sixteen,
        "<= 4",
    )
    _, alone, _ = await appends(port, in_flight=1, topics=1)
    floor = each_seconds + trip
    row(
        "D5 one command alone, p50",
        f"{alone * 1e3:.2f} ms",
        f"{floor * 1e3:.2f} ms (raw + round trip)",
        alone / floor,
        "<= 2",
    )


# Snapshot -------------------------------------------------------------------------------


async def make_topic(port: int, messages: int) -> str:
    client = await RawClient.connect(port)
    topic = (await client.ask(op="topic.create", name="large"))["topic"]
    for start in range(0, messages, 200):
        commands = [
            {
                "op": "message.create",
                "role": ("user", "assistant")[number % 2],
                "text": f"{number} {TEXT}",
                "status": "success",
            }
            for number in range(start, start + 200)
        ]
        await client.ask(op="batch", topic=topic, commands=commands)
    client.close()
    return topic


async def snapshot(port: int, topic: str) -> tuple[float, int]:
    """Return the seconds from ``topic.open`` to ``synced``, and the bytes of the chunks."""
    done = asyncio.get_running_loop().create_future()
    size = 0

    def heard(_: RawClient, text: bytes) -> None:
        nonlocal size
        if text.startswith(b'{"type":"snapshot"'):
            size += len(text)
        elif text.startswith(b'{"type":"synced"'):
            done.set_result(None)

    client = await RawClient.connect(port, heard)
    begun = time.perf_counter()
    client.send(b'{"id":1,"op":"topic.open","topic":"%b"}' % topic.encode())
    await done
    seconds = time.perf_counter() - begun
    client.close()
    return seconds, size


async def bench_snapshot(port: int, topic: str, database: Path) -> None:
    cold, size = await snapshot(port, topic)
    warm = statistics.median([(await snapshot(port, topic))[0] for _ in range(5)])
    whole, encoding, count = raw_snapshot(database, topic)
    assert count == 10_000
    row(
        "T1 snapshot of 10,000, cold",
        f"{cold * 1e3:.0f} ms",
        f"{whole * 1e3:.0f} ms (SELECT + encode)",
        cold / whole,
        "<= 2",
    )
    row(
        "T1 snapshot of 10,000, warm",
        f"{warm * 1e3:.0f} ms",
        f"{encoding * 1e3:.1f} ms (encode)",
        warm / encoding,
        "<= 2",
    )
    row("T2 bytes a skeleton message", f"{size / 10_000:.0f}", "170", size / 10_000 / 170, "<= 1")


# Fan-out --------------------------------------------------------------------------------


async def bench_fanout(pid: int, port: int, *, clients: int = 200, events: int = 2000) -> None:
    writer_acks = asyncio.Queue()
    writer = await RawClient.connect(
        port, lambda _, text: writer_acks.put_nowait(text) if b"streamAck" in text else None
    )
    topic = (await writer.ask(op="topic.create", name="fan-out"))["topic"]
    turn = await writer.ask(
        op="turn.submit", topic=topic, user={"mode": "create", "text": "go"}, placeholders=[{}]
    )
    reply = turn["placeholderIds"][0]
    epoch = (await writer.ask(op="stream.claim", topic=topic, messageId=reply))["epoch"]
    idle = memory_kib(pid)
    readers = [await RawClient.connect(port) for _ in range(clients)]
    for reader in readers:
        await reader.ask(op="topic.open", topic=topic)
    grown = memory_kib(pid) - idle
    await asyncio.sleep(0.3)
    before = sum(reader.frames for reader in readers)

    async def drive(count: int, first: int) -> float:
        begun = cpu_seconds(pid)
        for number in range(first, first + count):
            writer.send(
                b'{"id":1,"op":"stream.append","topic":"%b","messageId":"%b","epoch":%d,"from":%d,'
                b'"ops":[["t",0," streamed"]]}' % (topic.encode(), reply.encode(), epoch, number)
            )
            await writer_acks.get()
        return cpu_seconds(pid) - begun

    await drive(200, 1)
    used = await drive(events, 201)
    while sum(reader.frames for reader in readers) - before < clients * (events + 200):
        await asyncio.sleep(0.01)
    ours = used / (events * clients)
    for client in (*readers, writer):
        client.close()
    limit = await fanout_limit(clients, events)
    row(
        f"F1 CPU a delivery, {clients} clients, one op a frame",
        f"{ours * 1e6:.2f} us",
        f"{limit * 1e6:.2f} us (uvloop write)",
        limit / ours,
        ">= 0.75 of C; uvloop is 0.81",
    )
    row(
        "C1 memory a subscribed connection",
        f"{grown / clients:.1f} KiB",
        "12 KiB",
        grown / clients / 12,
        "<= 1",
    )


async def fanout_limit(clients: int, events: int) -> float:
    port = free_port()
    with running("-m", "tests.bench.process", str(port), port=port) as process:
        counts = [0]

        class Reader(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                counts[0] += len(data)

        loop = asyncio.get_running_loop()
        answered = asyncio.Queue()

        class Driver(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                answered.put_nowait(data)

        driver, _ = await loop.create_connection(Driver, "127.0.0.1", port)
        ends = [
            (await loop.create_connection(Reader, "127.0.0.1", port))[0] for _ in range(clients)
        ]
        await asyncio.sleep(0.2)
        begun = cpu_seconds(process.pid)
        for _ in range(events):
            driver.write(b".")
            await answered.get()
        used = cpu_seconds(process.pid) - begun
        while counts[0] < clients * events * 143:
            await asyncio.sleep(0.01)
        for end in (*ends, driver):
            end.abort()
        return used / (events * clients)


def table() -> str:
    """Return the rows as a Markdown table."""
    head = ("what", "livetree", "limit in this run", "ratio", "target")
    widths = [max(len(line[place]) for line in (head, *ROWS)) for place in range(5)]

    def line(cells: tuple[str, ...], fill: Callable[[str, int], str] = str.ljust) -> str:
        return "| " + " | ".join(map(fill, cells, widths)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(head), rule, *map(line, ROWS)])


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with livetree(Path(folder)) as (process, port):
            await bench_appends(port)
            await bench_fanout(process.pid, port)
            topic = await make_topic(port, 10_000)
        database = next(Path(folder).glob("*.db"))
        # Started anew, so that nothing of the topic is in memory.
        with livetree(Path(folder)) as (_, port):
            await bench_snapshot(port, topic, database)
    print("\n" + table())


if __name__ == "__main__":
    uvloop.run(main())
