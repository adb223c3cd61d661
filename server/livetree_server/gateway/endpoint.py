"""
One WebSocket: bytes in, requests out, answers back.

A protocol class for uvicorn's ``ws=`` on websockets' sans-I/O core. It has no task and
no queue of its own: what arrives is carried out as it is parsed, and when too much is
unanswered the transport is not read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast
from urllib.parse import urlsplit

from livetree.core import protocol as p
from livetree.core.content import MAX_DATA_BYTES
from livetree.core.errors import LivetreeError, Unauthenticated
from msgspec import Raw, Struct
from websockets.exceptions import PayloadTooBig
from websockets.frames import Close as CloseFrame
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from ..auth import READ, Authenticator, Grant
from ..hub.connection import HIGH_WATER, Connection
from ..hub.hub import Hub
from .requests import MAX_SUBSCRIPTIONS, Requests
from .session import HELLO_BYTES, Bad, Closing, Session

__all__ = ["Endpoint", "Gateway"]

log = logging.getLogger("livetree.gateway")

MESSAGE_LENGTH: Final = 1_000
DETAIL_LENGTH: Final = 200
"""How many characters of an error cross the wire."""

PATHS: Final = ("/", "/v1/ws")
MAX_FRAME_BYTES: Final = 2 * 1024 * 1024
MAX_UNANSWERED: Final = 256
HELLO_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
EXPIRY_SECONDS: Final = 24 * 60 * 60.0
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}


class Gateway(Struct, kw_only=True):
    """
    What all endpoints share.

    Attributes:
        hub, requests: Where connections and requests go.
        auth: Who may come in.
        origins: Origins of browsers that may connect besides the server's own.
        version: The server's version, told in ``welcome``.
        clock: Milliseconds since the epoch.
        new_id: Makes connection ids.
        spawn: Runs what an endpoint must wait for, and is waited for at the end.

    """

    hub: Hub
    requests: Requests
    auth: Authenticator
    version: str
    clock: Callable[[], int]
    new_id: Callable[[], str]
    spawn: Callable[[Coroutine[Any, Any, None], str], None]
    origins: frozenset[str] = frozenset()

    def overloaded(self, connection: Connection) -> None:
        """End a connection that reads too slowly."""
        endpoint = connection.transport.get_protocol()
        if isinstance(endpoint, Endpoint):
            endpoint.end(p.Close.OVERLOADED, "you read too slowly: come back when you can")


class Endpoint(asyncio.Protocol):
    """
    One connection, from its handshake to its close.

    Args:
        gateway: What it shares with the others.
        connections: uvicorn's set of open protocols; it waits for those on shutdown.

    """

    def __init__(self, gateway: Gateway, connections: set[Any]) -> None:
        self._gateway = gateway
        self._connections = connections
        self._session = Session()
        self._grant: Grant | None = None
        self._unanswered = 0
        self._backlog: deque[bytes] = deque()
        self._fragments: list[bytes] = []
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None

    # The transport's calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        sock = self._transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Else megabytes for a reader that has stalled would hide in the kernel.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, HIGH_WATER)
        self._protocol = ServerProtocol(
            max_size=HELLO_BYTES, select_subprotocol=_select_subprotocol, logger=_quiet
        )
        self._connection = Connection(self._transport, self._gateway.hub, self._loop.time())
        self._connections.add(self)
        self._timer = self._loop.call_later(HELLO_SECONDS, self._no_hello)

    def data_received(self, data: bytes) -> None:
        self._connection.heard_at = self._loop.time()
        self._protocol.receive_data(data)
        self._handle_events()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._handle_events()

    def pause_writing(self) -> None:
        # Who doesn't read its answers is not read either.
        self._transport.pause_reading()
        self._connection.pause(self._loop.time())

    def resume_writing(self) -> None:
        self._connection.resume()
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._connections.discard(self)
        self._gateway.hub.closed(self._connection)
        self._backlog.clear()
        if self._connection.id:
            log.info("connection %s of %s closed", self._connection.id, self._connection.subject)

    def shutdown(self) -> None:
        """Finish what is being carried out, then close with 1012: the client comes back."""
        self._draining = True
        self._backlog.clear()
        if not self._unanswered:
            self.end(p.Close.RESTARTING, "the server restarts: connect again")

    # Frames -----------------------------------------------------------------------------

    def _handle_events(self) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif isinstance(event, Frame) and not self._connection.closed:
                self._handle_frame(event)
        if isinstance(self._protocol.parser_exc, PayloadTooBig):
            # Our own code for it; the library's 1009 is dropped with what it wants to send.
            self._protocol.data_to_send()
            limit = MAX_FRAME_BYTES if self._session.greeted else HELLO_BYTES
            self._close_raw(p.Close.TOO_LARGE, f"a frame is larger than {limit} bytes")
            return
        self._flush()
        self._go_on()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._finish()

    def _handle_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY:
            self.end(p.Close.PROTOCOL_ERROR, "frames are text, not binary")
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                self._backlog.append(b"".join(self._fragments))
                self._fragments.clear()

    def _go_on(self) -> None:
        """Carry out what has arrived, as far as the bounds allow, and read on."""
        while self._backlog and self._ready:
            self._take(self._backlog.popleft())
        if self._transport.is_closing():
            return
        if self._connection.closed:
            # What still comes is read and dropped: closing with unread data would reset
            # the connection, and the peer might never see why.
            self._transport.resume_reading()
        elif self._backlog or self._draining or not self._connection.writable:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def _ready(self) -> bool:
        return (
            self._unanswered < MAX_UNANSWERED
            and self._connection.writable
            and not self._draining
            and (self._grant is not None or not self._session.greeted)
        )

    def _take(self, data: bytes) -> None:
        try:
            frame = self._session.read(data)
        except Closing as closing:
            self.end(closing.code, closing.reason)
            return
        if isinstance(frame, p.Hello):
            self._greet(frame)
        elif isinstance(frame, p.Ping):
            self._connection.send(p.encode(p.Pong()))
        elif isinstance(frame, Bad):
            self._connection.send(_error(frame.re, frame.error))
        elif isinstance(frame, p.Command):
            self._carry_out(frame)

    # Requests ---------------------------------------------------------------------------

    def _carry_out(self, command: p.Command) -> None:
        assert self._grant is not None
        self._unanswered += 1
        answered = False

        def answer(outcome: bytes | LivetreeError) -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            self._unanswered -= 1
            if isinstance(outcome, LivetreeError):
                self._connection.send(_error(command.id, outcome))
            elif isinstance(command, p.StreamAppend):
                self._connection.send(outcome)
            else:
                self._connection.send(_result(command.id, outcome))
            self._answered()

        self._gateway.requests.carry_out(command, self._connection, self._grant, answer)

    def _answered(self) -> None:
        if self._draining:
            if not self._unanswered:
                self.end(p.Close.RESTARTING, "the server restarts: connect again")
        elif self._backlog:
            # Not from in here: answers may come while a run is being told.
            self._loop.call_soon(self._go_on)

    def _greet(self, hello: p.Hello) -> None:
        self._stop_timer()
        try:
            grant = self._gateway.auth.grant(hello.token)
        except Unauthenticated as error:
            self.end(p.Close.UNAUTHENTICATED, str(error))
            return
        if not self._gateway.hub.opened(self._connection):
            self.end(p.Close.OVERLOADED, "this server has too many connections: try later")
            return
        self._connection.id = self._gateway.new_id()
        self._connection.subject = grant.subject
        self._connection.label = hello.client
        self._protocol.max_message_size = MAX_FRAME_BYTES
        if grant.expires_at is not None:
            self._watch_expiry(grant.expires_at)
        log.info(
            "connection %s of %s (%s) opened", self._connection.id, grant.subject, hello.client
        )
        if hello.unacknowledged:
            self._gateway.spawn(self._welcome_later(hello, grant), "welcome")
        else:
            self._welcome(hello, grant, {})

    async def _welcome_later(self, hello: p.Hello, grant: Grant) -> None:
        try:
            done = await self._gateway.requests.done(grant.subject, hello.unacknowledged)
        except Exception as error:
            log.warning("connection %s can't be welcomed: %s", self._connection.id, error)
            self.end(p.Close.OVERLOADED, "the database can't be read: come back in a moment")
            return
        self._welcome(hello, grant, done)
        self._go_on()

    def _welcome(self, hello: p.Hello, grant: Grant, done: dict[str, bytes]) -> None:
        if self._connection.closed:
            return
        self._grant = grant
        welcome = p.Welcome(
            protocol=p.PROTOCOL,
            connection_id=self._connection.id,
            subject=grant.subject,
            limits=p.Limits(
                frame_bytes=MAX_FRAME_BYTES,
                data_bytes=MAX_DATA_BYTES,
                subscriptions=MAX_SUBSCRIPTIONS,
            ),
            done={mutation: Raw(result) for mutation, result in done.items()},
            server=self._gateway.version,
            now=self._gateway.clock(),
        )
        self._connection.send(p.encode(welcome))
        for resume in hello.resume:
            self._resume(resume, grant)

    def _resume(self, resume: p.Resume, grant: Grant) -> None:
        def answer(outcome: bytes | LivetreeError) -> None:
            if isinstance(outcome, LivetreeError):
                gone = p.Gone(topic=resume.topic, reason=f"{outcome.code}: {outcome}")
                self._connection.send(p.encode(gone))

        try:
            grant.require(resume.topic, READ)
            self._gateway.requests.open(resume, self._connection, answer)
        except LivetreeError as error:
            answer(error)

    # Beginning and end --------------------------------------------------------------------

    def _shake_hands(self, request: Request) -> None:
        try:
            refusal = self._refusal(request)
        except (ValueError, LookupError) as error:
            # A path, a host or an origin that is no URL, or that is there twice.
            refusal = (400, f"the request can't be understood: {error}")
        if refusal is not None:
            status, reason = refusal
            self._protocol.send_response(self._protocol.reject(status, f"{reason}\n"))
        else:
            self._protocol.send_response(self._protocol.accept(request))

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        path = urlsplit(request.path).path
        if path not in PATHS:
            return 404, f"there is no websocket at {path}: it is at {PATHS[-1]}"
        reason = self._unwelcome(request)
        return None if reason is None else (403, reason)

    def _unwelcome(self, request: Request) -> str | None:
        """Tell why a browser's page may not connect; None if it may."""
        origin = request.headers.get("Origin")
        host = urlsplit(f"//{request.headers.get('Host', '')}")
        if self._gateway.auth.open and host.hostname not in _LOOPBACK:
            # Another name for loopback is a page that has rebound its own.
            return f"this server is for this machine alone, not for host {host.hostname}"
        if origin is None or origin in self._gateway.origins:
            return None
        page = urlsplit(origin)
        if page.netloc == host.netloc or page.hostname in _LOOPBACK:
            return None
        return f"pages of {origin} may not connect: allow them with --origin"

    def _no_hello(self) -> None:
        self.end(p.Close.NO_HELLO, f"no hello within {HELLO_SECONDS:.0f} seconds")

    def _watch_expiry(self, expires_at: float) -> None:
        left = expires_at - self._gateway.clock() / 1000
        if left <= 0:
            self._expired()
        else:
            # A timer can't be set for any time: a far one is looked at again on the way.
            self._timer = self._loop.call_later(
                min(left, EXPIRY_SECONDS), self._watch_expiry, expires_at
            )

    def _expired(self) -> None:
        self.end(p.Close.UNAUTHENTICATED, "the token has expired: fetch a new one")

    def end(self, code: int, reason: str) -> None:
        """Close the connection with a code and a reason; what was sent before still goes out."""
        if self._connection.closed:
            return
        if self._protocol.state is State.OPEN:
            self._connection.end()
            self._protocol.send_close(code, _short(reason))
            self._flush()
            self._close_later()
        else:
            self._finish()
        self._go_on()

    def _close_raw(self, code: int, reason: str) -> None:
        if not self._connection.closed:
            payload = CloseFrame(code, _short(reason)).serialize()
            self._transport.write(Frame(Opcode.CLOSE, payload).serialize(mask=False))
            self._finish()

    def _finish(self) -> None:
        """Send nothing more; the peer closes, or is cut after a while."""
        self._connection.end()
        self._backlog.clear()
        if not self._transport.is_closing():
            self._transport.write_eof()
            self._close_later()

    def _close_later(self) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(CLOSE_SECONDS, self._transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __repr__(self) -> str:
        return f"<Endpoint {self._connection!r} unanswered={self._unanswered}>"


def _select_subprotocol(_: ServerProtocol, offered: Any) -> Any:
    return p.PROTOCOL if p.PROTOCOL in offered else None


def _short(reason: str) -> str:
    """Cut a reason to what a close frame can hold (RFC 6455 §5.5.1)."""
    return reason.encode()[:120].decode(errors="ignore")


def _result(number: int, result: bytes) -> bytes:
    return b'{"type":"result","re":%d,"result":%b}' % (number, result)


def _error(number: int, error: LivetreeError) -> bytes:
    # What a request names, its refusal names too; but not without end.
    details = {
        key: _clipped(value, DETAIL_LENGTH) if isinstance(value, str) else value
        for key, value in error.details.items()
    }
    message = _clipped(str(error), MESSAGE_LENGTH)
    return p.encode(p.ErrorFrame(re=number, code=error.code, message=message, details=details))


def _clipped(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


_quiet = logging.getLogger("livetree.websocket")
_quiet.setLevel(logging.WARNING)
