"""Runs cases through a running server, over a socket and the Python SDK."""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import livetree
import msgspec
from livetree.core import protocol as p
from livetree.core.errors import LivetreeError, NotFound
from livetree.core.view import View
from livetree.formats import Conversation
from livetree_server.app import Application, listen, serve
from livetree_server.storage.sqlite import SqliteStore
from livetree_server.topics.rooms import Settings

from .backend import Pen, Refused, Seed, Stored, root_row, row_of
from .raw_store import RawStore

T = TypeVar("T")
BATCH = 200
OFFER_MS = int(Settings().offer_seconds * 1000) + 1
TAGS = {kind.__struct_config__.tag: kind for kind in p.COMMANDS}


class Acks:
    """Waits, as a bot does, until the server has what was written."""

    def __init__(self) -> None:
        self.received: dict[str, int] = {}
        self.moved = asyncio.Event()

    def online(self) -> None:
        """As `livetree.client.Worker`."""

    def offline(self) -> None:
        """As `livetree.client.Worker`."""

    def offered(self, offer: p.Offer) -> None:
        """As `livetree.client.Worker`."""

    def acknowledged(self, ack: p.StreamAck) -> None:
        """As `livetree.client.Worker`."""
        self.received[ack.message_id] = ack.received
        self.moved.set()

    async def wait_for(self, message_id: str, n: int) -> None:
        """Return once an op has been received."""
        while self.received.get(message_id, 0) < n:
            self.moved.clear()
            await self.moved.wait()


class ServerBackend:
    """
    A server over one database file, on a clock that the case sets, and a client of it.

    Every mutation is sent twice, as after a lost answer, and must happen once.

    Args:
        is_raw: What is stored is read from the file: the case writes to it past all rules, and
            what it may leave there a server refuses to show.

    """

    name = "server"
    features = frozenset({"anchors", "clock", "flow", "live", "migrate", "raw-store", "temporary"})
    lacks: frozenset[str] = frozenset()

    def __init__(self, *, is_raw: bool = False) -> None:
        self.pens: dict[str, Pen] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="livetree-conformance-")
        self._store = RawStore(Path(self._folder.name) / "livetree.db")
        self._runner = asyncio.Runner()
        self._running: contextlib.AsyncExitStack | None = None
        self._is_raw = is_raw
        self._clock = 10_000_000
        self._now = self._clock
        self._made = 0

    # One loop for server and client: it stands still between two steps -------------------

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, 60))

    async def _start(self) -> None:
        store = await SqliteStore.open(self._store.path)
        self._application = application = Application(
            store, clock=lambda: self._now, ids=self._new_id
        )
        sock = listen("127.0.0.1", 0)
        started = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            serving = asyncio.create_task(serve(application, sock, started=started))
            stack.push_async_callback(_stop, serving)
            await started.wait()
            self._url = f"ws://127.0.0.1:{sock.getsockname()[1]}"
            self._client = await stack.enter_async_context(livetree.connect(self._url))
            self._acks = Acks()
            self._client.attach(self._acks)
            self._running = stack.pop_all()

    async def _end(self) -> None:
        if self._running is not None:
            await self._running.aclose()
            self._running = None

    def _new_id(self) -> str:
        self._made += 1
        return f"made-{self._made}"

    # As `Backend` ------------------------------------------------------------------------

    def seed(self, topics: Sequence[Seed]) -> None:
        self._wait(self._store.seed(topics, self._clock))
        self._wait(self._start())

    def request(self, command: dict[str, Any], now: int | None) -> dict[str, Any]:
        if now is None:
            self._clock += 1
        self._now = self._clock if now is None else now
        if command["op"] == "topic.create":
            command = {"topic": self._client.new_id(), **command}
        asked = struct_of(command)
        if isinstance(asked, p.Mutation):
            asked = msgspec.structs.replace(asked, mutation=self._client.new_id())
        try:
            result = self._wait(self._client.request(asked))
        except LivetreeError as refusal:
            raise Refused(refusal.code, str(refusal)) from None
        if isinstance(asked, p.Mutation):
            again = self._wait(self._client.request(asked))
            assert told_once(again) == told_once(result), f"{command['op']} happened twice"
        return result

    def append(self, topic: str, message_id: str, pen: Pen, text: str) -> None:
        async def written() -> None:
            append = p.StreamAppend(
                topic=topic,
                message_id=message_id,
                epoch=pen.epoch,
                first=pen.n + 1,
                ops=[p.TextOp(0, text)],
            )
            refusals: list[LivetreeError] = []
            request = self._client.post(append, lambda answer: refusals.append(answer))  # type: ignore[arg-type]
            await self._acks.wait_for(message_id, pen.n + 1)
            self._client.settle(request)
            assert not refusals, refusals[0]

        self._wait(written())

    def written(self, topic: str) -> dict[str, str] | None:
        async def seen() -> dict[str, str]:
            async with livetree.connect(self._url) as viewer, viewer.open(topic) as live:
                return {
                    message_id: live.text(message_id) or ""
                    for message_id, epoch in live.tree.live.items()
                    if epoch
                }

        return self._wait(seen()) or None

    def temporary(self, topic: str) -> int | None:
        async def count() -> int | None:
            try:
                info = await self._client.topic(topic)
            except NotFound:
                return None
            return len((await self._read_topic(topic)).rows) - 1 if info.temporary else None

        return self._wait(count())

    def reconcile(self, now: int | None) -> None:
        """Set the clock to when all that waits has waited long enough, and sweep."""
        self._clock += 1
        self._now = (self._clock if now is None else now) + OFFER_MS
        self._wait(self._application.rooms.sweep())
        for stored in self.stored().values():  # answered after what the sweep has asked for
            assert stored

    def raw(self, step: dict[str, Any]) -> None:
        # A running server owns its file; stopping it makes it forget what it has loaded.
        self._wait(self._end())
        try:
            self._store.write(step)
        finally:
            self._wait(self._start())

    def view(self, topic: str) -> View:
        async def mirrored() -> View:
            async with livetree.connect(self._url) as viewer, viewer.open(topic) as live:
                return live.tree

        try:
            return self._wait(mirrored())
        except LivetreeError as refusal:
            raise Refused(refusal.code, str(refusal)) from None

    def bring_in(self, conversation: Conversation) -> None:
        assert conversation.source_id is not None
        assert self._client.welcome is not None
        subject = self._client.welcome.subject
        try:
            # Past the choice of an id: cases know topics by the one that they had.
            made = self._wait(
                self._application.importer._make(conversation.source_id, conversation, subject)
            )
        except LivetreeError as refusal:
            raise Refused(refusal.code, str(refusal)) from None
        assert made == conversation.source_id

    def stored(self) -> dict[str, Stored]:
        return self._store.stored() if self._is_raw else self._wait(self._read())

    async def _read(self) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        for topic in (await self._client.topics(limit=200)).topics:
            with contextlib.suppress(NotFound):
                found[topic.id] = await self._read_topic(topic.id)
        return found

    async def _read_topic(self, topic_id: str) -> Stored:
        info = await self._client.topic(topic_id)
        tree = await self._client.tree(topic_id, depth=-1)
        ids = [node.id for node in tree.nodes]
        ids += [node.id for group in tree.groups for node in group.nodes]
        rows = {info.root_id: root_row(info.root_id)}
        for start in range(0, len(ids), BATCH):
            answer = await self._client.messages(topic_id, ids[start : start + BATCH])
            rows |= {node.id: row_of(node) for node in answer.nodes}
        return Stored(
            root_id=info.root_id,
            active=info.active_node_id,
            activity=info.last_activity_at,
            rows=rows,
        )

    def check(self) -> None:
        """Demand that a viewer who comes now is shown what the database has, row by row."""
        if self._is_raw:
            return
        through_the_wire = self.stored()
        self._wait(self._end())
        in_the_file = self._store.stored()
        for stored in in_the_file.values():
            # The wire tells no more of a root than its id.
            stored.rows[stored.root_id] = root_row(stored.root_id)
        assert through_the_wire == in_the_file, "the server tells what its database doesn't have"

    def close(self) -> None:
        try:
            self._wait(self._end())
        finally:
            self._runner.close()
            self._folder.cleanup()


def told_once(result: dict[str, Any]) -> dict[str, Any]:
    """Return what a repeated request must be answered with; what a writer goes on from is not."""
    return {key: value for key, value in result.items() if key not in ("n", "parts")}


async def _stop(serving: asyncio.Task[None]) -> None:
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def struct_of(told: dict[str, Any]) -> p.Command:
    """Return the command that a request says, sense or nonsense: the server is to judge it."""
    try:
        return p.decode_command(msgspec.json.encode(told))
    except msgspec.ValidationError:
        kind = TAGS[told["op"]]
        fields = {
            re.sub("[A-Z]", lambda upper: "_" + upper[0].lower(), key): value
            for key, value in told.items()
            if key != "op"
        }
        return kind(**fields)
