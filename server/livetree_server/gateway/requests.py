"""Where a request goes: which right it needs, and who carries it out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from hashlib import sha256
from typing import Any, Final

from livetree.core import protocol as p
from livetree.core.canonical import MAX_INTEGER
from livetree.core.errors import (
    Conflict,
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
from ..topics.listing import listed_entries
from ..topics.ports import MutationKey, StoreError
from ..topics.room import request_hash
from ..topics.rooms import Rooms
from ..topics.watching import Watcher

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
    p.TopicDuplicate: READ,
    p.TopicMarkRead: READ,
    p.TreeGet: READ,
    p.BranchGet: READ,
    p.PathGet: READ,
    p.PathThrough: READ,
    p.MessageGet: READ,
    p.TopicDelete: ADMIN,
    p.TopicRestore: ADMIN,
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
        if isinstance(command, p.TopicsWatch):
            self._watch(command, connection, grant)
            answer(b"{}")
            return
        if isinstance(command, p.BotServe):
            if command.models and not any(level >= WRITE for _, level in grant.patterns):
                raise Forbidden("your token lets you write no topic: there is no work for you")
            self._soon(self._serve(command, connection, grant), answer)
            return
        assert isinstance(command, p.TopicCommand)
        if isinstance(command, p.TopicCreate) and not command.topic:
            command = replace(command, topic=self._new_topic_id(command, grant))
        if not is_id(command.topic):
            if isinstance(command, p.TopicCreate):
                raise Validation(f"topic id {command.topic[:80]!r} is not [A-Za-z0-9_-]{{1,64}}")
            raise NotFound(f"there is no topic {command.topic[:80]!r}")
        grant.require(command.topic, _LEVEL.get(type(command), WRITE))
        if isinstance(command, p.TopicDuplicate):
            self._soon(self._duplicate(command, grant), answer)
        elif isinstance(command, p.TopicMarkRead):
            self._soon(self._mark_read(command, grant.subject), answer)
        elif isinstance(command, p.Mutation):
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

    def _new_topic_id(self, command: p.Mutation, grant: Grant) -> str:
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
        entries, cursor = await listed_entries(
            self._rooms.store, _readable(grant), grant.subject, command
        )
        return p.encode({"topics": entries, "next": cursor})

    def _watch(self, command: p.TopicsWatch, connection: Connection, grant: Grant) -> None:
        if not command.watching:
            self._rooms.watching.forget(connection)
            return
        watcher = Watcher(connection, grant.subject, _readable(grant), command.limit)
        self._rooms.watching.watch(watcher)

    async def _mark_read(self, command: p.TopicMarkRead, subject: str) -> bytes:
        seq = MAX_INTEGER if command.seq is None else command.seq
        seen = await self._rooms.marking.mark(subject, command.topic, seq)
        if seen is None:
            raise NotFound(f"there is no topic {command.topic}", id=command.topic)
        return p.encode({"readSeq": seen.read_seq, "unread": seen.unread})

    async def _duplicate(self, command: p.TopicDuplicate, grant: Grant) -> bytes:
        copy_id = command.copy_id or self._new_topic_id(command, grant)
        if not is_id(copy_id):
            raise Validation(f"topic id {copy_id[:80]!r} is not [A-Za-z0-9_-]{{1,64}}")
        grant.require(copy_id, WRITE)
        if (before := await self._first_copy(command, grant)) is not None:
            return before
        held: asyncio.Future[bytes | LivetreeError] = asyncio.get_running_loop().create_future()
        self._rooms.duplicate(command, copy_id, grant.subject, held.set_result)
        outcome = await held
        if isinstance(outcome, LivetreeError):
            # What it copies may be gone since its first try has succeeded.
            if (before := await self._first_copy(command, grant)) is not None:
                return before
            raise outcome
        return outcome

    async def _first_copy(self, command: p.TopicDuplicate, grant: Grant) -> bytes | None:
        """Return the result of the same mutation, if it happened before."""
        if command.mutation is None:
            return None
        key = MutationKey(grant.subject, command.mutation)
        stored = (await self._rooms.store.mutations([key])).get(key)
        if stored is None:
            return None
        if stored.request_hash != request_hash(command):
            raise Conflict(
                f"mutation id {command.mutation} belongs to another request: use a new one",
                mutation=command.mutation,
            )
        return stored.result

    async def _serve(self, command: p.BotServe, connection: Connection, grant: Grant) -> bytes:
        offers = await self._rooms.store.offers() if command.models else []

        def allowed(topic_id: str) -> bool:
            return grant.level(topic_id) >= WRITE

        self._hub.serve(connection, command.models, allowed, offers)
        return b"{}"


def _readable(grant: Grant) -> Callable[[str], bool]:
    return lambda topic_id: grant.level(topic_id) >= READ
