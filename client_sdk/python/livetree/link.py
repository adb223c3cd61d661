"""A connection that is made anew whenever it is lost: tokens, heartbeat, delays."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeAlias

from .backoff import Backoff, final_error
from .core.errors import LivetreeError
from .core.protocol import Close
from .entropy import Clock, Entropy, Timer, sleep
from .transport import Socket, SocketClosed, Transport

__all__ = ["Link", "Token"]

log = logging.getLogger("livetree.client")

Token: TypeAlias = str | None | Callable[[], str | None | Awaitable[str | None]]
"""A token, or what returns one when it is asked; it may be asked again when one expires."""


class Link:
    """
    Keeps a connection up until the server refuses it for good.

    Args:
        url: The endpoint.
        token: Proof of who it is.
        outgoing: The frames to send, in order; after adding to them, call `flush`.
        greet: Called with the token when a connection is open: it puts the first frame
            into `outgoing`.
        receive: Called with each frame that comes.
        ping: Called when nothing has come for a while: it puts a ping into `outgoing`.
        lost: Called when the connection is over.
        transport: What opens sockets.
        heartbeat: After how many seconds without a frame the server is asked for one,
            and after how many the connection is given up.
        clock: The time.
        entropy: The chance in the delays.

    Attributes:
        connections: How many there were.
        last_error: Why the last one ended, or could not be made.

    """

    def __init__(
        self,
        url: str,
        *,
        token: Token,
        outgoing: deque[str],
        greet: Callable[[str | None], None],
        receive: Callable[[str], None],
        ping: Callable[[], None],
        lost: Callable[[], None],
        transport: Transport,
        heartbeat: tuple[float, float],
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.connections = 0
        self.last_error = ""
        self._url = url
        self._outgoing = outgoing
        self._greet = greet
        self._receive = receive
        self._ping = ping
        self._lost = lost
        self._token_source = token
        self._token: str | None = None
        self._token_known = False
        self._asked_again = False
        self._transport = transport
        self._ping_seconds, self._silence_seconds = heartbeat
        self._clock = clock
        self._entropy = entropy
        self._backoff = Backoff()
        self._send_due = asyncio.Event()
        self._cut: asyncio.Future[str] | None = None
        self._pulse: Timer | None = None
        self._heard_at = 0.0

    async def run(self) -> LivetreeError:
        """
        Connect, and connect again; returns the error that makes this useless.

        Cancelling closes the connection.

        """
        while True:
            closed = await self._connect_once()
            if isinstance(closed, LivetreeError):
                return closed
            await sleep(self._clock, self._backoff.delay(closed, self._entropy.fraction()))

    def flush(self) -> None:
        """Send what is in `outgoing`, as soon as it can be sent."""
        self._send_due.set()

    def welcomed(self) -> None:
        """Take note that the token was good."""
        self._asked_again = False

    def drop(self, reason: str) -> None:
        """Give the present connection up."""
        if self._cut is not None and not self._cut.done():
            self._cut.set_result(reason)

    async def _connect_once(self) -> int | None | LivetreeError:
        """Connect and stay; returns the close code, None if it was never open, or a final error."""
        began = self._clock.monotonic()
        try:
            token = await self._current_token()
            socket = await self._transport.open(self._url)
        except LivetreeError as error:
            return error
        except Exception as error:
            self.last_error = str(error) or repr(error)
            return None
        try:
            closed = await self._converse(socket, token)
        finally:
            self._lost()
            await socket.close()
        self.last_error = str(closed)
        self._backoff.stood(self._clock.monotonic() - began)
        if (
            closed.code == Close.UNAUTHENTICATED
            and callable(self._token_source)
            and not self._asked_again
        ):
            self._asked_again = True
            self._token_known = False
            return None
        return final_error(closed.code, closed.reason) or closed.code

    async def _current_token(self) -> str | None:
        if not self._token_known:
            source = self._token_source
            token = source() if callable(source) else source
            self._token = await token if isawaitable(token) else token
            self._token_known = True
        return self._token

    async def _converse(self, socket: Socket, token: str | None) -> SocketClosed:
        self._cut = cut = asyncio.get_running_loop().create_future()
        self.connections += 1
        self._heard_at = self._clock.monotonic()
        self._greet(token)
        self._send_due.set()
        self._watch(self._ping_seconds)
        reader = asyncio.create_task(self._read(socket))
        sender = asyncio.create_task(self._send(socket))
        try:
            await asyncio.wait([reader, cut], return_when=asyncio.FIRST_COMPLETED)
            return reader.result() if reader.done() else SocketClosed(1006, cut.result())
        finally:
            if self._pulse is not None:
                self._pulse.cancel()
            self._cut = None
            reader.cancel()
            sender.cancel()
            await asyncio.gather(reader, sender, return_exceptions=True)

    async def _read(self, socket: Socket) -> SocketClosed:
        while True:
            try:
                text = await socket.recv()
            except SocketClosed as closed:
                return closed
            except Exception as error:
                return SocketClosed(1006, f"can't receive: {error!r}")
            self._heard_at = self._clock.monotonic()
            try:
                self._receive(text)
            except Exception as error:
                log.exception("a frame could not be carried out: the connection is made anew")
                return SocketClosed(1011, repr(error))

    async def _send(self, socket: Socket) -> None:
        try:
            while True:
                while self._outgoing:
                    await socket.send(self._outgoing.popleft())
                self._send_due.clear()
                await self._send_due.wait()
        except SocketClosed:
            pass  # the reader learns it too, with all that came before
        except Exception as error:
            self.drop(f"can't send: {error!r}")

    def _watch(self, seconds: float) -> None:
        # A timer may come a little early: then the rest is next to nothing.
        self._pulse = self._clock.call_later(max(seconds, 0.01), self._check_pulse)

    def _check_pulse(self) -> None:
        silent = self._clock.monotonic() - self._heard_at
        if silent >= self._silence_seconds:
            self.drop(f"nothing was heard for {silent:.0f} s")
        elif silent >= self._ping_seconds:
            self._ping()
            self._send_due.set()
            self._watch(min(self._ping_seconds, self._silence_seconds - silent))
        else:
            self._watch(self._ping_seconds - silent)

    def statistics(self) -> dict[str, int | str]:
        """Return figures for logs and tests."""
        return {
            "connections": self.connections,
            "attempts": self._backoff.attempts,
            "lastError": self.last_error,
        }

    def __repr__(self) -> str:
        state = "up" if self._cut is not None else "down"
        return f"<Link {self._url} {state} connections={self.connections}>"
