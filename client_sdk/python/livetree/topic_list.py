"""The list of topics, kept live: what it shows, to read and wait on, and how it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from msgspec import Raw
from msgspec.structs import replace

from . import changes as c
from .audience import Audience
from .changes import ListChanges
from .commands import Commands
from .core import protocol as p
from .core.errors import LivetreeError, Validation
from .entropy import Clock
from .results import ReadUpTo
from .session import ClientClosed

__all__ = ["ListMirror", "TopicList", "Watch"]

MOST: Final = 200
"""The most topics that the first page may have."""

MOST_GROWTH: Final = 4
"""How many times its first page the list may become, before it is asked for anew."""

REST_SECONDS: Final = 5.0
"""How long it is left alone after a frame that could not be read."""


class ListMirror:
    """
    The list as the server tells it: frames in, changes out, without any waiting.

    It holds the **top** of the list: all topics from the latest active one down to the
    last of the first page, and those that became active since. What changes further down
    stays out, and is found where `next` leads, so there is never a hole in what is shown.
    (Of topics last active in the very millisecond of the last one, some may be in both.)

    Args:
        limit: How many topics the first page has.

    Attributes:
        entries: What it shows, the latest active first; another tuple after each change.
        next: The cursor of what is below, None if nothing is.

    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.entries: tuple[p.TopicEntry, ...] = ()
        self.next: str | None = None
        self._by_id: dict[str, p.TopicEntry] = {}
        self._oldest: int | None = None
        self._first_page = 0
        self._is_whole = False
        self._asked = 0

    @property
    def synced(self) -> bool:
        """Whether nothing that was asked for is missing."""
        return self._is_whole and not self._asked

    @property
    def outgrown(self) -> bool:
        """Whether so much has come or gone that the first page should be asked for again."""
        shown = len(self._by_id)
        return self.synced and (
            shown > MOST_GROWTH * self.limit
            or (self.next is not None and 2 * shown < self._first_page)
        )

    def get(self, topic_id: str) -> p.TopicEntry | None:
        """Return a topic as it is shown, None if it isn't."""
        return self._by_id.get(topic_id)

    def asked(self) -> None:
        """Take note that the whole was asked for: `synced` waits for it."""
        self._asked += 1
        self._is_whole = False

    def answered(self) -> None:
        """Take note that the server has begun: the next whole frame is what was asked for."""
        self._asked -= 1
        self._is_whole = False

    def missed(self) -> None:
        """Take note that something is missing: only the whole will do."""
        self._is_whole = False

    def disconnected(self) -> list[c.ListChange]:
        """Keep what there is, until the next whole frame replaces it."""
        was_synced, self._is_whole, self._asked = self.synced, False, 0
        return [c.Offline()] if was_synced else []

    def receive(self, frame: p.Topics | p.ReadPosition) -> list[c.ListChange]:
        """Take a frame in; returns what it has changed."""
        if isinstance(frame, p.ReadPosition):
            return self._read(frame)
        if frame.whole:
            return self._replace(frame)
        return self._change(frame)

    def _replace(self, frame: p.Topics) -> list[c.ListChange]:
        self._by_id = {entry.id: entry for entry in frame.topics}
        self.next = frame.next
        self._first_page = len(frame.topics)
        self._oldest = None
        if frame.next is not None and frame.topics:
            self._oldest = min(entry.last_activity_at for entry in frame.topics)
        self._is_whole = True
        self._arrange()
        return [c.Relisted()]

    def _change(self, frame: p.Topics) -> list[c.ListChange]:
        come: list[p.TopicEntry] = []
        gone = [each for each in frame.gone if each in self._by_id]
        for entry in frame.topics:
            if self._oldest is None or entry.last_activity_at >= self._oldest:
                if self._by_id.get(entry.id) != entry:
                    come.append(entry)
            elif entry.id in self._by_id:
                gone.append(entry.id)
        if not come and not gone:
            return []
        for topic_id in gone:
            del self._by_id[topic_id]
        self._by_id |= {entry.id: entry for entry in come}
        self._arrange()
        return [c.Listed(come, gone)]

    def _read(self, frame: p.ReadPosition) -> list[c.ListChange]:
        entry = self._by_id.get(frame.topic)
        if entry is None or (entry.read_seq, entry.unread) == (frame.read_seq, frame.unread):
            return []
        self._by_id[entry.id] = replace(entry, read_seq=frame.read_seq, unread=frame.unread)
        self._arrange()
        return [c.Marked(frame.topic, frame.read_seq, frame.unread)]

    def _arrange(self) -> None:
        # At one time the later made comes first, as the server has it.
        shown = sorted(
            self._by_id.values(),
            key=lambda entry: (entry.last_activity_at, entry.created_at, entry.id),
            reverse=True,
        )
        self.entries = tuple(shown)

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {"listed": len(self._by_id)}

    def __repr__(self) -> str:
        state = "synced" if self.synced else "behind"
        return f"<ListMirror {state} topics={len(self._by_id)}>"


class TopicList:
    """
    The list of topics, kept equal to the server's.

    `Client.watch_topics` makes it. It shows the latest active topics, those that are
    temporary or deleted never: the first page as it was when the watching began, and all
    that became active since; `Commands.topics` reads on from `next`. After a lost
    connection the first page replaces everything.

    """

    def __init__(self, commands: Commands, mirror: ListMirror) -> None:
        self.mirror = mirror
        self._commands = commands
        self._audience = Audience(self, self._over)

    # What it shows ----------------------------------------------------------------------

    @property
    def entries(self) -> tuple[p.TopicEntry, ...]:
        """The topics, by ``lastActivityAt``, the latest first, then by id."""
        return self.mirror.entries

    @property
    def next(self) -> str | None:
        """The cursor with which `Commands.topics` reads what is below the first page."""
        return self.mirror.next

    @property
    def unread(self) -> int:
        """How many messages are unread in the topics that are shown."""
        return sum(entry.unread for entry in self.entries)

    @property
    def is_synced(self) -> bool:
        """Whether nothing is known to be missing; not so while the connection is lost."""
        return self.mirror.synced

    def get(self, topic_id: str) -> p.TopicEntry | None:
        """Return a topic as it is shown, None if it isn't."""
        return self.mirror.get(topic_id)

    def filter(self, name: str) -> list[p.TopicEntry]:
        """Return those shown whose name has this part, ignoring case."""
        wanted = name.casefold()
        return [entry for entry in self.entries if wanted in entry.name.casefold()]

    # Waiting ----------------------------------------------------------------------------

    def changes(self) -> ListChanges:
        """Return what happens from now on, for one ``async for``; see `ListChanges`."""
        return self._audience.join(ListChanges())

    async def wait_for(self, predicate: Callable[[TopicList], bool]) -> None:
        """
        Return once a predicate holds; it is asked now and after every change.

        An exception of the predicate is raised here.

        Raises:
            ClientClosed: If the list is left before; or the error that ended it.

        """
        await self._audience.wait_for(predicate)

    async def wait_synced(self) -> None:
        """Return once nothing is missing."""
        await self.wait_for(lambda topics: topics.is_synced)

    # Commands ---------------------------------------------------------------------------

    async def mark_read(self, topic_id: str, seq: int | None = None) -> ReadUpTo:
        """
        Move one's read position to ``seq``, else as far as is shown here; never back.

        It returns once this list shows it, if it shows the topic.

        Raises:
            NotFound: If there is no such topic.

        """
        if seq is None and (entry := self.get(topic_id)) is not None:
            seq = entry.seq  # sent late, it must not mark what nobody has seen
        read = await self._commands.mark_read(topic_id, seq)

        def shown(topics: TopicList) -> bool:
            entry = topics.get(topic_id)
            return entry is None or entry.read_seq >= read.read_seq

        await self.wait_for(shown)
        return read

    # What the client tells it -----------------------------------------------------------

    def take(self, changes: Iterable[c.ListChange]) -> None:
        """Tell the readers, and those who wait. For the client."""
        self._audience.tell(changes)

    def end(self, error: LivetreeError | None) -> None:
        """End all reading and waiting, with an error or in peace. For the client."""
        self._audience.end(error)

    def _over(self) -> LivetreeError:
        return ClientClosed("the list of topics was left here: watch it again")

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {**self.mirror.statistics(), **self._audience.statistics()}

    def __repr__(self) -> str:
        return f"<TopicList {self.mirror!r}>"


class Post(Protocol):
    """How a request is sent whose answer is told to a function."""

    def __call__(self, command: p.Command, answer: Callable[[Raw | LivetreeError], None]) -> object:
        """Send it; raises `Disconnected` where there is no connection."""


class Watch:
    """
    The one list of a client, while anybody there watches it.

    Args:
        commands: What the list asks with.
        post: What watching is asked with.
        clock: The time.

    """

    def __init__(self, commands: Commands, post: Post, clock: Clock) -> None:
        self._commands = commands
        self._post = post
        self._clock = clock
        self._list: TopicList | None = None
        self._users = 0
        self._online = False
        self._connection = 0
        self._resting = False

    def enter(self, limit: int) -> TopicList:
        """
        Watch the list, together with those who do already; each calls `leave`.

        The first page is as large as the largest that any of them asked for.

        Raises:
            Validation: If the limit is none.

        """
        if not 1 <= limit <= MOST:
            raise Validation(f"limit is {limit}: choose 1 to {MOST}")
        topics = self._list
        if topics is None:
            topics = self._list = TopicList(self._commands, ListMirror(limit))
            self._ask(topics)
        elif limit > topics.mirror.limit:
            topics.mirror.limit = limit
            self._ask(topics)
        self._users += 1
        return topics

    def leave(self, topics: TopicList) -> None:
        """Stop watching when nobody else does."""
        if topics is not self._list:
            return  # it was refused
        self._users -= 1
        if not self._users:
            self._end(None)
            if self._online:
                self._post(p.TopicsWatch(watching=False), lambda _: None)

    # Connections ------------------------------------------------------------------------

    def welcomed(self) -> None:
        """Watch on a new connection."""
        self._online = True
        self._connection += 1
        if self._list is not None:
            self._ask(self._list)

    def disconnected(self) -> None:
        """Wait for the next connection."""
        self._online = False
        if self._list is not None:
            self._list.take(self._list.mirror.disconnected())

    def end(self, error: LivetreeError | None) -> None:
        """End the list, with an error or in peace."""
        self._online = False
        self._end(error)

    def _end(self, error: LivetreeError | None) -> None:
        topics, self._list, self._users = self._list, None, 0
        if topics is not None:
            topics.end(error)

    # Frames -----------------------------------------------------------------------------

    def receive(self, frame: p.Topics | p.ReadPosition) -> None:
        """Give a frame to the list; what comes after it was left means nothing."""
        if (topics := self._list) is not None:
            topics.take(topics.mirror.receive(frame))
            if topics is self._list and topics.mirror.outgrown:
                self._ask(topics)

    def unreadable(self) -> None:
        """Start over after a frame that could not be read, but not at every such frame."""
        if self._list is None:
            return
        self._list.mirror.missed()
        if not self._resting:
            self._resting = True
            self._ask(self._list)
            self._clock.call_later(REST_SECONDS, self._rested)

    def _rested(self) -> None:
        self._resting = False
        if self._list is not None and not self._list.is_synced and self._online:
            self.unreadable()

    def _ask(self, topics: TopicList) -> None:
        if self._online:
            topics.mirror.asked()
            answer = partial(self._answered, topics, self._connection)
            self._post(p.TopicsWatch(limit=topics.mirror.limit), answer)

    def _answered(self, topics: TopicList, connection: int, answer: Raw | LivetreeError) -> None:
        if topics is not self._list or connection != self._connection or not self._online:
            return
        if isinstance(answer, LivetreeError):
            self._end(answer)
        else:
            topics.mirror.answered()

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {"listed": 0} if self._list is None else self._list.mirror.statistics()

    def __repr__(self) -> str:
        return f"<Watch users={self._users} list={self._list!r}>"
