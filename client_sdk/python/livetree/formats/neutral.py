"""
The neutral tree: what every importer gives and the server stores.

A conversation has no virtual root; a message without a parent is a first turn. Groups are
numbered for themselves at each parent: equal numbers under two parents are two groups.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from ..core.canonical import MAX_INTEGER
from ..core.ids import ID_PATTERN, is_id
from .faults import FormatError, kind_of, quoted
from .values import check_text, check_value

__all__ = ["Conversation", "ImportedMessage", "Role", "Status", "text_of", "validate"]

Role: TypeAlias = Literal["user", "assistant", "system", "tool"]
Status: TypeAlias = Literal["success", "error", "paused"]

_ROLES = frozenset(get_args(Role))
_STATUSES = frozenset(get_args(Status))


class ImportedMessage(Struct, frozen=True, kw_only=True):
    """
    One message, ready to be stored below its parent.

    ``data`` holds ``parts``, as AI SDK UI-message parts, and ``source``, which keeps what an
    export needs to give the message back: its ``format``, its ``id`` there, its ``time`` as
    written there, ``hidden`` where the source app hides it, and its other ``fields``.
    ``created_at`` is handed out by the importer; it rises from each child of one parent to
    the next, so that children sorted by ``(created_at, id)`` stand in the source's order.

    """

    id: str
    parent_id: str | None
    role: Role
    status: Status = "success"
    siblings_group_id: int = 0
    data: dict[str, Any]
    model_id: str | None = None
    created_at: int


class Conversation(Struct, frozen=True, kw_only=True):
    """
    One conversation: its messages, parents before their children.

    ``metadata`` is the topic's; its key ``source`` keeps what the source knew besides.
    Times are milliseconds since the epoch, UTC.

    """

    source_id: str | None = None
    name: str | None = None
    messages: list[ImportedMessage]
    active_id: str | None
    metadata: dict[str, Any]
    created_at: int | None = None
    updated_at: int | None = None


def text_of(message: ImportedMessage) -> str:
    """Return the message's text parts, a line break between two."""
    return "\n".join(part["text"] for part in message.data["parts"] if part["type"] == "text")


def validate(conversation: Conversation) -> None:
    """
    Prove that a conversation may be stored whole, in time that grows with its size only.

    Raises:
        FormatError: If an id is bad or used twice, a parent is not earlier in the list, the
            active message is none of them, a role, status, group or time is not allowed,
            children of one parent are not in the order of ``(created_at, id)``, or a value
            is not JSON that every client can read.

    """
    if conversation.name is not None:
        check_text(conversation.name, "the title")
    if conversation.source_id is not None:
        check_text(conversation.source_id, "the conversation's id")
    check_value(conversation.metadata, "the conversation's metadata")
    for time in (conversation.created_at, conversation.updated_at):
        if time is not None:
            _check_count(time, "a time of the conversation")

    seen: set[str] = set()
    newest: dict[str | None, tuple[int, str]] = {}
    for message in conversation.messages:
        what = f"message {quoted(message.id)}"
        if not is_id(message.id):
            raise FormatError(f"{what}: its id is not of the form {ID_PATTERN}")
        if message.id in seen:
            raise FormatError(f"{what}: two messages have this id")
        if message.parent_id is not None and message.parent_id not in seen:
            raise FormatError(f"{what}: its parent {quoted(message.parent_id)} is not before it")
        _check_fields(message, what)
        order = (message.created_at, message.id)
        if order <= newest.get(message.parent_id, (-1, "")):
            raise FormatError(f"{what}: its time puts it before a sibling that stands before it")
        newest[message.parent_id] = order
        seen.add(message.id)

    if conversation.active_id is not None and conversation.active_id not in seen:
        raise FormatError(f"the active message {quoted(conversation.active_id)} does not exist")


def _check_fields(message: ImportedMessage, what: str) -> None:
    if message.role not in _ROLES:
        raise FormatError(f"{what}: there is no role {quoted(str(message.role))}")
    if message.status not in _STATUSES:
        raise FormatError(f"{what}: there is no status {quoted(str(message.status))}")
    if message.model_id is not None:
        check_text(message.model_id, f"{what}: its model")
    _check_count(message.siblings_group_id, f"{what}: its group")
    _check_count(message.created_at, f"{what}: its time")
    parts = message.data.get("parts")
    if type(parts) is not list:
        raise FormatError(f"{what}: its parts are {kind_of(parts)}, not a list")
    for part in parts:
        if type(part) is not dict or type(part.get("type")) is not str:
            raise FormatError(f"{what}: a part is not an object with a type")
        if part["type"] == "text" and type(part.get("text")) is not str:
            raise FormatError(f"{what}: a text part has no text")
    if type(source := message.data.get("source", {})) is not dict:
        raise FormatError(f"{what}: its source is {kind_of(source)}, not an object")
    check_value(message.data, what)


def _check_count(number: object, what: str) -> None:
    # A bool is an int to Python, but not to a database.
    if type(number) is not int or not 0 <= number <= MAX_INTEGER:
        raise FormatError(f"{what} is not an integer from 0 to 2^53-1")
