"""Bots: work that the server offers, claimed, answered and written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw

from .client import Client, Token, connect
from .core import protocol as p
from .core.errors import LivetreeError, StaleCursor
from .entropy import Clock, SystemClock
from .oplog import OpLog
from .prompt import Prompt, prompt_messages
from .results import Claimed
from .session import Disconnected
from .transport import Transport
from .writer import Writer

__all__ = ["Bot", "Handler", "Prompt", "Writer"]

log = logging.getLogger("livetree.bots")

Handler: TypeAlias = Callable[[Prompt, Writer], Awaitable[None]]

PAGE: Final = 200
"""How many messages of a path are read at once."""

SERVE_SECONDS: Final = 5.0
"""How long after a refusal the bot asks for offers again."""

_LOST_RACE: Final = ("CONFLICT", "INVALID_OPERATION", "NOT_FOUND", "FORBIDDEN", "STALE_STREAM")

_part_of = msgspec.json.Decoder(dict[str, Any]).decode


class _Served:
    """A handler and the models that it answers for."""

    def __init__(self, models: Sequence[str], handler: Handler, *, resume: bool) -> None:
        self.models = list(models)
        self.handler = handler
        self.resume = resume
        self._patterns = [
            re.compile(".*".join(map(re.escape, model.split("*"))), re.DOTALL) for model in models
        ]

    def serves(self, model: str | None) -> bool:
        return any(pattern.fullmatch(model or "") for pattern in self._patterns)


class Bot:
    """
    A worker that writes replies::

        bot = Bot("ws://127.0.0.1:8400")

        @bot.reply(models=["echo"])
        async def answer(prompt, writer):
            await writer.write(prompt.text)

        bot.run()

    Several bots may serve the same models: each reply is written by one of them. What
    a bot that vanishes leaves is offered again. A handler that raises ends its reply as
    an error, with the text that it has.

    Args:
        url: The server; this and the next ones as in `livetree.connect`.
        token: Proof of who this is.
        client: How it calls itself.
        proxy: A proxy's URL; True takes the environment's.
        transport: What opens sockets, in place of the network.
        concurrency: How many replies are written at a time.
        backlog: How many offers may wait; the server is asked again for those beyond.
        lease_seconds: How long after the last sign of life a reply is given to another.
        grace_seconds: How long running handlers may go on when the bot is stopped; the
            replies of the others are offered to other bots when their leases end.
        clock: The time, for tests.
        random_bytes: The chance in ids and delays, for tests.

    """

    def __init__(
        self,
        url: str,
        *,
        token: Token = None,
        client: str = "livetree-bot",
        proxy: str | Literal[True] | None = None,
        transport: Transport | None = None,
        concurrency: int = 8,
        backlog: int = 1000,
        lease_seconds: float = 15.0,
        grace_seconds: float = 10.0,
        clock: Clock | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock = clock or SystemClock()
        self._connect: Callable[[], Client] = lambda: connect(
            url,
            token=token,
            client=client,
            proxy=proxy,
            transport=transport,
            open_timeout=None,  # a worker waits for its server
            clock=self._clock,
            random_bytes=random_bytes,
        )
        self._concurrency = concurrency
        self._backlog_limit = backlog
        self._lease_ms = round(lease_seconds * 1000)
        self._grace_seconds = grace_seconds
        self._served: list[_Served] = []
        self._client: Client | None = None
        self._over: asyncio.Future[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = False
        self._backlog: deque[tuple[p.Offer, _Served]] = deque()
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._writers: dict[tuple[str, str], Writer] = {}
        self._again: dict[tuple[str, str], p.Offer] = {}
        self._missed = False
        self._counts = dict.fromkeys(("written", "lostRaces", "lost", "failed", "missed"), 0)

    def reply(self, models: Sequence[str], *, resume: bool = False) -> Callable[[Handler], Handler]:
        """
        Make a function the handler for some models; the first that matches is called.

        Args:
            models: Their names; ``*`` stands for any run of characters.
            resume: Whether it writes on behind ``prompt.partial``. Without it, a reply
                that another writer left is emptied and written from the start.

        """

        def register(handler: Handler) -> Handler:
            self._served.append(_Served(models, handler, resume=resume))
            return handler

        return register

    # Starting and stopping --------------------------------------------------------------

    def run(self) -> None:
        """
        Serve until the process is told to stop (SIGINT, SIGTERM).

        Running handlers get ``grace_seconds`` then; a second signal takes those away.

        """
        with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
            asyncio.run(self._run())

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, task.cancel)
        await self.serve()

    async def serve(self) -> None:
        """
        Serve until cancelled; raises the error if the server refuses the bot for good.

        Cancelling stops it as leaving ``async with`` does.

        """
        async with self:
            assert self._over is not None
            await self._over

    async def __aenter__(self) -> Bot:
        """Connect, waiting for the server if need be, and ask for offers."""
        if self._client is not None:
            raise RuntimeError("a bot is started once: make another")
        if not self._served:
            raise RuntimeError("the bot answers for no model: register a handler with @bot.reply")
        self._over = asyncio.get_running_loop().create_future()
        self._client = self._connect()
        self._client.attach(self)
        await self._client.__aenter__()
        self._watcher = asyncio.create_task(self._watch(self._client))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        self._stopping = True
        self._backlog.clear()
        try:
            self._ask_for_offers()  # for none
            await self._finish_running()
        finally:
            running = list(self._running.values())
            for task in running:
                task.cancel()
            if self._watcher is not None:
                self._watcher.cancel()
                running.append(self._watcher)
            try:
                if running:
                    await asyncio.wait(running)
            finally:
                await self._client.__aexit__(None, None, None)
                if self._over is not None and self._over.done() and not self._over.cancelled():
                    self._over.exception()  # `serve` has raised it, or nobody asked

    async def _finish_running(self) -> None:
        if self._grace_seconds <= 0:
            return
        over = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(self._grace_seconds, lambda: _settle(over))
        try:
            while self._running and not over.done():
                await asyncio.wait(
                    [over, *self._running.values()], return_when=asyncio.FIRST_COMPLETED
                )
                await asyncio.sleep(0)  # so that what is done is taken off
        finally:
            timer.cancel()

    async def _watch(self, client: Client) -> None:
        try:
            await client.wait_closed()
        except LivetreeError as error:
            for writer in list(self._writers.values()):
                writer.lose(error)
            self._fail(error)

    def _fail(self, error: LivetreeError) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)

    # What the client tells it -----------------------------------------------------------

    def online(self) -> None:
        """Ask for offers, and send again what wasn't durable. For the client."""
        self._ask_for_offers()
        for writer in self._writers.values():
            writer.online()

    def offline(self) -> None:
        """Wait for the next connection. For the client."""

    def offered(self, offer: p.Offer) -> None:
        """Take an offer, now or when there is room. For the client."""
        key = (offer.topic, offer.message_id)
        served = next((each for each in self._served if each.serves(offer.model)), None)
        if served is None or self._stopping:
            return
        if key in self._running:
            # It may be offered because ours was too slow: it is tried again after that.
            self._again[key] = offer
            return
        if any(key == (each.topic, each.message_id) for each, _ in self._backlog):
            return
        if len(self._backlog) >= self._backlog_limit:
            self._counts["missed"] += 1
            self._missed = True
            return
        self._backlog.append((offer, served))
        self._dispatch()

    def acknowledged(self, ack: p.StreamAck) -> None:
        """Tell a writer that ops have arrived. For the client."""
        writer = self._writers.get((ack.topic, ack.message_id))
        if writer is not None:
            writer.acknowledged(ack)

    def _ask_for_offers(self) -> None:
        if self._client is None or not self._client.is_online:
            return
        models = [model for served in self._served for model in served.models]
        command = p.BotServe(models=[] if self._stopping else models)
        with contextlib.suppress(LivetreeError):
            self._client.post(command, self._serving)

    def _serving(self, answer: Raw | LivetreeError) -> None:
        if not isinstance(answer, LivetreeError) or isinstance(answer, Disconnected):
            return
        if answer.code in ("BUSY", "UNAVAILABLE", "RATE_LIMITED", "INTERNAL"):
            self._clock.call_later(SERVE_SECONDS, self._ask_for_offers)
        else:
            self._fail(answer)

    # Work -------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while self._backlog and len(self._running) < self._concurrency:
            offer, served = self._backlog.popleft()
            key = (offer.topic, offer.message_id)
            task = asyncio.create_task(self._work(offer, served), name=f"reply {offer.message_id}")
            self._running[key] = task
            task.add_done_callback(partial(self._worked, key))
        if self._missed and not self._backlog:
            self._missed = False
            self._ask_for_offers()

    def _worked(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        self._running.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("reply %s: %s", key[1], error, exc_info=error)
        again = self._again.pop(key, None)
        if self._stopping:
            return
        if again is not None:
            self.offered(again)
        self._dispatch()

    async def _work(self, offer: p.Offer, served: _Served) -> None:
        client = self._client
        assert client is not None
        command = p.StreamClaim(
            topic=offer.topic, message_id=offer.message_id, lease_ms=self._lease_ms
        )
        try:
            claim = await client.ask(command, Claimed)
        except LivetreeError as error:
            if error.code not in _LOST_RACE:
                raise
            self._counts["lostRaces"] += 1
            return
        n, parts = await self._left_by_another(client, offer, claim)
        writer = Writer(
            client,
            topic_id=offer.topic,
            message_id=offer.message_id,
            epoch=claim.epoch,
            log=OpLog(n, parts, resume=served.resume),
            lease_ms=self._lease_ms,
            clock=self._clock,
        )
        key = (offer.topic, offer.message_id)
        self._writers[key] = writer
        try:
            await self._write(client, offer, served, writer, parts)
        finally:
            writer.close()
            if self._writers.get(key) is writer:
                del self._writers[key]

    async def _left_by_another(
        self, client: Client, offer: p.Offer, claim: Claimed
    ) -> tuple[int, list[dict[str, Any]]]:
        if claim.n is not UNSET and claim.parts is not UNSET:
            return claim.n, [_part_of(part) for part in claim.parts]
        # The answer to a repeated claim doesn't tell: what is there is seen by looking.
        async with client.open(offer.topic) as live:
            reply = live.mirror.replies.get(offer.message_id)
            return (reply.n, reply.parts()) if reply is not None else (0, [])

    async def _write(
        self,
        client: Client,
        offer: p.Offer,
        served: _Served,
        writer: Writer,
        parts: list[dict[str, Any]],
    ) -> None:
        handling = asyncio.create_task(self._handle(client, offer, served, writer, parts))
        writer.on_lost = handling.cancel
        try:
            await asyncio.wait([handling])
        except asyncio.CancelledError:
            handling.cancel()
            await asyncio.wait([handling])
            raise
        failed = handling.cancelled() or handling.exception() is not None
        if writer.lost is not None:
            self._counts["lost"] += 1
            return
        if writer.failed is not None:
            log.error("reply %s: its text was refused: %s", offer.message_id, writer.failed)
        elif failed and not handling.cancelled():
            log.error(
                "the handler for reply %s failed", offer.message_id, exc_info=handling.exception()
            )
        if await writer.finish("error" if failed else "success"):
            self._counts["failed" if failed or writer.failed else "written"] += 1
        else:
            self._counts["lost"] += 1

    async def _handle(
        self,
        client: Client,
        offer: p.Offer,
        served: _Served,
        writer: Writer,
        parts: list[dict[str, Any]],
    ) -> None:
        path = await self._path(client, offer, writer.epoch)
        prompt = Prompt(
            topic_id=offer.topic,
            message_id=offer.message_id,
            model=offer.model,
            path=path,
            messages=prompt_messages(path),
            partial=parts,
        )
        await served.handler(prompt, writer)

    async def _path(self, client: Client, offer: p.Offer, seq: int) -> list[p.Node]:
        """Read the messages above a reply, newest page first."""
        while True:
            try:
                pages: list[list[p.Node]] = []
                cursor: str | None = None
                while True:
                    page = await client.branch(
                        offer.topic,
                        offer.message_id,
                        cursor=cursor,
                        limit=PAGE,
                        include_siblings=False,
                        min_seq=seq,
                    )
                    pages.append([item.node for item in page.items])
                    cursor = page.next
                    if cursor is None:
                        break
            except StaleCursor:
                continue  # the path has changed: from its end again
            path = [node for nodes in reversed(pages) for node in nodes]
            return [node for node in path if node.id != offer.message_id]

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {**self._counts, "running": len(self._running), "backlog": len(self._backlog)}

    def __repr__(self) -> str:
        return f"<Bot {self._client!r} running={len(self._running)} backlog={len(self._backlog)}>"


def _settle(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
