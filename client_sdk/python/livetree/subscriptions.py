"""The topics that a client has open: their mirrors, and what those need of the server."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from msgspec import Raw

from .commands import Commands
from .core import protocol as p
from .core.errors import LivetreeError
from .entropy import Clock
from .live_topic import LiveTopic
from .mirror import FetchContent, FetchDeltas, Mirror, Reopen, Step
from .results import Deltas, Messages

__all__ = ["Post", "Subscriptions"]

log = logging.getLogger("livetree.client")

T = TypeVar("T")


class Post(Protocol):
    """How a request is sent whose answer is told to a function."""

    def __call__(self, command: p.Command, answer: Callable[[Raw | LivetreeError], None]) -> object:
        """Send it; raises `Disconnected` where there is no connection."""


class Subscriptions:
    """
    The open topics of one client.

    Args:
        commands: What the topics ask with.
        post: What their mirrors ask with.
        clock: The time.
        content_bytes: How much content each mirror keeps.

    """

    def __init__(self, commands: Commands, post: Post, clock: Clock, content_bytes: int) -> None:
        self._commands = commands
        self._post = post
        self._clock = clock
        self._content_bytes = content_bytes
        self._topics: dict[str, tuple[LiveTopic, int]] = {}
        self._online = False
        self._resumed: set[str] = set()
        self._connection = 0

    def enter(self, topic_id: str) -> LiveTopic:
        """Open a topic, or share it with those who have it open; each calls `leave`."""
        live, users = self._topics.get(topic_id, (None, 0))
        if live is None:
            live = LiveTopic(self._commands, Mirror(topic_id, content_bytes=self._content_bytes))
        self._topics[topic_id] = (live, users + 1)
        if users == 0 and self._online:
            self._open(live)
        return live

    def leave(self, live: LiveTopic) -> None:
        """Close a topic when nobody else has it open."""
        known, users = self._topics.get(live.id, (None, 0))
        if known is not live:
            return  # it is gone, and maybe opened anew
        if users > 1:
            self._topics[live.id] = (live, users - 1)
            return
        del self._topics[live.id]
        live.end(None)
        if self._online:
            self._post(p.TopicClose(topic=live.id), _ignore)

    # Connections ------------------------------------------------------------------------

    def resumes(self) -> list[p.Resume]:
        """Return what there is to resume."""
        now = self._clock.monotonic()
        return [live.mirror.resume(now) for live, _ in self._topics.values()]

    def welcomed(self, resumed: set[str]) -> None:
        """Open, on a new connection, the topics that its ``hello`` had no room for."""
        self._online = True
        self._connection += 1
        for topic_id, (live, _) in list(self._topics.items()):
            if topic_id not in resumed:
                self._open(live)
        for topic_id in resumed - self._topics.keys():  # left since the hello
            self._post(p.TopicClose(topic=topic_id), _ignore)

    def disconnected(self) -> None:
        """Wait for the next connection."""
        self._online = False
        for live, _ in list(self._topics.values()):
            self._take(live, live.mirror.disconnected())

    def end(self, error: LivetreeError | None) -> None:
        """End all topics, with an error or in peace."""
        self._online = False
        topics, self._topics = self._topics, {}
        for live, _ in topics.values():
            live.end(error)

    # Frames -----------------------------------------------------------------------------

    def receive(self, frame: p.Snapshot | p.Delta | p.Synced | p.Stream | p.Gone) -> None:
        """Give a frame to its mirror."""
        live = self._topics.get(frame.topic, (None, 0))[0]
        if live is not None:
            self._take(live, live.mirror.receive(frame, self._clock.monotonic()))

    def unreadable(self, topic_id: str, error: Exception) -> None:
        """Start a topic over of which a frame could not be read."""
        live = self._topics.get(topic_id, (None, 0))[0]
        if live is not None:
            reason = f"a frame can't be read: {error}"
            self._take(live, live.mirror.unreadable(reason, self._clock.monotonic()))

    def _take(self, live: LiveTopic, step: Step) -> None:
        """Carry out what a mirror needs, and tell what has changed."""
        for need in step.needs if self._online else ():
            match need:
                case Reopen():
                    log.debug("topic %s is opened again: %s", live.id, need.reason)
                    again = partial(self._reopen, live, self._connection)
                    if need.delay > 0:
                        self._clock.call_later(need.delay, again)
                    else:
                        again()
                case FetchDeltas():
                    command = p.TopicDeltas(topic=live.id, seq=need.seq, commit=need.commit)
                    self._post(command, partial(self._deltas_came, live, need))
                case FetchContent():
                    self._fetch(live, need)
        live.take(step.changes)
        if live.mirror.gone is not None and self._is_open(live):
            del self._topics[live.id]
            live.end(None)

    def _is_open(self, live: LiveTopic) -> bool:
        return self._topics.get(live.id, (None, 0))[0] is live

    # What mirrors need ------------------------------------------------------------------

    def _open(self, live: LiveTopic) -> None:
        resume = live.mirror.resume(self._clock.monotonic())
        command = p.TopicOpen(
            topic=resume.topic, seq=resume.seq, commit=resume.commit, streams=resume.streams
        )
        self._post(command, partial(self._opened, live))

    def _reopen(self, live: LiveTopic, connection: int) -> None:
        if (
            connection == self._connection
            and self._online
            and self._is_open(live)
            and live.mirror.reopen_due
        ):
            self._open(live)

    def _opened(self, live: LiveTopic, answer: Raw | LivetreeError) -> None:
        if not isinstance(answer, LivetreeError) or not self._is_open(live) or not self._online:
            return  # without a connection it is resumed with the next one
        if live.mirror.tree is None or answer.code in ("NOT_FOUND", "FORBIDDEN"):
            del self._topics[live.id]
            live.end(answer)
        else:
            self._take(live, live.mirror.open_failed())

    def _deltas_came(self, live: LiveTopic, need: FetchDeltas, answer: Raw | LivetreeError) -> None:
        if not self._online or not self._is_open(live):
            return
        now = self._clock.monotonic()
        page = _decoded(answer, Deltas)
        if page is None:
            self._take(live, live.mirror.deltas_failed(need, now))
        else:
            self._take(live, live.mirror.deltas_came(need, page, now))

    def _fetch(self, live: LiveTopic, need: FetchContent) -> None:
        command = p.MessageGet(topic=live.id, message_ids=need.message_ids, min_seq=live.seq)
        # Refused, it stays cold: whoever looks at it asks again.
        with contextlib.suppress(LivetreeError):
            self._post(command, partial(self._content_came, live))

    def _content_came(self, live: LiveTopic, answer: Raw | LivetreeError) -> None:
        messages = _decoded(answer, Messages)
        if messages is not None and self._is_open(live):
            self._take(live, live.mirror.content_came(messages))

    def __len__(self) -> int:
        return len(self._topics)

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {
            "topics": len(self),
            "synced": sum(live.is_synced for live, _ in self._topics.values()),
            "contentBytes": sum(
                live.mirror.statistics()["contentBytes"] for live, _ in self._topics.values()
            ),
        }

    def __repr__(self) -> str:
        return f"<Subscriptions topics={len(self)} online={self._online}>"


def _decoded(answer: Raw | LivetreeError, kind: type[T]) -> T | None:
    if isinstance(answer, LivetreeError):
        return None
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError:
        return None


def _ignore(_: Raw | LivetreeError) -> None:
    pass
