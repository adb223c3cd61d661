"""Writing one reply: ops go out in order, wait to be received, and are sent again if lost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Raw

from .client import Client
from .commands import json_of
from .core import protocol as p
from .core.errors import Internal, InvalidOperation, LivetreeError, StaleStream
from .entropy import Clock, Timer
from .oplog import OpLog
from .session import Disconnected, Request

__all__ = ["Writer"]

BUSY_SECONDS: Final = 0.25
"""How long a server that is busy is given before ops are sent to it again."""

ATTEMPTS: Final = 10
"""How often a reply is finished that the server says it hasn't all of."""

_ENDS: Final = ("STALE_STREAM", "NOT_FOUND", "FORBIDDEN")
"""Refusals after which the reply is no longer ours."""

_LATER: Final = ("BUSY", "UNAVAILABLE", "RATE_LIMITED")


class Writer:
    """
    The pen of one reply, given to a handler.

    Every method waits while more than a little is still on its way to the server, and
    raises `StaleStream` when the reply has been stopped or given to another; the
    handler is then cancelled too. Cancelling a call loses nothing of what was given.

    Attributes:
        topic_id: The topic.
        message_id: The reply.
        epoch: The claim under which it is written.
        stats: What to store with it as ``stats`` when it is finished: a JSON object.
        timing: The same, as ``timing``.

    """

    def __init__(
        self,
        client: Client,
        *,
        topic_id: str,
        message_id: str,
        epoch: int,
        log: OpLog,
        lease_ms: int,
        clock: Clock,
    ) -> None:
        self.topic_id = topic_id
        self.message_id = message_id
        self.epoch = epoch
        self.stats: dict[str, Any] | None = None
        self.timing: dict[str, Any] | None = None
        self.lost: LivetreeError | None = None
        self.failed: LivetreeError | None = None
        self.on_lost: Callable[[], object] = lambda: None
        self._client = client
        self._log = log
        self._lease_ms = lease_ms
        self._clock = clock
        self._kept_at = clock.monotonic()
        self._renewal: Timer | None = None
        self._posted: deque[tuple[int, Request]] = deque()
        self._generation = 0
        self._moved = asyncio.Event()
        self._renew_later()

    # For the handler --------------------------------------------------------------------

    async def write(self, text: str) -> None:
        """Append text."""
        self._raise_if_over()
        self._log.write(text)
        await self._sent()

    async def reasoning(self, text: str) -> None:
        """Append to what the model thinks, a ``reasoning`` part."""
        self._raise_if_over()
        self._log.write(text, "reasoning")
        await self._sent()

    async def put_part(self, part: dict[str, Any], *, at: int | None = None) -> int:
        """
        Add a part, or replace the one at an index; returns its index.

        Raises:
            ValueError: If it is no JSON object with a ``type``, or there is no such index.

        """
        self._raise_if_over()
        index = self._log.put(part, at)
        await self._sent()
        return index

    async def _sent(self) -> None:
        self._pump()
        await self._until(lambda: not self._log.is_full)
        self._raise_if_over()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self.lost is None and self.failed is None and not condition():
            self._moved.clear()
            await self._moved.wait()

    def _raise_if_over(self) -> None:
        if (error := self.lost or self.failed) is not None:
            raise error.with_traceback(None)

    # For the bot ------------------------------------------------------------------------

    async def finish(self, status: p.Ended) -> bool:
        """
        End the reply after all that was written; tells whether it was ours to end.

        Ops that the server refused are left out, and the reply then ends as an error.

        """
        mutation = self._client.new_id()
        self._log.flush()
        for _ in range(ATTEMPTS):
            self._pump()
            await self._until(lambda: self._log.all_received)
            if self.lost is not None:
                return False
            if self.failed is not None and status == "success":
                status = "error"
            command = p.StreamFinish(
                topic=self.topic_id,
                mutation=mutation,
                message_id=self.message_id,
                epoch=self.epoch,
                n=self._log.n,
                status=status,
                stats=None if self.stats is None else json_of(self.stats),
                timing=None if self.timing is None else json_of(self.timing),
            )
            try:
                await self._client.request(command)
            except InvalidOperation as error:
                # The server has lost some since, as it may when it is restarted.
                if not self._rewind(error.details.get("received")):
                    raise
            except LivetreeError as error:
                if error.code not in _ENDS:
                    raise
                self.lose(error)
                return False
            else:
                return True
        raise Internal(f"reply {self.message_id} could not be finished: ops keep missing")

    def online(self) -> None:
        """Send again, on a new connection, what isn't known to be durable."""
        self._generation += 1
        self._posted.clear()
        self._log.rewind()
        if self._log.all_received:
            self._renew()
        self._pump()

    def acknowledged(self, ack: p.StreamAck) -> None:
        """Take note of what the server has."""
        if ack.epoch != self.epoch or self.lost is not None:
            return
        if not self._log.acknowledge(ack.received, ack.durable):
            self.lose(StaleStream(f"reply {self.message_id} has ops of another writer"))
            return
        self._kept_at = self._clock.monotonic()
        while self._posted and self._posted[0][0] <= ack.received:
            self._client.settle(self._posted.popleft()[1])
        self._pump()
        self._moved.set()

    def close(self) -> None:
        """Let go of it: nothing more is sent, and the lease is left to end."""
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        for _, request in self._posted:
            self._client.settle(request)
        self._posted.clear()
        self._generation += 1
        if self.lost is None:
            self.lost = StaleStream(f"reply {self.message_id} is no longer written here")
        self._moved.set()

    def _pump(self) -> None:
        while self.lost is None and self.failed is None and self._client.is_online:
            append = self._log.next_append()
            if append is None:
                return
            command = p.StreamAppend(
                topic=self.topic_id,
                message_id=self.message_id,
                epoch=self.epoch,
                first=append.first,
                ops=append.ops,
            )
            try:
                request = self._client.post(command, partial(self._refused, self._generation))
            except LivetreeError as error:
                self._refused(self._generation, error)
                return
            self._posted.append((append.last, request))

    def _refused(self, generation: int, answer: Raw | LivetreeError) -> None:
        if generation != self._generation or not isinstance(answer, LivetreeError):
            return  # of ops that are sent again already
        if isinstance(answer, Disconnected):
            return  # they are sent again when there is a connection
        if isinstance(answer, InvalidOperation) and self._rewind(answer.details.get("received")):
            self._pump()
        elif answer.code in _LATER:
            self._rewind(self._log.received)
            generation = self._generation
            self._clock.call_later(BUSY_SECONDS, lambda: self._pump_again(generation))
        elif answer.code in _ENDS:
            self.lose(answer)
        else:
            self._forget_posted()
            self._log.give_up_unreceived()
            self.failed = answer
            self._moved.set()

    def _pump_again(self, generation: int) -> None:
        if generation == self._generation:
            self._pump()

    def _rewind(self, received: Any) -> bool:
        if not isinstance(received, int) or not self._log.rewind(received):
            return False
        self._forget_posted()
        return True

    def _forget_posted(self) -> None:
        self._generation += 1
        for _, request in self._posted:
            self._client.settle(request)
        self._posted.clear()

    def lose(self, error: LivetreeError) -> None:
        """Stop writing, and the handler with it: the reply is no longer ours."""
        if self.lost is None:
            self.lost = error
            self._moved.set()
            self.on_lost()

    # The lease --------------------------------------------------------------------------

    def _renew_later(self) -> None:
        self._renewal = self._clock.call_later(self._lease_ms / 3000, self._renew_if_due)

    def _renew_if_due(self) -> None:
        self._renew_later()
        # An append that arrived has kept it as well.
        if self._clock.monotonic() - self._kept_at >= self._lease_ms / 6000:
            self._renew()

    def _renew(self) -> None:
        if not self._client.is_online or self.lost is not None:
            return
        command = p.StreamRenew(
            topic=self.topic_id,
            message_id=self.message_id,
            epoch=self.epoch,
            lease_ms=self._lease_ms,
        )
        try:
            self._client.post(command, self._renewed)
        except LivetreeError as error:
            self._renewed(error)

    def _renewed(self, answer: Raw | LivetreeError) -> None:
        if not isinstance(answer, LivetreeError):
            self._kept_at = self._clock.monotonic()
        elif answer.code in _ENDS:
            self.lose(answer)

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {**self._log.statistics(), "posted": len(self._posted)}

    def __repr__(self) -> str:
        state = "lost" if self.lost else "failed" if self.failed else "writing"
        return f"<Writer {self.message_id} epoch={self.epoch} {state} {self._log!r}>"
