"""
A client's side of the protocol, across connections: what to send, and what came of it.

It never waits and touches no socket. Frames to send gather in `outgoing`; whoever owns
the connection takes them out in order, and brings what it receives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from .core import protocol as p
from .core.errors import Busy, LivetreeError, TooLarge, Unavailable, Validation, error_of

__all__ = [
    "Answered",
    "ClientClosed",
    "Disconnected",
    "Outcome",
    "Request",
    "Retry",
    "Session",
]

HELLO_BYTES: Final = 60_000
"""How large a ``hello`` may become; the server takes 64 KiB of a stranger."""

MAX_UNACKNOWLEDGED: Final = 1000
MAX_RESUMES: Final = 1000

REFUSALS: Final = 5
"""How often a request is sent again to a server that has no time for it."""

RETRY_SECONDS: Final = 0.1
"""How long after the first refusal it is sent again; doubled each time."""

_REPEATABLE: Final = ("UNAVAILABLE", "BUSY")

_PER_CONNECTION: Final = (
    p.TopicOpen,
    p.TopicClose,
    p.TopicDeltas,
    p.TopicsWatch,
    p.StreamAppend,
    p.StreamRenew,
    p.BotServe,
)
# They mean something on one connection only: after a reconnect their owner asks anew.

_WITHOUT_LANE: Final = (p.StreamClaim, p.StreamFinish, p.StreamAbort)
# A writer's, or urgent: they wait for no other command of the topic.

_hello = msgspec.json.encode


class Disconnected(Unavailable):
    """The connection that this request belonged to is gone; nobody will answer it."""


class ClientClosed(Unavailable):
    """The client was closed; a command that was sent already may have happened."""


class Request:
    """
    A request from when it is asked until it is answered or given up.

    Attributes:
        id: What answers name it by; the same on every connection.
        command: What was asked, immutable.
        was_sent: Whether any server may have seen it.

    """

    __slots__ = (
        "_text",
        "abandoned",
        "command",
        "id",
        "in_flight",
        "lane",
        "refusals",
        "resting",
        "size",
        "was_sent",
    )

    def __init__(self, command: p.Command, encoded: bytes) -> None:
        self.id = command.id
        self.command = command
        self._text = encoded.decode()
        self.size = len(encoded)
        self.lane = _lane_of(command)
        self.was_sent = False
        self.in_flight = False
        self.resting = False
        self.abandoned = False
        self.refusals = 0

    @property
    def text(self) -> str:
        """The frame."""
        return self._text

    @property
    def mutation(self) -> str | None:
        """The id by which the command happens once."""
        return self.command.mutation if isinstance(self.command, p.Mutation) else None

    @property
    def per_connection(self) -> bool:
        """Whether it ends with the connection that it was sent on."""
        return isinstance(self.command, _PER_CONNECTION)

    def __repr__(self) -> str:
        op = self.command.__struct_config__.tag
        return f"<Request {self.id} {op} {'sent' if self.was_sent else 'queued'}>"


class Answered(Struct, frozen=True):
    """A request is over: its result as JSON, or why there is none."""

    request: Request
    answer: Raw | LivetreeError


class Retry(Struct, frozen=True):
    """A request is to be sent again, by `Session.retry`, after `delay` seconds."""

    request: Request
    delay: float


Outcome: TypeAlias = (
    Answered
    | Retry
    | p.Welcome
    | p.Snapshot
    | p.Delta
    | p.Synced
    | p.Stream
    | p.Gone
    | p.Topics
    | p.ReadPosition
    | p.StreamAck
    | p.Offer
)
"""What came of a frame; frames about topics and replies are passed through."""


class Session:
    """
    The requests of one client and what is to be sent for them.

    Commands that change a topic are sent one at a time for each topic, in the order in
    which they were asked for: the next goes out when the one before has succeeded or is
    refused for good. Reads, claims, finishes and aborts go at once.

    Args:
        client: How the client calls itself.
        max_pending: How many requests may wait for an answer; beyond it `add` is `Busy`.

    """

    def __init__(self, *, client: str = "", max_pending: int = 1000) -> None:
        self.outgoing: deque[str] = deque()
        self.welcome: p.Welcome | None = None
        self._client = client
        self._max_pending = max_pending
        self._greeting = False
        self._pending: dict[int, Request] = {}
        self._lanes: dict[str, deque[Request]] = {}
        self._last_id = 0
        self._users = 0

    @property
    def online(self) -> bool:
        """Whether the server has welcomed the present connection."""
        return self.welcome is not None

    # Asking -----------------------------------------------------------------------------

    def add(self, command: p.Command) -> Request:
        """
        Take a request in and send it when its turn has come, now or after a reconnect.

        Raises:
            Busy: If too many wait already.
            Disconnected: If it only means something on a connection, and there is none.
            TooLarge: If the server takes no frames of this size.
            Validation: If it is not JSON, such as text with half a surrogate pair.

        """
        if isinstance(command, _PER_CONNECTION):
            if not self.online:
                raise Disconnected("there is no connection now: ask when there is one again")
        elif self._users >= self._max_pending:
            raise Busy(
                f"{self._users} requests wait for an answer: wait for some", limit=self._max_pending
            )
        command = replace(command, id=self._last_id + 1)
        request = Request(command, _encoded(command))
        if self.welcome is not None and (error := _too_large(request, self.welcome.limits)):
            raise error
        self._last_id += 1
        self._pending[request.id] = request
        self._users += not request.per_connection
        if request.lane is not None:
            self._lanes.setdefault(request.lane, deque()).append(request)
        self._send_if_due(request)
        return request

    def abandon(self, request: Request) -> None:
        """
        Give a request up: nobody waits for its answer.

        What hasn't been sent never is. What has been sent may happen; it isn't sent again.

        """
        if request.id not in self._pending:
            return
        if request.in_flight:
            # Until it is answered, the commands behind it must wait.
            request.abandoned = True
        else:
            self._remove(request)

    def settle(self, request: Request) -> None:
        """Take note that a request was answered in another way, as appends are by acks."""
        if request.id in self._pending:
            self._remove(request)

    def retry(self, request: Request) -> None:
        """Send a request again that had to rest."""
        if request.id in self._pending and request.resting:
            request.resting = False
            self._send_if_due(request)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self.outgoing.append(p.encode(p.Ping()).decode())

    # Connections ------------------------------------------------------------------------

    def hello(self, token: str | None, resumes: Sequence[p.Resume]) -> set[str]:
        """
        Begin a connection: put its first frame into `outgoing`.

        Returns:
            The topics that the frame resumes, as many as it has room for; the others are
            to be opened by request, once there is a welcome.

        """
        self.outgoing.clear()
        self.welcome = None
        self._greeting = True
        room = HELLO_BYTES - len(token or "") - len(self._client.encode())
        unacknowledged: list[str] = []
        for request in self._pending.values():
            if request.was_sent and request.mutation is not None:
                room -= len(request.mutation.encode()) + 3
                if room < 0 or len(unacknowledged) == MAX_UNACKNOWLEDGED:
                    break  # sending those again has the same effect, and costs a little more
                unacknowledged.append(request.mutation)
        resumed: list[p.Resume] = []
        for resume in resumes:
            room -= len(_hello(resume)) + 1
            if room < 0 or len(resumed) == MAX_RESUMES:
                break
            resumed.append(resume)
        hello = p.Hello(
            protocol=p.PROTOCOL,
            token=token,
            client=self._client,
            unacknowledged=unacknowledged,
            resume=resumed,
        )
        self.outgoing.append(_hello(hello).decode())
        return {resume.topic for resume in resumed}

    def lost(self) -> list[Outcome]:
        """End the connection; what was sent and not answered waits for the next one."""
        self.outgoing.clear()
        self.welcome = None
        self._greeting = False
        outcomes: list[Outcome] = []
        for request in list(self._pending.values()):
            request.in_flight = False
            if request.abandoned:
                self._remove(request)
            elif request.per_connection:
                self._remove(request)
                outcomes.append(
                    Answered(request, Disconnected("the connection was lost before the answer"))
                )
        return outcomes

    def close(self, error: LivetreeError) -> list[Outcome]:
        """End for good: every request that waits is answered with `error`."""
        outcomes: list[Outcome] = [
            Answered(request, error) for request in self._pending.values() if not request.abandoned
        ]
        self.lost()
        self._pending.clear()
        self._lanes.clear()
        self._users = 0
        return outcomes

    # Receiving --------------------------------------------------------------------------

    def receive(self, frame: p.ServerFrame) -> list[Outcome]:
        """Take a frame from the server; returns what came of it."""
        match frame:
            case p.ResultFrame():
                return self._answer(frame.re, frame.result)
            case p.ErrorFrame():
                return self._refused(frame)
            case p.Welcome():
                return self._welcomed(frame) if self._greeting else []
            case p.Ping():
                pong = p.encode(p.Pong()).decode()
                # One answer will do for all that wait to be answered.
                if pong not in self.outgoing:
                    self.outgoing.append(pong)
                return []
            case p.Pong():
                return []
            case _:
                return [frame]

    def failed(self, request_id: int, error: LivetreeError) -> list[Outcome]:
        """Take note that the answer to a request can't be read."""
        return self._answer(request_id, error)

    def _welcomed(self, frame: p.Welcome) -> list[Outcome]:
        self._greeting = False
        outcomes: list[Outcome] = [frame]
        # Not online yet: all that is over must be known before anything is sent.
        for request in list(self._pending.values()):
            mutation = request.mutation
            if request.was_sent and mutation is not None and mutation in frame.done:
                outcomes += self._answer(request.id, frame.done[mutation])
            elif (error := _too_large(request, frame.limits)) is not None:
                outcomes += self._answer(request.id, error)
        self.welcome = frame
        for request in self._pending.values():
            self._send_if_due(request)
        return outcomes

    def _refused(self, frame: p.ErrorFrame) -> list[Outcome]:
        request = None if frame.re is None else self._pending.get(frame.re)
        if request is None:
            return []
        if (
            frame.code in _REPEATABLE
            and not request.abandoned
            and not isinstance(request.command, p.StreamAppend)  # its writer knows what to do
            and request.refusals < REFUSALS
        ):
            request.in_flight = False
            request.resting = True
            request.refusals += 1
            return [Retry(request, RETRY_SECONDS * 2.0 ** (request.refusals - 1))]
        return self._answer(request.id, error_of(frame.code, frame.message, frame.details))

    def _answer(self, request_id: int, answer: Raw | LivetreeError) -> list[Outcome]:
        request = self._pending.get(request_id)
        if request is None:
            return []
        self._remove(request)
        return [] if request.abandoned else [Answered(request, answer)]

    # Sending ----------------------------------------------------------------------------

    def _send_if_due(self, request: Request) -> None:
        if not self.online or request.in_flight or request.resting:
            return
        if request.lane is not None and self._lanes[request.lane][0] is not request:
            return
        request.in_flight = True
        request.was_sent = True
        self.outgoing.append(request.text)

    def _remove(self, request: Request) -> None:
        del self._pending[request.id]
        self._users -= not request.per_connection
        if request.lane is None:
            return
        lane = self._lanes[request.lane]
        lane.remove(request)
        if lane:
            self._send_if_due(lane[0])
        else:
            del self._lanes[request.lane]

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {
            "pending": len(self._pending),
            "inFlight": sum(request.in_flight for request in self._pending.values()),
            "lanes": len(self._lanes),
            "outgoing": len(self.outgoing),
        }

    def __repr__(self) -> str:
        state = "online" if self.online else "greeting" if self._greeting else "offline"
        return f"<Session {state} pending={len(self._pending)}>"


def _lane_of(command: p.Command) -> str | None:
    if isinstance(command, p.Mutation) and not isinstance(command, _WITHOUT_LANE):
        return command.topic
    return None


def _too_large(request: Request, limits: p.Limits) -> TooLarge | None:
    if request.size <= limits.frame_bytes:
        return None
    return TooLarge(
        f"the request has {request.size} bytes; the limit is {limits.frame_bytes}: send less",
        limit=limits.frame_bytes,
    )


def _encoded(command: p.Command) -> bytes:
    try:
        return p.encode(command)
    except UnicodeEncodeError:
        raise Validation(
            "the request holds half of a surrogate pair: send whole characters"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise Validation(f"the request can't be written as JSON: {error}") from None
