"""Where a request goes: which right it needs, and who carries it out."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from hashlib import sha256
from typing import Any, Final

from livetree.core import protocol as p
from livetree.core.errors import (
    Forbidden,
    Internal,
    LivetreeError,
    NotFound,
    TooLarge,
    Unavailable,
    Validation,
)
from livetree.core.ids import is_id
from msgspec.structs import replace

from ..auth import ADMIN, READ, WRITE, Grant
from ..hub.connection import Connection
from ..hub.hub import Hub
from ..topics.ports import MutationKey, StoreError, TopicRow
from ..topics.rooms import Rooms

__all__ = ["MAX_SUBSCRIPTIONS", "Answer", "Requests"]

log = logging.getLogger("livetree.gateway")

MAX_SUBSCRIPTIONS: Final = 200
"""How many topics one connection may have open."""

Answer = Callable[[bytes | LivetreeError], None]

_LEVEL: Final[dict[type[p.Command], int]] = {
    p.TopicOpen: READ,
    p.TopicClose: READ,
    p.TopicGet: READ,
    p.TopicDeltas: READ,
    p.TreeGet: READ,
    p.BranchGet: READ,
    p.MessageGet: READ,
    p.TopicDelete: ADMIN,
}


class Requests:
    """
    Carries out the requests of all connections.

    Args:
        rooms: The topics.
        hub: The workers.
        spawn: Runs what isn't about one topic, to its end even while stopping.

    """

    def __init__(
        self, rooms: Rooms, hub: Hub, spawn: Callable[[Coroutine[Any, Any, None], str], None]
    ) -> None:
        self._rooms = rooms
        self._hub = hub
        self._spawn = spawn

    def carry_out(
        self, command: p.Command, connection: Connection, grant: Grant, answer: Answer
    ) -> None:
        """
        Start a request; `answer` is called once, now or later.

        Refusals that are known at once are answered at once.

        """
        try:
            self._start(command, connection, grant, answer)
        except LivetreeError as error:
            answer(error)

    def _start(
        self, command: p.Command, connection: Connection, grant: Grant, answer: Answer
    ) -> None:
        if isinstance(command, p.TopicList):
            self._soon(self._topics(command, grant), answer)
            return
        if isinstance(command, p.BotServe):
            if command.models and not any(level >= WRITE for _, level in grant.patterns):
                raise Forbidden("your token lets you write no topic: there is no work for you")
            self._soon(self._serve(command, connection, grant), answer)
            return
        assert isinstance(command, p.TopicCommand)
        if isinstance(command, p.TopicCreate) and not command.topic:
            command = replace(command, topic=self._topic_id(command, grant))
        if not is_id(command.topic):
            if isinstance(command, p.TopicCreate):
                raise Validation(f"topic id {command.topic[:80]!r} is not [A-Za-z0-9_-]{{1,64}}")
            raise NotFound(f"there is no topic {command.topic[:80]!r}")
        grant.require(command.topic, _LEVEL.get(type(command), WRITE))
        if isinstance(command, p.Mutation):
            self._rooms.command(command, grant.subject, answer)
        elif isinstance(command, p.StreamAppend):
            self._rooms.append(command, answer)
        elif isinstance(command, p.StreamRenew):
            self._rooms.renew(command, answer)
        elif isinstance(command, p.TopicOpen):
            self.open(command, connection, answer)
        elif isinstance(command, p.TopicClose):
            self._rooms.close(command.topic, connection, answer)
        else:
            self._rooms.ask(command, command.topic, answer)

    def _topic_id(self, command: p.TopicCreate, grant: Grant) -> str:
        """Return a new topic's id: for one mutation always the same, however often it comes."""
        if command.mutation is None:
            return self._rooms.new_id()
        name = f"{grant.subject}\n{command.mutation}".encode()
        return f"t-{sha256(name).hexdigest()[:32]}"

    def open(self, command: p.TopicOpen | p.Resume, connection: Connection, answer: Answer) -> None:
        """Subscribe a connection; raises `TooLarge` over `MAX_SUBSCRIPTIONS`, and `NotFound`."""
        if not is_id(command.topic):
            raise NotFound(f"there is no topic {command.topic[:80]!r}")
        open_now = connection.topics
        if len(open_now) >= MAX_SUBSCRIPTIONS and command.topic not in open_now:
            raise TooLarge(
                f"this connection has {len(open_now)} topics open: close some first",
                limit=MAX_SUBSCRIPTIONS,
            )
        # Counted from now on: many may be asked for before the first is opened.
        fresh = command.topic not in open_now
        open_now.add(command.topic)

        def opened(outcome: bytes | LivetreeError) -> None:
            if fresh and isinstance(outcome, LivetreeError):
                open_now.discard(command.topic)
            answer(outcome)

        try:
            self._rooms.open(command, connection, opened)
        except LivetreeError:
            if fresh:
                open_now.discard(command.topic)
            raise

    async def done(self, subject: str, mutations: list[str]) -> dict[str, bytes]:
        """Return the results of those mutations that happened."""
        if not mutations:
            return {}
        keys = [MutationKey(subject, mutation) for mutation in mutations]
        stored = await self._rooms.store.mutations(keys)
        return {key.mutation: found.result for key, found in stored.items()}

    def _soon(self, work: Awaitable[bytes], answer: Answer) -> None:
        async def run() -> None:
            try:
                answer(await work)
            except LivetreeError as error:
                answer(error)
            except StoreError as error:
                log.warning("a request can't be answered: %s", error)
                answer(Unavailable("the database can't be read: repeat in a moment"))
            except Exception:
                log.exception("a request failed")
                answer(Internal("the server failed; its log says more"))

        self._spawn(run(), "request")

    async def _topics(self, command: p.TopicList, grant: Grant) -> bytes:
        cursor = command.cursor
        while True:
            rows, cursor = await self._rooms.store.topics(
                cursor=cursor, limit=command.limit, name=command.name
            )
            found = [row for row in rows if grant.level(row.topic_id) >= READ]
            # A page may be short where rows are not for this reader, but never empty amid the list.
            if cursor is None or found:
                return p.encode({"topics": [_info(row) for row in found], "next": cursor})

    async def _serve(self, command: p.BotServe, connection: Connection, grant: Grant) -> bytes:
        offers = await self._rooms.store.offers() if command.models else []

        def allowed(topic_id: str) -> bool:
            return grant.level(topic_id) >= WRITE

        self._hub.serve(connection, command.models, allowed, offers)
        return b"{}"


def _info(row: TopicRow) -> p.TopicInfo:
    return p.TopicInfo(
        id=row.topic_id,
        root_id=row.root_id,
        name=row.name,
        seq=row.seq,
        commit=row.commit,
        active_node_id=row.active_node_id,
        metadata=row.metadata,
        created_at=row.created_at,
        last_activity_at=row.last_activity_at,
    )
