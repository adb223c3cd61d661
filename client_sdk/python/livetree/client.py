"""One connection to a server, kept up: hello, resume, requests, open topics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct

from .commands import Commands
from .core import protocol as p
from .core.errors import Internal, LivetreeError, Unavailable
from .entropy import Clock, Entropy, SystemClock
from .link import Link, Token
from .live_topic import LiveTopic
from .mirror import CONTENT_BYTES
from .session import Answered, ClientClosed, Outcome, Request, Retry, Session
from .subscriptions import Subscriptions
from .topic_list import TopicList, Watch
from .transport import Transport, WebSocketTransport, endpoint_of

__all__ = ["Client", "Token", "Worker", "connect"]

log = logging.getLogger("livetree.client")

T = TypeVar("T")

PING_SECONDS: Final = 20.0
SILENCE_SECONDS: Final = 45.0


class Worker(Protocol):
    """Who a client tells what concerns the writing of replies."""

    def online(self) -> None:
        """There is a connection, another than before."""

    def offline(self) -> None:
        """The connection is lost."""

    def offered(self, offer: p.Offer) -> None:
        """A reply may be claimed."""

    def acknowledged(self, ack: p.StreamAck) -> None:
        """Ops have arrived."""


class _About(Struct):
    """What is read of a frame that can't be read whole."""

    type: str = ""
    topic: str = ""
    re: int | None = None


_about = msgspec.json.Decoder(_About).decode


def connect(
    url: str,
    *,
    token: Token = None,
    client: str = "",
    proxy: str | Literal[True] | None = None,
    transport: Transport | None = None,
    open_timeout: float | None = 10.0,
    request_timeout: float | None = None,
    ping_seconds: float = PING_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
    max_pending: int = 1000,
    content_bytes: int = CONTENT_BYTES,
    clock: Clock | None = None,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Client:
    """
    Return a client; ``async with`` connects it and keeps it connected.

    Args:
        url: The server, as in ``ws://127.0.0.1:8400``; without a path, ``/v1/ws``.
        token: Proof of who this is. A function, which may be async, is asked at first
            and once more each time the server refuses what it gave. A `LivetreeError`
            that it raises ends the client; after any other exception it is tried again.
        client: How this program calls itself, for the server's log.
        proxy: A proxy's URL; True takes the environment's, None connects directly.
        transport: What opens sockets, in place of the network.
        open_timeout: Seconds until ``async with`` gives up on a server that can't be
            reached; None tries for ever.
        request_timeout: Seconds until a request raises `TimeoutError`; None waits.
        ping_seconds: After this long without a frame the server is asked for one.
        silence_seconds: After this long the connection is given up and made anew.
        max_pending: How many requests may wait; beyond it they raise `Busy`.
        content_bytes: How much message content each open topic keeps.
        clock: The time, for tests.
        random_bytes: The chance in ids and delays, for tests.

    Raises:
        ValueError: If the URL is none.

    """
    return Client(
        endpoint_of(url),
        token=token,
        transport=transport or WebSocketTransport(proxy=proxy),
        session=Session(client=client, max_pending=max_pending),
        open_timeout=open_timeout,
        request_timeout=request_timeout,
        heartbeat=(ping_seconds, silence_seconds),
        content_bytes=content_bytes,
        clock=clock or SystemClock(),
        random_bytes=random_bytes,
    )


class Client(Commands):
    """
    A connection that comes back by itself; made by `connect`.

    Requests that wait when it is lost are sent again, each to happen once. It ends for
    good when it is left, or when the server refuses it in a way that trying again can't
    mend: then what waits, and every later call, raises that error.

    Use it on one event loop. Cancelling any call leaves it usable.

    """

    def __init__(
        self,
        url: str,
        *,
        token: Token,
        transport: Transport,
        session: Session,
        open_timeout: float | None,
        request_timeout: float | None,
        heartbeat: tuple[float, float],
        content_bytes: int,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._url = url
        self._session = session
        self._open_timeout = open_timeout
        self._request_timeout = request_timeout
        self._clock = clock
        self._entropy = Entropy(clock, random_bytes)
        self._link = Link(
            url,
            token=token,
            outgoing=session.outgoing,
            greet=self._greet,
            receive=self._receive,
            ping=self._ping,
            lost=self._lost,
            transport=transport,
            heartbeat=heartbeat,
            clock=clock,
            entropy=self._entropy,
        )
        self._answers: dict[int, Callable[[Raw | LivetreeError], None]] = {}
        self._subscriptions = Subscriptions(self, self.post, clock, content_bytes)
        self._watch = Watch(self, self.post, clock)
        self._resumed: set[str] = set()
        self._worker: Worker | None = None
        self._task: asyncio.Task[None] | None = None
        self._over: LivetreeError | None = None
        self._first_welcome: asyncio.Future[None] | None = None
        self._unreadable = 0

    # Starting and stopping --------------------------------------------------------------

    async def __aenter__(self) -> Client:
        """
        Connect.

        Raises:
            LivetreeError: If the server refuses the client.
            Unavailable: If it can't be reached within ``open_timeout``.

        """
        if self._task is not None or self._over is not None:
            raise RuntimeError("a client connects once: make another with livetree.connect()")
        self._first_welcome = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"livetree {self._url}")
        timer = None
        if self._open_timeout is not None:
            timer = self._clock.call_later(self._open_timeout, self._not_reached)
        try:
            await self._first_welcome
        except BaseException:
            await self._stop()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def _not_reached(self) -> None:
        if self._first_welcome is not None and not self._first_welcome.done():
            self._first_welcome.set_exception(
                Unavailable(
                    f"{self._url} was not reached within {self._open_timeout} s: "
                    f"{self._link.last_error or 'no answer'}"
                )
            )

    async def _stop(self) -> None:
        task = self._task
        assert task is not None
        task.cancel()
        try:
            await asyncio.wait([task])
        finally:
            self._end(ClientClosed("the client was closed"), error_of_topics=None)

    async def wait_closed(self) -> None:
        """Wait until the client ends; raises the error if the server refused it for good."""
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._over is not None and not isinstance(self._over, ClientClosed):
            raise self._over.with_traceback(None)

    @property
    def is_online(self) -> bool:
        """Whether there is a connection now that the server has welcomed."""
        return self._session.online

    @property
    def welcome(self) -> p.Welcome | None:
        """What the server said to the present connection: subject, limits, its name."""
        return self._session.welcome

    # Requests ---------------------------------------------------------------------------

    def new_id(self) -> str:
        """Make an id for a message, a topic or a mutation."""
        return self._entropy.new_id()

    async def ask(self, command: p.Command, kind: type[T]) -> T:
        """
        Send a command, at once or when there is a connection, and return its result.

        Raises:
            LivetreeError: What the server refuses with.
            Busy: If too many requests wait.
            ClientClosed: If the client ends first.
            TimeoutError: After ``request_timeout``; the command may happen all the same.

        """
        if isinstance(command, p.Mutation) and command.mutation is None:
            command = msgspec.structs.replace(command, mutation=self.new_id())
        answered: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        request = self.post(command, partial(_settle, answered))
        timer = None
        if self._request_timeout is not None:
            timer = self._clock.call_later(self._request_timeout, partial(_time_out, answered))
        try:
            raw = await answered
        except BaseException:
            self._answers.pop(request.id, None)
            self._session.abandon(request)
            self._link.flush()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise Internal(f"the server's answer can't be read: {error}") from None

    def post(self, command: p.Command, answer: Callable[[Raw | LivetreeError], None]) -> Request:
        """
        Send a command and have its answer told to a function; for mirrors and bots.

        Raises:
            Busy: If too many requests wait.
            Disconnected: If it belongs to a connection, and there is none.

        """
        if self._over is not None:
            raise self._over.with_traceback(None)
        if self._task is None:
            raise RuntimeError("the client isn't connected: enter `async with` first")
        request = self._session.add(command)
        self._answers[request.id] = answer
        self._link.flush()
        return request

    def settle(self, request: Request) -> None:
        """Forget a posted request: it was answered in another way."""
        self._answers.pop(request.id, None)
        self._session.settle(request)

    def attach(self, worker: Worker) -> None:
        """Tell a worker from now on what concerns replies; for bots."""
        self._worker = worker
        if self.is_online:
            worker.online()

    @contextlib.asynccontextmanager
    async def open(self, topic_id: str) -> AsyncIterator[LiveTopic]:
        """
        Open a topic: ``async with client.open(topic_id) as live``.

        It is up to date when the block begins. Blocks that overlap share one mirror.

        Raises:
            NotFound: If there is no such topic.
            Forbidden: If the token doesn't allow it.

        """
        if self._over is not None:
            raise self._over.with_traceback(None)
        live = self._subscriptions.enter(topic_id)
        try:
            await live.wait_synced()
            yield live
        finally:
            self._subscriptions.leave(live)

    @contextlib.asynccontextmanager
    async def watch_topics(self, *, limit: int = 50) -> AsyncIterator[TopicList]:
        """
        Watch the list of topics: ``async with client.watch_topics() as topics``.

        It is up to date when the block begins. Blocks that overlap share one list.

        Args:
            limit: How many topics its first page has, up to 200; see `TopicList`.

        Raises:
            Validation: If there is no such limit.

        """
        if self._over is not None:
            raise self._over.with_traceback(None)
        topics = self._watch.enter(limit)
        try:
            await topics.wait_synced()
            yield topics
        finally:
            self._watch.leave(topics)

    # The connection ---------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            error = await self._link.run()
        except Exception as fault:
            log.exception("the client has failed")
            error = Internal(f"the client has failed: {fault!r}")
        self._end(error, error_of_topics=error)

    def _greet(self, token: str | None) -> None:
        self._resumed = self._session.hello(token, self._subscriptions.resumes())

    def _ping(self) -> None:
        if self.is_online:
            self._session.ping()

    def _lost(self) -> None:
        # First, so that what the session gives up is not taken for the server's refusal.
        self._subscriptions.disconnected()
        self._watch.disconnected()
        self._carry_out(self._session.lost())
        if self._worker is not None:
            self._worker.offline()

    # Frames -----------------------------------------------------------------------------

    def _receive(self, text: str) -> None:
        try:
            frame: p.ServerFrame = p.decode_frame(text)
        except (msgspec.DecodeError, RecursionError) as error:
            self._receive_unreadable(text, error)
        else:
            self._carry_out(self._session.receive(frame))
        if self._session.outgoing:
            self._link.flush()

    def _receive_unreadable(self, text: str, error: Exception) -> None:
        """Read as much of a frame as there is: only what it concerns starts over."""
        self._unreadable += 1
        try:
            about = _about(text)
        except (msgspec.DecodeError, RecursionError):
            self._link.drop(f"the server sent what is no frame: {error}")
            return
        if about.re is not None:
            answer = Internal(f"the server's answer can't be read: {error}")
            self._carry_out(self._session.failed(about.re, answer))
        elif about.type in ("snapshot", "delta", "synced", "stream"):
            log.warning("topic %s: a frame can't be read: %s", about.topic, error)
            self._subscriptions.unreadable(about.topic, error)
        elif about.type in ("topics", "read"):
            log.warning("the list of topics: a frame can't be read: %s", error)
            self._watch.unreadable()
        # Frames of a kind that is not known here are a newer server's.

    def _carry_out(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Answered():
                    answer = self._answers.pop(outcome.request.id, None)
                    if answer is not None:
                        answer(outcome.answer)
                case Retry():
                    self._clock.call_later(outcome.delay, partial(self._retry, outcome.request))
                case p.Welcome():
                    self._welcomed()
                case p.StreamAck():
                    if self._worker is not None:
                        self._worker.acknowledged(outcome)
                case p.Offer():
                    if self._worker is not None:
                        self._worker.offered(outcome)
                case p.Topics() | p.ReadPosition():
                    self._watch.receive(outcome)
                case _:
                    self._subscriptions.receive(outcome)

    def _retry(self, request: Request) -> None:
        self._session.retry(request)
        self._link.flush()

    def _welcomed(self) -> None:
        self._link.welcomed()
        if self._first_welcome is not None and not self._first_welcome.done():
            self._first_welcome.set_result(None)
        self._subscriptions.welcomed(self._resumed)
        self._watch.welcomed()
        if self._worker is not None:
            self._worker.online()

    def _end(self, error: LivetreeError, *, error_of_topics: LivetreeError | None) -> None:
        if self._over is not None:
            return
        self._over = error
        self._carry_out(self._session.close(error))
        self._subscriptions.end(error_of_topics)
        self._watch.end(error_of_topics)
        if self._first_welcome is not None and not self._first_welcome.done():
            self._first_welcome.set_exception(error)
            self._first_welcome.exception()  # read here, in case nobody waits for it

    def statistics(self) -> dict[str, Any]:
        """Return figures for logs and tests."""
        return {
            **self._session.statistics(),
            **self._subscriptions.statistics(),
            **self._watch.statistics(),
            **self._link.statistics(),
            "unreadable": self._unreadable,
        }

    def __repr__(self) -> str:
        state = "ended" if self._over else "online" if self.is_online else "offline"
        return f"<Client {self._url} {state} topics={len(self._subscriptions)}>"


def _settle(answered: asyncio.Future[Raw], answer: Raw | LivetreeError) -> None:
    if answered.done():
        return
    if isinstance(answer, LivetreeError):
        answered.set_exception(answer)
    else:
        answered.set_result(answer)


def _time_out(answered: asyncio.Future[Raw]) -> None:
    if not answered.done():
        answered.set_exception(TimeoutError("no answer in time: the command may happen yet"))
