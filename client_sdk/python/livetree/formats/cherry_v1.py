"""
Topics as Cherry Studio v1 kept them: flat lists of messages, to be made into trees.

C1  The list is the conversation: a message hangs below the one before it, the first below
    nothing.
C2  Two or more replies to one message, by their `askId`, are a group. It hangs below that
    message; if that isn't there, or not before them, below what is before the first of them.
C3  A user's message right after a reply of a group hangs below the group's selected reply,
    wherever that stands, or else below its last.
C4  A message without content is left out, and what hung below it hangs below its nearest
    ancestor that is kept. A `clear` marker, which is where a context ended, stays.
C5  Of a group at least two must be kept, else there is none; groups are numbered from 1 at
    each parent.
C6  What succeeded, failed or was paused stays so. Any other status is that of a reply that
    was interrupted: an error.
C7  The active message is the last one, or the selected one of its group. If that is left out
    it is the last kept one, or the selected one of that one's group.
C8  A valid id is kept; else the id is `m1`, `m2`, … : the next one that no message has.
C9  A message without a time has 100 ms for each place in the list. Times are moved up where
    they must be to rise from each message to the next.
C10 A topic without messages is skipped, unless it was pinned, renamed or given a prompt.
C11 The unit is one topic: it is migrated whole, or refused with its place and the reason.

All of it takes time that grows with the number of messages, and no recursion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar, cast, get_args

from msgspec import Struct

from ..core.ids import is_id
from .faults import FormatError, kind_of, quoted
from .neutral import Conversation, ImportedMessage, Role, Status, validate

__all__ = ["Migration", "migrate"]

Json: TypeAlias = dict[str, Any]
T = TypeVar("T")

_NAME: Final = "cherry-v1"
_DATA_PART: Final = "data-cherry"
_KINDS: Final[dict[type, str]] = {str: "a text", bool: "true or false", int: "a whole number"}
_ROLES: Final = frozenset(get_args(Role))
_ENDED: Final = frozenset(get_args(Status))
_LAST_TIME: Final = 253_402_300_799_999  # the year 9999 ends then; no message is from later


class Migration(Struct, frozen=True, kw_only=True):
    """
    What became of old topics; each is in one of the three lists.

    ``conversations`` are the new trees, in the order of ``migrated``. An error names its
    topic by ``record``, the place in the list counted from 0, and by ``source_id``, and the
    message by its place in the topic.

    """

    conversations: list[Conversation]
    migrated: list[str]
    skipped: list[str]
    errors: list[FormatError]

    @property
    def ok(self) -> bool:
        """Whether no topic was refused."""
        return not self.errors


class _Old(Struct, frozen=True, kw_only=True):
    """An old message, read and proved."""

    id: str
    role: Role
    ask_id: str | None
    selected: bool
    text: str
    is_clear: bool
    status: str | None
    time: int | None
    rest: Json

    @property
    def is_kept(self) -> bool:
        return bool(self.text) or self.is_clear


class _Group(Struct, frozen=True):
    """Two or more replies to one message, and the one that was selected."""

    replies: list[_Old]
    selected: _Old | None


def migrate(topics: Any) -> Migration:
    """
    Make a tree of each old topic.

    Args:
        topics: Decoded JSON: a list of ``{id, name?, pinned?, renamed?, prompt?, messages}``.
            An old message is ``{id, role, text, askId?, foldSelected?, type?, status?,
            createdAt?}``: a text is ``""`` if no content survived, a time is in
            milliseconds since the epoch. Other fields are kept under ``source``.

    Raises:
        FormatError: If it is no list; what is wrong with one topic is told in the result.

    """
    if not isinstance(topics, list):
        raise FormatError(f"the topics are {kind_of(topics)}, not a list")
    result = Migration(conversations=[], migrated=[], skipped=[], errors=[])
    seen: set[str] = set()
    for place, topic in enumerate(topics):
        try:
            topic_id = _topic_id(topic)
            if topic_id in seen:
                raise FormatError(f"two topics have the id {quoted(topic_id)}")
            conversation = _conversation(topic_id, topic)
        except FormatError as fault:
            fault.record = place
            if isinstance(topic, dict):
                fault.source_id = _text(topic.get("id"))
                fault.title = _text(topic.get("name")) or fault.source_id
            result.errors.append(fault)
            continue
        seen.add(topic_id)
        if conversation is None:
            result.skipped.append(topic_id)
        else:
            result.migrated.append(topic_id)
            result.conversations.append(conversation)
    return result


def _topic_id(topic: Any) -> str:
    if not isinstance(topic, dict):
        raise FormatError(f"it is {kind_of(topic)}, not a topic")
    return _required(topic, "id", "the topic")


def _conversation(topic_id: str, topic: Json) -> Conversation | None:
    """Return the tree of a topic, or None for one that was abandoned (C10)."""
    name = _optional(topic, "name", str, "the topic")
    prompt = _optional(topic, "prompt", str, "the topic") or ""
    marks = [_optional(topic, mark, bool, "the topic") for mark in ("pinned", "renamed")]
    messages = _messages(topic)
    if not messages and not any(marks) and not prompt.strip():
        return None
    flat = _Flat(messages)
    fields = {key: value for key, value in topic.items() if key not in ("id", "name", "messages")}
    conversation = Conversation(
        source_id=topic_id,
        name=name,
        messages=list(flat.tree()),
        active_id=flat.active_id(),
        metadata={"source": {"format": _NAME, "id": topic_id, "fields": fields}},
    )
    validate(conversation)
    return conversation


# From the list to the tree --------------------------------------------------------------


class _Flat:
    """A topic's list, and what follows from it."""

    def __init__(self, messages: Sequence[_Old]) -> None:
        self.messages = messages
        self.groups = _groups(messages)
        self.parents = dict(self._links())
        self.ids = _ids(messages)

    def _links(self) -> Iterator[tuple[str, str | None]]:
        """
        Yield what each message hangs off (C1 to C3), kept or not.

        There is no circle: a message hangs off an earlier one, or off a reply of a group
        that itself hangs off one that is earlier than both.
        """
        places = {message.id: place for place, message in enumerate(self.messages)}
        before: _Old | None = None
        above: dict[str, str | None] = {}  # what each group hangs off, by what was asked
        for place, message in enumerate(self.messages):
            parent = None if before is None else before.id
            if group := self.groups.get(message.id):
                asked = cast(str, message.ask_id)
                if message is group.replies[0]:
                    above[asked] = asked if places.get(asked, place) < place else parent
                parent = above[asked]
            elif message.role == "user" and before and (group := self.groups.get(before.id)):
                parent = (group.selected or group.replies[-1]).id
            yield message.id, parent
            before = message

    def tree(self) -> Iterator[ImportedMessage]:
        """Yield what is kept, parents first and otherwise in the list's order."""
        kept = {message.id for message in self.messages if message.is_kept}
        parents = _nearest(self.parents, kept)
        numbers = self._numbers(kept, parents)
        times = _times(self.messages)
        listed = [message for message in self.messages if message.is_kept]
        for message in _parents_first(listed, parents):
            parent = parents[message.id]
            yield ImportedMessage(
                id=self.ids[message.id],
                parent_id=None if parent is None else self.ids[parent],
                role=message.role,
                status=_status(message),
                siblings_group_id=numbers.get(message.id, 0),
                data={"parts": _parts(message), "source": _source(message)},
                created_at=times[message.id],
            )

    def _numbers(self, kept: set[str], parents: Mapping[str, str | None]) -> dict[str, int]:
        """Number the groups (C5); below a message that is left out two may have met."""
        last: Counter[str | None] = Counter()
        numbers: dict[str, int] = {}
        for message in self.messages:
            group = self.groups.get(message.id)
            if group is None or message is not group.replies[0]:
                continue
            members = [reply.id for reply in group.replies if reply.id in kept]
            if len(members) > 1:
                parent = parents[members[0]]
                last[parent] += 1
                numbers.update(dict.fromkeys(members, last[parent]))
        return numbers

    def active_id(self) -> str | None:
        """Return the id of the active message (C7)."""
        kept = [message for message in self.messages if message.is_kept]
        if not kept:
            return None
        for end in (self.messages[-1], kept[-1]):
            group = self.groups.get(end.id)
            chosen = (group.selected if group else None) or end
            if chosen.is_kept:
                return self.ids[chosen.id]
        return self.ids[kept[-1].id]


def _groups(messages: Sequence[_Old]) -> dict[str, _Group]:
    """Return the group of each message that has one."""
    replies: dict[str, list[_Old]] = {}
    for message in messages:
        if message.role == "assistant" and message.ask_id:
            replies.setdefault(message.ask_id, []).append(message)
    groups: dict[str, _Group] = {}
    for members in replies.values():
        if len(members) > 1:
            group = _Group(members, next((each for each in members if each.selected), None))
            groups.update((member.id, group) for member in members)
    return groups


def _nearest(parents: Mapping[str, str | None], kept: set[str]) -> dict[str, str | None]:
    """Return the nearest kept ancestor of each message (C4)."""
    found: dict[str, str | None] = {}
    for message_id in parents:
        line: list[str] = []
        at = message_id
        while at not in found:
            line.append(at)
            above = parents[at]
            if above is None or above in kept:
                found[at] = above
            else:
                at = above
        found.update(dict.fromkeys(line, found[at]))
    return found


def _parents_first(messages: Sequence[_Old], parents: Mapping[str, str | None]) -> Iterator[_Old]:
    told: set[str | None] = {None}
    waiting: dict[str | None, list[_Old]] = {}
    for message in messages:
        if parents[message.id] not in told:
            waiting.setdefault(parents[message.id], []).append(message)
            continue
        ready = [message]
        while ready:
            next_one = ready.pop()
            told.add(next_one.id)
            yield next_one
            ready.extend(reversed(waiting.pop(next_one.id, [])))


def _ids(messages: Sequence[_Old]) -> dict[str, str]:
    """Return the new id of each message (C8)."""
    taken = {message.id for message in messages}
    made = (each for number in count(1) if (each := f"m{number}") not in taken)
    return {message.id: message.id if is_id(message.id) else next(made) for message in messages}


def _times(messages: Sequence[_Old]) -> dict[str, int]:
    """Return the new time of each message (C9)."""
    times: dict[str, int] = {}
    last = -1
    for place, message in enumerate(messages, 1):
        last = max(100 * place if message.time is None else message.time, last + 1)
        times[message.id] = last
    return times


def _status(message: _Old) -> Status:
    if message.status is None:
        return "success"
    return cast(Status, message.status) if message.status in _ENDED else "error"


def _parts(message: _Old) -> list[Json]:
    parts: list[Json] = [{"type": "text", "text": message.text}] if message.text else []
    # Without it an empty marker would be a prompt that waits for its text.
    return [*parts, {"type": _DATA_PART, "data": {"type": "clear"}}] if message.is_clear else parts


def _source(message: _Old) -> Json:
    source: Json = {"format": _NAME, "id": message.id}
    if message.time is not None:
        source["time"] = message.time
    return {**source, "fields": message.rest}


# Reading what may be anything -----------------------------------------------------------


def _messages(topic: Json) -> list[_Old]:
    listed = topic.get("messages")
    if not isinstance(listed, list):
        reason = f"are {kind_of(listed)}, not a list" if "messages" in topic else "are missing"
        raise FormatError(f"its messages {reason}")
    messages: list[_Old] = []
    places: dict[str, int] = {}
    for place, told in enumerate(listed):
        message = _message(told, f"message {place}")
        if message.id in places:
            first = places[message.id]
            raise FormatError(
                f"message {place}: its id {quoted(message.id)} is that of message {first} too"
            )
        places[message.id] = place
        messages.append(message)
    return messages


def _message(told: Any, what: str) -> _Old:
    if not isinstance(told, dict):
        raise FormatError(f"{what} is {kind_of(told)}, not an object")
    message_id = _required(told, "id", what)
    role = _required(told, "role", what)
    if role not in _ROLES:
        known = ", ".join(sorted(_ROLES))
        raise FormatError(f"{what}: the role {quoted(role)} is none of {known}")
    text = _required(told, "text", what, may_be_empty=True)
    time = _optional(told, "createdAt", int, what)
    if time is not None and not 0 <= time <= _LAST_TIME:
        raise FormatError(f"{what}: its createdAt {quoted(str(time))} is not a time")
    known_fields = ("id", "role", "text", "createdAt")
    return _Old(
        id=message_id,
        role=cast(Role, role),
        ask_id=_optional(told, "askId", str, what),
        selected=_optional(told, "foldSelected", bool, what) is True,
        text=text,
        is_clear=_optional(told, "type", str, what) == "clear",
        status=_optional(told, "status", str, what),
        time=time,
        rest={key: value for key, value in told.items() if key not in known_fields},
    )


def _required(told: Json, name: str, what: str, *, may_be_empty: bool = False) -> str:
    value = told.get(name)
    if not isinstance(value, str):
        reason = f"is {kind_of(value)}, not a text" if name in told else "is missing"
        raise FormatError(f"{what}: its {name} {reason}")
    if not value and not may_be_empty:
        raise FormatError(f"{what}: its {name} is empty")
    return value


def _optional(told: Json, name: str, kind: type[T], what: str) -> T | None:
    value = told.get(name)
    # A bool is an int to Python, but not to a database.
    if value is not None and type(value) is not kind:
        raise FormatError(f"{what}: its {name} is {kind_of(value)}, not {_KINDS[kind]}")
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
