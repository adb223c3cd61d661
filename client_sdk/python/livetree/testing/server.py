"""A whole server in memory, built on the core alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ..core import protocol as p
from ..core.errors import Conflict, LivetreeError, NotFound, Validation
from ..core.ids import uuid7
from ..core.plan import CopyTopic, ExpireLease
from ..core.reads import branch_page, messages, path_page, topic_info, tree_page
from ..core.view import on_the_wire
from ..transport import Socket
from .clock import FakeClock, FakeRandom
from .sockets import HandCrankedSocket
from .topic import MemoryTopic

__all__ = ["MemoryConnection", "MemoryServer"]

MOST_UNREAD = 1_000


class MemoryConnection(HandCrankedSocket):
    """
    One client's connection, from the server's side: what is sent is answered at once.

    Attributes:
        requests: Every request that came, in order.
        watching: Whether it watches the list of topics.
        hello: The first frame, once it came.

    """

    def __init__(self, server: MemoryServer) -> None:
        super().__init__()
        self.requests: list[p.Command] = []
        self.hello: p.Hello | None = None
        self.topics: set[str] = set()
        self.models: list[str] = []
        self.watching = False
        self._server = server

    @property
    def subject(self) -> str:
        """Who it is: the token, or ``local``."""
        return (self.hello and self.hello.token) or "local"

    def heard(self, text: str) -> None:
        """Answer a frame."""
        self.sent.clear()
        self._server.receive(self, text)

    def tell(self, frame: p.ServerFrame) -> None:
        """Send a frame, or what the server's `on_send` makes of it."""
        for each in self._server.on_send(self, frame):
            self.push(p.encode(each).decode())


def _as_it_is(_: MemoryConnection, frame: p.ServerFrame) -> Iterable[p.ServerFrame]:
    return [frame]


class MemoryServer:
    """
    A server whose sockets a client opens as its ``transport``.

    Args:
        clock: Its time.
        seed: The seed of its ids.

    Attributes:
        topics: The topics, by id.
        connections: The open connections, the newest last.
        on_send: Called with a connection and each frame to it; what it returns is sent
            instead, so that frames can be lost, doubled, held back or changed.
        refuse: Called with each request; the error it returns, if any, is the answer.
        large_delta_bytes: Deltas above this are told as ``large``.
        snapshot_chunk: How many messages a snapshot frame has.
        durable: Whether live ops are durable as soon as they are received.
        tokens: If given, the only tokens that are let in.

    """

    def __init__(self, clock: FakeClock | None = None, *, seed: int = 0) -> None:
        self.clock = clock or FakeClock()
        self.topics: dict[str, MemoryTopic] = {}
        self.connections: list[MemoryConnection] = []
        self.on_send: Callable[[MemoryConnection, p.ServerFrame], Iterable[p.ServerFrame]] = (
            _as_it_is
        )
        self.refuse: Callable[[MemoryConnection, p.Command], LivetreeError | None] = lambda _, __: (
            None
        )
        self.large_delta_bytes = p.LARGE_DELTA_BYTES
        self.snapshot_chunk = 1000
        self.durable = True
        self.tokens: set[str] | None = None
        self.reachable = True
        self.frame_bytes = 1024 * 1024
        self._random = FakeRandom(seed)
        self._done: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        self._read_up_to: dict[tuple[str, str], int] = {}
        self._ids = 0

    async def open(self, url: str) -> Socket:
        """Connect a client."""
        if not self.reachable:
            raise ConnectionRefusedError(f"{url} is not reachable")
        connection = MemoryConnection(self)
        self.connections.append(connection)
        return connection

    @property
    def connection(self) -> MemoryConnection:
        """The newest connection."""
        return self.connections[-1]

    def new_id(self) -> str:
        """Make an id."""
        return uuid7(self.clock.now_ms(), self._random(10))

    def drop(self, code: int = 1006, reason: str = "") -> None:
        """Cut every connection."""
        for connection in self.connections:
            connection.drop(code, reason)
            connection.topics.clear()
            connection.models = []
            connection.watching = False

    def restart(self) -> None:
        """Cut every connection and lose what isn't durable."""
        self.drop(p.Close.RESTARTING, "restarting")
        for topic in self.topics.values():
            topic.crash()

    def expire_lease(self, topic_id: str, message_id: str) -> None:
        """Let a writer's lease end: its reply is offered again."""
        epoch = self.topics[topic_id].expire(message_id)
        command = ExpireLease(topic=topic_id, message_id=message_id, epoch=epoch)
        self._run(None, command)

    def run(self, command: p.Mutation) -> dict[str, Any]:
        """Carry out a command that comes from elsewhere, and tell everyone."""
        return self._run("elsewhere", command)

    # Frames -----------------------------------------------------------------------------

    def receive(self, connection: MemoryConnection, text: str) -> None:
        """Answer a frame from a client."""
        kind = msgspec.json.decode(text)
        if kind.get("type") == "ping":
            connection.tell(p.Pong())
        elif kind.get("type") == "pong":
            pass
        elif connection.hello is None:
            self._greet(connection, msgspec.json.decode(text, type=p.Hello))
        else:
            self._answer(connection, p.decode_command(text))

    def _greet(self, connection: MemoryConnection, hello: p.Hello) -> None:
        connection.hello = hello
        if self.tokens is not None and hello.token not in self.tokens:
            connection.drop(p.Close.UNAUTHENTICATED, "no such token")
            return
        keys = [(connection.subject, mutation) for mutation in hello.unacknowledged]
        connection.tell(
            p.Welcome(
                protocol=p.PROTOCOL,
                connection_id=self.new_id(),
                subject=connection.subject,
                limits=p.Limits(
                    frame_bytes=self.frame_bytes, data_bytes=1024 * 1024, subscriptions=1000
                ),
                done={key[1]: Raw(self._done[key][1]) for key in keys if key in self._done},
                server="memory",
                now=self.clock.now_ms(),
            )
        )
        for resume in hello.resume:
            topic = self.topics.get(resume.topic)
            if topic is None or topic.deleted:
                connection.tell(p.Gone(topic=resume.topic, reason="there is no such topic"))
            else:
                self._subscribe(connection, topic, resume)

    def _answer(self, connection: MemoryConnection, command: p.Command) -> None:
        connection.requests.append(command)
        try:
            if (error := self.refuse(connection, command)) is not None:
                raise error
            result = self._carry_out(connection, command)
        except LivetreeError as error:
            connection.tell(
                p.ErrorFrame(
                    re=command.id, code=error.code, message=str(error), details=error.details
                )
            )
            return
        if result is not None:
            connection.tell(p.ResultFrame(re=command.id, result=Raw(p.encode(result))))
        if isinstance(command, p.TopicOpen):
            self._subscribe(connection, self._topic(command.topic), command)
        elif isinstance(command, p.TopicsWatch):
            self._watch(connection, command)
        elif isinstance(command, p.TopicMarkRead):
            self._tell_read(connection.subject, self._topic(command.topic))
        elif isinstance(command, p.BotServe):
            connection.models = command.models
            for topic in self.topics.values():
                self._offer(topic, [each for each, epoch in topic.tree.live.items() if not epoch])

    def _carry_out(self, connection: MemoryConnection, command: p.Command) -> Any:
        match command:
            case p.Mutation():
                return self._run(connection.subject, command)
            case p.TopicList():
                return self._list(connection.subject, command)
            case p.BotServe() | p.TopicsWatch():
                return {}
            case p.TopicMarkRead():
                return self._mark_read(connection.subject, command)
            case p.StreamAppend():
                frame, ack = self._topic(command.topic).append(command, durable=self.durable)
                if frame is not None:
                    self._publish(command.topic, [frame])
                connection.tell(ack)
                return None
            case p.StreamRenew():
                self._topic(command.topic).check_lease(command.message_id, command.epoch)
                return {"leaseUntil": self.clock.now_ms() + command.lease_ms}
            case p.TopicClose():
                connection.topics.discard(command.topic)
                return {}
            case p.TopicCommand():
                return self._read(self._topic(command.topic), command)
            case _:
                raise Validation(f"unknown command {command!r}")

    def _read(self, topic: MemoryTopic, command: p.TopicCommand) -> Any:
        tree = topic.tree
        if isinstance(command, p.Read) and command.min_seq > tree.seq:
            raise Conflict(f"the topic is at seq {tree.seq}", seq=tree.seq)
        head = {"seq": tree.seq, "commit": tree.commit}
        match command:
            case p.TopicOpen():
                return {"topic": command.topic, "rootId": tree.root_id, **head}
            case p.TopicGet():
                return {"topic": topic_info(tree, topic.created_at)}
            case p.TreeGet():
                return tree_page(tree, command)
            case p.BranchGet():
                page = branch_page(tree, command)
                items = [replace(item, node=on_the_wire(item.node)) for item in page.items]
                return replace(page, items=items)
            case p.PathGet() | p.PathThrough():
                path = path_page(tree, command)
                return replace(path, nodes=[on_the_wire(node) for node in path.nodes])
            case p.TrashList():
                start = int(command.cursor or 0)
                end = start + command.limit
                rows = topic.trash.rows()
                more = str(end) if end < len(rows) else None
                return {"items": rows[start:end], "next": more, **head}
            case p.MessageGet():
                return {"nodes": [on_the_wire(node) for node in messages(tree, command)], **head}
            case p.TopicDeltas():
                missed = topic.since(command.seq, command.commit)
                return {
                    "deltas": [] if missed is None else missed[: command.limit],
                    "reset": missed is None,
                    **head,
                }
            case _:
                raise Validation(f"unknown command {command!r}")

    # The list ---------------------------------------------------------------------------

    def _list(self, subject: str, command: p.TopicList) -> dict[str, Any]:
        entries = [
            self._entry(subject, topic)
            for topic in self.topics.values()
            if topic.is_listed and command.name.casefold() in topic.tree.state["name"].casefold()
        ]
        entries.sort(key=lambda entry: (-entry.last_activity_at, entry.id))
        start = int(command.cursor or 0)
        end = start + command.limit
        return {"topics": entries[start:end], "next": str(end) if end < len(entries) else None}

    def _entry(self, subject: str, topic: MemoryTopic) -> p.TopicEntry:
        read_seq, unread = self._seen(subject, topic)
        info = topic_info(topic.tree, topic.created_at)
        return msgspec.convert({**info, "readSeq": read_seq, "unread": unread}, p.TopicEntry)

    def _seen(self, subject: str, topic: MemoryTopic) -> tuple[int, int]:
        """Return how far a subject has read a topic, and what it hasn't of others'."""
        read_seq = self._read_up_to.get((subject, topic.tree.topic_id), 0)
        unread = sum(
            node.version > read_seq and node.author != subject for node in topic.tree.nodes()
        )
        return read_seq, min(unread, MOST_UNREAD)

    def _mark_read(self, subject: str, command: p.TopicMarkRead) -> dict[str, Any]:
        topic = self._topic(command.topic)
        before, _ = self._seen(subject, topic)
        asked = topic.tree.seq if command.seq is None else command.seq
        self._read_up_to[subject, command.topic] = max(before, min(asked, topic.tree.seq))
        read_seq, unread = self._seen(subject, topic)
        return {"readSeq": read_seq, "unread": unread}

    def _watch(self, connection: MemoryConnection, command: p.TopicsWatch) -> None:
        connection.watching = command.watching
        if command.watching:
            page = self._list(connection.subject, p.TopicList(limit=command.limit))
            connection.tell(p.Topics(whole=True, **page))

    def _tell_listed(self, topic: MemoryTopic) -> None:
        for connection in self.connections:
            if not connection.watching or topic.is_temporary:
                continue
            if topic.deleted:
                connection.tell(p.Topics(whole=False, topics=[], gone=[topic.tree.topic_id]))
            else:
                entry = self._entry(connection.subject, topic)
                connection.tell(p.Topics(whole=False, topics=[entry]))

    def _tell_read(self, subject: str, topic: MemoryTopic) -> None:
        read_seq, unread = self._seen(subject, topic)
        frame = p.ReadPosition(topic=topic.tree.topic_id, read_seq=read_seq, unread=unread)
        for connection in self.connections:
            if connection.watching and connection.subject == subject:
                connection.tell(frame)

    # Topics -----------------------------------------------------------------------------

    def _run(self, subject: str | None, command: p.Mutation) -> dict[str, Any]:
        key = (subject or "", command.mutation or "")
        request = p.encode(replace(command, id=0))
        if command.mutation is not None and key in self._done:
            before, result = self._done[key]
            if before != request:
                raise Conflict("this mutation id belongs to another request")
            repeated: dict[str, Any] = msgspec.json.decode(result)
            return repeated
        if isinstance(command, p.TopicDuplicate):
            source = self._topic(command.topic)
            copy_id = command.copy_id or self.new_id()
            command = source.copy(command, copy_id, now=self.clock.now_ms(), new_id=self.new_id)
        if isinstance(command, p.TopicRestore) and command.topic in self.topics:
            topic = self.topics[command.topic]
        elif isinstance(command, (p.TopicCreate, CopyTopic)) and command.topic not in self.topics:
            topic = MemoryTopic(command.topic, self.new_id(), self.clock.now_ms())
        else:
            topic = self._topic(command.topic)
        offered = {each for each, epoch in topic.tree.live.items() if not epoch}
        result_now, frames = topic.run(
            command, subject=subject, now=self.clock.now_ms(), new_id=self.new_id
        )
        self.topics[command.topic] = topic
        if command.mutation is not None:
            stored = {key: each for key, each in result_now.items() if key not in ("n", "parts")}
            self._done[key] = (request, p.encode(stored))
        self._publish(command.topic, frames)
        if frames:
            self._tell_listed(topic)
        self._offer(
            topic,
            [each for each, epoch in topic.tree.live.items() if not epoch and each not in offered],
        )
        if topic.deleted:
            self._publish(command.topic, [p.Gone(topic=command.topic, reason="it was deleted")])
            for connection in self.connections:
                connection.topics.discard(command.topic)
        return result_now

    def _topic(self, topic_id: str) -> MemoryTopic:
        topic = self.topics.get(topic_id)
        if topic is None or topic.deleted:
            raise NotFound(f"there is no topic {topic_id}", id=topic_id)
        return topic

    def _subscribe(
        self, connection: MemoryConnection, topic: MemoryTopic, position: p.Resume | p.TopicOpen
    ) -> None:
        connection.topics.add(position.topic)
        for frame in topic.catch_up(position, self.snapshot_chunk):
            connection.tell(self._slim(frame))

    def _publish(self, topic_id: str, frames: Iterable[p.ServerFrame]) -> None:
        for frame in frames:
            for connection in self.connections:
                if topic_id in connection.topics:
                    connection.tell(self._slim(frame))

    def _slim(self, frame: p.ServerFrame) -> p.ServerFrame:
        if isinstance(frame, p.Delta) and len(p.encode(frame)) > self.large_delta_bytes:
            return replace(frame, put=[], drop=[], set={}, ended={}, large=True)
        return frame

    def _offer(self, topic: MemoryTopic, message_ids: Iterable[str]) -> None:
        for message_id in message_ids:
            model = topic.tree.node(message_id).model_id
            offer = p.Offer(topic=topic.tree.topic_id, message_id=message_id, model=model)
            for connection in self.connections:
                if any(_matches(pattern, model) for pattern in connection.models):
                    connection.tell(offer)

    def __repr__(self) -> str:
        return f"<MemoryServer topics={len(self.topics)} connections={len(self.connections)}>"


def _matches(pattern: str, model: str | None) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), model or "") is not None
