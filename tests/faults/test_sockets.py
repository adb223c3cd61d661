"""Peers that don't read, don't answer, break off, flood, or talk nonsense; nobody else minds."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import livetree
import pytest
from livetree.client import Client
from livetree.core import protocol as p
from livetree.live_topic import LiveTopic
from livetree.mirror import Mirror
from websockets.frames import Opcode

from tests.faults.clock import hurried
from tests.faults.database import check_database, opened
from tests.faults.process import SECONDS, Server
from tests.faults.proxy import Proxy
from tests.faults.raw import Raw
from tests.helpers import assert_equal_everywhere, canonical_form
from tests.simulation.wire import masked

MIB = 1024 * 1024
SEED = 5


def impatient(home: Path, **constants: float) -> Server:
    """Return a server whose constants are others."""
    changed = [f"{name}={value}" for name, value in constants.items()]
    return Server(home, program=("tests.faults.impatient", *changed))


@contextlib.asynccontextmanager
async def watching(url: str) -> AsyncIterator[tuple[Client, LiveTopic]]:
    """Connect a client, make a topic and open it."""
    async with hurried(url) as client:
        topic = await client.create_topic("topic", topic_id="topic")
        async with client.open(topic.id) as live:
            yield client, live


class Bystander:
    """Somebody else on the same server, who must not notice: each command is answered in time."""

    def __init__(self, live: LiveTopic) -> None:
        self.answered = 0
        self.slowest = 0.0
        self._live = live
        self._stopping = False

    async def __aenter__(self) -> Bystander:
        self._task = asyncio.create_task(self._act())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await self._task

    async def _act(self) -> None:
        while not self._stopping:
            began = time.monotonic()
            async with asyncio.timeout(SECONDS):
                await self._live.create(f"{self.answered}")
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.answered += 1

    async def acted(self, count: int) -> None:
        """Wait until it has been answered so often again."""
        goal = self.answered + count
        while self.answered < goal and not self._task.done():
            await asyncio.sleep(0.005)


async def check_log(server: Server, live: LiveTopic) -> None:
    """Stop a server and demand that its database is sound and is what a watcher has seen."""
    form = canonical_form(live.tree)
    assert await server.stop() == 0
    # What is said of a request that can't be read is all that it may have to say.
    said = [line for line in server.complaints().splitlines() if "uvicorn.error: " not in line]
    assert said == []
    with opened(server.database) as database:
        (tree, _) = check_database(database)[live.id]
    assert_equal_everywhere(watcher=form, database=tree)


# Who doesn't read ---------------------------------------------------------------------------

DEAF = 20
UPDATES = 50
DELTAS = 600
RATE = 100


async def load(writer: Raw, live: LiveTopic, message_id: str, *, at_least: float) -> float:
    """
    Publish deltas of 16 KiB; returns how long after its answer the last of some was seen.

    It goes on until there were enough of them, for long enough.

    """
    slowest, number, began = 0.0, 0, time.monotonic()
    while number < DELTAS or time.monotonic() - began < at_least:
        updates = [
            p.MessageUpdate(
                id=number + place,
                topic=live.id,
                message_id=message_id,
                text=f"{number + place} ".ljust(16 * 1024, "x"),
            )
            for place in range(1, UPDATES + 1)
        ]
        seq = live.seq
        await writer.send(*updates)
        answers = await writer.answers(UPDATES)
        assert [answer.re for answer in answers] == [update.id for update in updates]
        answered = time.monotonic()
        async with asyncio.timeout(SECONDS):
            await live.wait_seq(seq + UPDATES)
        slowest = max(slowest, time.monotonic() - answered)
        number += UPDATES
    rate = number / (time.monotonic() - began)
    assert rate > RATE, f"{rate:.0f} deltas a second are no load"
    print(f"{rate:.0f} deltas a second")
    return slowest


@contextlib.asynccontextmanager
async def deaf_ones(server: Server, topic_id: str, count: int) -> AsyncIterator[list[Raw]]:
    """Connect clients that open a topic, and read nothing from then on."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            raw = await stack.enter_async_context(Raw(server.port, receive_bytes=8 * 1024))
            await raw.greet()
            await raw.ask(p.TopicOpen(id=1, topic=topic_id))
            found.append(raw)
        yield found


async def test_S7_clients_that_never_read_cost_little_and_are_ended(tmp_path: Path):
    patience = {"SLOW_SECONDS": 1.0, "CLOSE_SECONDS": float(SECONDS)}
    async with impatient(tmp_path, **patience) as server, watching(server.url) as (_, live):
        message_id = (await live.create("x")).message_id
        async with Raw(server.port) as writer, deaf_ones(server, live.id, DEAF) as deaf:
            await writer.greet()
            await load(writer, live, message_id, at_least=0)
            before = server.resident_bytes
            slowest = await load(writer, live, message_id, at_least=3)
            grown = server.resident_bytes - before
            codes = [await raw.close_code() for raw in deaf]
            assert codes == [p.Close.OVERLOADED] * DEAF
        # What was published since would be ten times as much for those who didn't read.
        assert grown < 20 * MIB, f"it has grown by {grown / MIB:.0f} MiB"
        assert slowest < 2
        await server.until(connections=1, behind=0)
        await check_log(server, live)


async def test_S7_a_client_that_reads_again_is_caught_up(tmp_path: Path):
    async with Server(tmp_path) as server, watching(server.url) as (_, live):
        message_id = (await live.create("x")).message_id
        async with Raw(server.port) as writer, deaf_ones(server, live.id, 2) as deaf:
            await writer.greet()
            await load(writer, live, message_id, at_least=0)
            assert (await server.statistics())["behind"] == 2
            for raw in deaf:
                mirror = Mirror(live.id)
                while not (mirror.synced and mirror.tree and mirror.tree.seq == live.seq):
                    frame = await raw.frame()
                    assert not isinstance(frame, p.ResultFrame | p.ErrorFrame | p.Welcome)
                    assert mirror.receive(frame, 0.0).needs == []  # type: ignore[arg-type]
                assert mirror.tree is not None
                assert_equal_everywhere(reader=mirror.tree, watcher=live.tree)
            await server.until(behind=0)
        await check_log(server, live)


# Who doesn't answer -------------------------------------------------------------------------


async def test_C2_a_connection_that_only_seems_open_is_given_up_by_both_sides(tmp_path: Path):
    async with (
        impatient(tmp_path, PING_SECONDS=0.4, SILENCE_SECONDS=2.0) as server,
        Proxy(server.port) as proxy,
        watching(server.url) as (_, live),
        livetree.connect(proxy.url, ping_seconds=0.5, silence_seconds=1.0) as client,
    ):
        # Idle, but alive: pings are answered, and nobody is cut.
        await asyncio.sleep(3)
        assert client.statistics()["connections"] == 1

        proxy.mute_all()
        async with asyncio.timeout(SECONDS):
            created = await client.create_message(live.id, "lost", parent=live.root_id)
        assert client.statistics()["connections"] == 2
        await server.until(connections=2)
        await live.wait_seq(created.seq)
        assert [live.text(each) for each in live.children(live.root_id)] == ["lost"]


# Who breaks off -----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["reset", "close"])
async def test_R7_a_socket_cut_in_a_frame_leaves_nothing(tmp_path: Path, end: str):
    async with Server(tmp_path) as server, watching(server.url) as (_, live):
        base = server.open_sockets
        async with Bystander(live) as bystander:
            for part in (1, 2, 5, 13, 0.5, -1):
                raw = await Raw(server.port).__aenter__()
                await raw.greet()
                await raw.ask(p.TopicOpen(id=1, topic=live.id))
                frame = raw.framed(
                    p.MessageCreate(id=2, topic=live.id, role="user", text="half" * 1000)
                )
                await raw.send_bytes(frame[: int(len(frame) * part) if part == 0.5 else int(part)])
                await bystander.acted(3)
                if end == "reset":
                    raw.reset()
                else:
                    raw.socket.close()
        await server.until(connections=1, behind=0)
        texts = {live.text(node.id) for node in live.tree.nodes()}
        assert texts == {f"{number}" for number in range(bystander.answered)}
        assert server.open_sockets <= base
        await check_log(server, live)


async def test_R7_who_says_good_bye_and_stays_disturbs_nobody(tmp_path: Path):
    async with Server(tmp_path) as server, watching(server.url) as (_, live):
        async with contextlib.AsyncExitStack() as stack:
            for goodbye in (
                masked(b"\x03\xe8", Opcode.CLOSE),
                masked(b"{}"),
                masked(b"", Opcode.BINARY),
                b"\xff\xff",
            ):
                raw = await stack.enter_async_context(Raw(server.port))
                await raw.greet()
                await raw.ask(p.TopicOpen(id=1, topic=live.id))
                await raw.send_bytes(goodbye)
            async with Bystander(live) as bystander:
                await bystander.acted(30)
        await check_log(server, live)


async def test_R7_a_thousand_connections_come_and_go_at_random(tmp_path: Path):
    rng = random.Random(SEED)
    async with Server(tmp_path) as server, watching(server.url) as (_, live):
        base = server.open_sockets
        hello = p.Hello(protocol=p.PROTOCOL, resume=[p.Resume(topic=live.id)])

        async def come_and_go(kind: int, wait: float, size: int, reset: bool) -> None:
            raw = Raw(server.port)
            with contextlib.suppress(ConnectionError):
                if kind == 0:
                    await raw.connect()
                elif kind == 1:
                    await raw.connect()
                    await raw.send_bytes(b"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\n"[:size])
                else:
                    await raw.__aenter__()
                    if kind == 3:
                        await raw.send_bytes(raw.framed(hello)[:size])
                    elif kind == 4:
                        await raw.send(hello)
                await asyncio.sleep(wait)
            if reset:
                raw.reset()
            else:
                raw.socket.close()

        async with Bystander(live) as bystander:
            for _ in range(20):
                await asyncio.gather(
                    *(
                        come_and_go(
                            rng.randrange(5),
                            rng.choice((0, 0, rng.uniform(0, 0.05))),
                            rng.randrange(1, 60),
                            rng.random() < 0.3,
                        )
                        for _ in range(50)
                    )
                )
        assert bystander.answered > 20
        await server.until(connections=1, behind=0)
        async with asyncio.timeout(SECONDS):
            while server.open_sockets > base:
                await asyncio.sleep(0.05)
        await check_log(server, live)


# Who floods -------------------------------------------------------------------------------

BURST = 10_000


async def test_R6_in_a_burst_of_10_000_requests_others_are_still_answered(tmp_path: Path):
    async with Server(tmp_path) as server, watching(server.url) as (client, live):
        other = await client.create_topic("other", topic_id="other")
        async with Raw(server.port) as raw:
            await raw.greet()
            requests: list[p.Command] = [
                p.MessageCreate(
                    id=number, topic=other.id, role="user", text=f"{number}", status="success"
                )
                if number % 10
                else p.TopicGet(id=number, topic=other.id)
                for number in range(BURST)
            ]
            burst = raw.framed(*requests)
            before = server.resident_bytes
            async with Bystander(live) as bystander:
                began = time.monotonic()
                sending = asyncio.create_task(raw.send_bytes(burst))
                answers = await raw.answers(BURST)
                took = time.monotonic() - began
                await sending
        assert [answer.re for answer in answers] == list(range(BURST))
        assert all(isinstance(answer, p.ResultFrame) for answer in answers)
        assert bystander.slowest < max(0.5, took / 4), (bystander.slowest, took)
        assert server.resident_bytes - before < 64 * MIB
        assert (await client.topic(other.id)).seq == 1 + BURST * 9 // 10
        print(f"{took:.1f} s, {bystander.answered} answered beside, slowest {bystander.slowest}")
        await check_log(server, live)


# Who talks nonsense -----------------------------------------------------------------------

HEAD = (
    b"GET /v1/ws HTTP/1.1\r\n"
    b"Host: 127.0.0.1\r\n"
    b"Upgrade: websocket\r\n"
    b"Connection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: livetree.v1\r\n"
)
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
BAD_HANDSHAKES = {
    "nothing at all": b"",
    "no HTTP": b"hello\r\n\r\n",
    "zeros": bytes(1000),
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(189),
    "another protocol": b"SSH-2.0-OpenSSH_9.0\r\n",
    "an endless line": b"GET /" + b"x" * 100_000,
    "many headers": HEAD + b"X: y\r\n" * 20_000 + b"\r\n",
    "a large header": HEAD + b"X: " + b"y" * MIB + b"\r\n\r\n",
    "no version of HTTP": HEAD.replace(b" HTTP/1.1", b"") + b"\r\n",
    "HTTP/1.0": HEAD.replace(b"1.1", b"1.0", 1) + b"\r\n",
    "HTTP/9.9": HEAD.replace(b"1.1", b"9.9", 1) + b"\r\n",
    "a POST": HEAD.replace(b"GET", b"POST") + b"Content-Length: 3\r\n\r\nabc",
    "an unknown method": HEAD.replace(b"GET", b"TREE") + b"\r\n",
    "no key": HEAD.replace(KEY, b"") + b"\r\n",
    "two keys": HEAD + KEY + b"\r\n",
    "a short key": HEAD.replace(KEY, b"Sec-WebSocket-Key: x\r\n") + b"\r\n",
    "another version": HEAD.replace(b"Version: 13", b"Version: 8") + b"\r\n",
    "no host": HEAD.replace(b"Host: 127.0.0.1\r\n", b"") + b"\r\n",
    "an impossible host": HEAD.replace(b"127.0.0.1", b"[::1") + b"\r\n",
    "an impossible origin": HEAD + b"Origin: http://[::1\r\n\r\n",
    "an impossible path": HEAD.replace(b"/v1/ws", b"//[::1/v1/ws") + b"\r\n",
    "bytes in headers": HEAD + b"X: \xff\xfe\r\n\r\n",
    "bytes in the host": HEAD.replace(b"127.0.0.1", b"\xff\xfe") + b"\r\n",
    "bytes in the origin": HEAD + b"Origin: \xff\xfe\r\n\r\n",
    "bytes in the path": HEAD.replace(b"/v1/ws", b"/v1/\xff") + b"\r\n",
    "bytes in the protocol": HEAD.replace(b"livetree.v1", b"\xff\x00") + b"\r\n",
    "a header without a colon": HEAD + b"nonsense\r\n\r\n",
    "a header without a name": HEAD + b": x\r\n\r\n",
    "a folded header": HEAD + b"X: y\r\n z\r\n\r\n",
    "no end": HEAD,
    "bare line feeds": HEAD.replace(b"\r\n", b"\n") + b"\n",
    "an unknown extension": HEAD + b"Sec-WebSocket-Extensions: ,;=\r\n\r\n",
    "two origins": HEAD + b"Origin: http://a\r\nOrigin: http://b\r\n\r\n",
    "two hosts": HEAD + b"Host: localhost\r\n\r\n",
    "no websocket, an impossible host": b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "an import for an impossible host": b"POST /v1/import HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "an impossible port": b"POST /v1/import HTTP/1.1\r\nHost: a:b\r\n\r\n",
    "bytes in a page's host": b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
    "bytes in a page's path": b"GET /\xff%ff%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "bytes in a query": b"POST /v1/import?name=%ff&strict=\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "a body": HEAD + b"Content-Length: 5\r\n\r\nhello",
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
}
BAD_FRAMES = {
    "unmasked": b"\x81\x02{}",
    "a reserved opcode": b"\x83\x80\0\0\0\0",
    "a reserved bit": b"\xc1\x80\0\0\0\0",
    "a control frame in fragments": b"\x09\x80\0\0\0\0",
    "a long control frame": masked(b"x" * 126, Opcode.PING),
    "a continuation of nothing": masked(b"{}", Opcode.CONT),
    "a message in a message": masked(b"{", fin=False) + masked(b"{}"),
    "no UTF-8": masked(b"\xff\xfe"),
    "a surrogate": masked(b'"\xed\xa0\x80"'),
    "a close of one byte": masked(b"\x03", Opcode.CLOSE),
    "a close with no such code": masked(b"\x00\x01", Opcode.CLOSE),
    "a close without UTF-8": masked(b"\x03\xe8\xff", Opcode.CLOSE),
    "a frame of an exabyte": b"\x81\xff\x10" + bytes(11),
    "a negative length": b"\x81\xff" + b"\xff" * 8 + bytes(4),
    "endless fragments": masked(b"x" * 60_000, fin=False) * 100,
    "HTTP again": b"GET / HTTP/1.1\r\n\r\n",
    "noise": random.Random(SEED).randbytes(10_000),
}


async def thrown_at(port: int, data: bytes) -> bytes:
    """Send bytes, say that there are no more, and return all that comes back."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        answer = b""
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(OSError):
                await loop.sock_sendall(sock, data)
                sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while chunk := await loop.sock_recv(sock, 65536):
                    answer += chunk
        return answer


async def test_R7_malformed_handshakes_harm_nobody(tmp_path: Path):
    async with Server(tmp_path) as server, watching(server.url) as (_, live):
        base = server.open_sockets
        async with Bystander(live) as bystander:
            for name, data in BAD_HANDSHAKES.items():
                answer = await thrown_at(server.port, data)
                assert not answer or answer.startswith(b"HTTP/1."), (name, answer)
                assert b" 500 " not in answer.partition(b"\r\n")[0], (name, answer)
                await bystander.acted(1)
        assert server.open_sockets <= base
        await check_log(server, live)


@pytest.mark.parametrize("greeted", [False, True], ids=["before hello", "after hello"])
async def test_R7_malformed_frames_harm_nobody(tmp_path: Path, greeted: bool):
    async with Server(tmp_path) as server, watching(server.url) as (_, live):
        async with Bystander(live) as bystander:
            for data in BAD_FRAMES.values():
                async with Raw(server.port) as raw:
                    if greeted:
                        await raw.greet()
                        await raw.ask(p.TopicOpen(id=1, topic=live.id))
                    with contextlib.suppress(OSError):
                        await raw.send_bytes(data)
                        raw.socket.shutdown(socket.SHUT_WR)
                    await raw.close_code()
                await bystander.acted(1)
        await server.until(connections=1, behind=0)
        await check_log(server, live)


PAGE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    "data", [b"", b"GET /v1/ws HT", HEAD, PAGE + b"GET"], ids=["nothing", "a bit", "more", "again"]
)
async def test_H2_who_does_not_come_to_the_point_is_cut(tmp_path: Path, data: bytes):
    async with impatient(tmp_path, HEAD_SECONDS=0.5) as server:
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", server.port))
            await loop.sock_sendall(sock, data)
            answer = b""
            async with asyncio.timeout(SECONDS):
                while chunk := await loop.sock_recv(sock, 4096):
                    answer += chunk
        assert answer.startswith(b"HTTP/1.1 200 ") == data.startswith(PAGE)
        assert server.complaints() == ""


async def test_who_has_come_to_the_point_may_take_time(tmp_path: Path):
    async with impatient(tmp_path, HEAD_SECONDS=0.3) as server, watching(server.url) as (_, live):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /v1/import HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 7\r\n\r\n")
        for byte in b"nothing":
            await asyncio.sleep(0.1)
            writer.write(bytes([byte]))
        async with asyncio.timeout(SECONDS):
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        await live.create("still here")
        assert live.mirror.synced
        await check_log(server, live)


async def test_a_request_without_an_end_is_refused_early(tmp_path: Path):
    async with Server(tmp_path) as server:
        before = server.resident_bytes
        for start, more in ((b"GET /", b"x" * MIB), (HEAD + b"X: ", b"y" * MIB)):
            answer = await thrown_at(server.port, start + more * 64)
            assert not answer or answer.startswith(b"HTTP/1.1 431 ")
        assert server.resident_bytes - before < 16 * MIB
