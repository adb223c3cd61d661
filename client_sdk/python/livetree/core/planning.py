"""What every rule of the tree is made with: its context, its guards, and what makes a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Raw, Struct

from . import protocol as p
from .canonical import check_json
from .content import EMPTY_DATA, check_data, data_of_text, is_empty, preview_of
from .draft import Draft
from .errors import Conflict, InvalidOperation, NotFound, TopicLive, Validation
from .ids import is_id
from .trash import Burial, Revival, TrashEntry, Wanted
from .view import View

__all__ = [
    "MAX_METADATA_BYTES",
    "Content",
    "Context",
    "Planned",
    "Written",
    "clear_context_below",
    "content_node",
    "data_of",
    "fresh_group",
    "fresh_id",
    "insert",
    "object_of",
    "parent_of",
    "refuse_if_above_live",
    "refuse_if_live",
    "touch",
]

MAX_METADATA_BYTES: Final = 64 * 1024
"""The most bytes of a topic's metadata, and of a message's stats, timing or context."""


class Context(Struct, frozen=True, kw_only=True):
    """
    What a plan may not find out for itself.

    Args:
        now: The time, ms since the epoch.
        commit: The id of the commit to come.
        new_id: Makes an id that is not taken.
        subject: Who asks; None for the server itself.
        content: The data of cold messages that `Content` asked for, by id.
        trash: The trash entries that it asked for; None where there is none.
        written: What a live reply has, for the commands that end one.

    """

    now: int
    commit: str
    new_id: Callable[[], str]
    subject: str | None = None
    content: dict[str, bytes] = {}
    trash: dict[Wanted, TrashEntry | None] = {}
    written: Callable[[str], Written | None] = lambda _: None


class Written(Struct, frozen=True):
    """The ops of a live reply so far: whose, how many, and the parts that they make."""

    epoch: int
    n: int
    parts: list[dict[str, Any]]


class Content(Exception):
    """The plan needs what the tree doesn't hold, data or trash entries: plan again with it."""

    def __init__(self, message_ids: list[str], trash: Sequence[Wanted] = ()) -> None:
        super().__init__(message_ids, trash)
        self.message_ids = message_ids
        self.trash = list(trash)


class Planned(Struct, frozen=True):
    """
    A decided command.

    Attributes:
        delta: The change; None if there is none.
        result: The answer: ids, never content.
        draft: The topic as it is after the change.
        burial: The trash entry that the change makes, if it deletes something.
        revivals: What it takes out of the trash.

    """

    delta: p.Delta | None
    result: dict[str, Any]
    draft: Draft
    burial: Burial | None = None
    revivals: list[Revival] = []


def content_node(view: View, message_id: str, what: str = "message") -> p.Node:
    """Return a message that a command names; the root is none."""
    if message_id == view.root_id:
        raise InvalidOperation(f"{what} {message_id} is the virtual root, which is no message")
    node = view.get(message_id)
    if node is None:
        raise NotFound(f"there is no {what} {message_id} in topic {view.topic_id}", id=message_id)
    return node


def parent_of(draft: Draft, parent: str) -> str:
    """Return the id below which a command puts something, from an id, ``AUTO`` or ``ROOT``."""
    if parent == "AUTO":
        return draft.active_node_id or draft.root_id
    if parent in ("ROOT", draft.root_id):
        return draft.root_id
    if draft.get(parent) is None:
        raise NotFound(f"there is no parent {parent} in topic {draft.topic_id}", id=parent)
    return parent


def fresh_id(draft: Draft, asked: str | None, context: Context) -> str:
    """Return the id of a new message: the asked one if it may be used, else one that is made."""
    if asked is None:
        return context.new_id()
    if not is_id(asked):
        raise Validation(f"id {asked[:80]!r} is not of the form [A-Za-z0-9_-]{{1,64}}")
    if asked == draft.root_id or draft.is_taken(asked):
        raise Conflict(f"id {asked} is taken in topic {draft.topic_id}: choose another", id=asked)
    return asked


def refuse_if_live(view: View) -> None:
    """Refuse while any reply of the topic is live."""
    # Its writer holds a lease on a message that would be gone.
    for reply_id in view.live:
        raise TopicLive(reply_id)


def refuse_if_above_live(view: View, *message_ids: str) -> None:
    """Refuse what would disturb a live reply at or below any of these messages."""
    tops = {*message_ids}
    for reply_id in view.live:
        if any(node.id in tops for node in view.ancestors(reply_id)):
            raise TopicLive(reply_id)


def data_of(text: str | None, data: Raw | None, *, default: bytes = EMPTY_DATA) -> Raw:
    """Return the ``data`` that a command gives, as text or whole."""
    if text is not None and data is not None:
        raise Validation("text and data are both given: send one")
    if text is not None:
        return Raw(data_of_text(text))
    return Raw(default if data is None else check_data(data))


def object_of(raw: Raw | None, what: str) -> Raw | None:
    """Return a JSON object that a command gives, checked."""
    if raw is None:
        return None
    if not isinstance(check_json(raw, what, max_bytes=MAX_METADATA_BYTES), dict):
        raise Validation(f"{what} is not an object")
    return Raw(bytes(raw))


def clear_context_below(draft: Draft, message_id: str) -> None:
    """Clear what the descendants of a message derived from it: it is true of none any more."""
    for below in draft.subtree(message_id)[1:]:
        draft.change(below.id, silent=True, context=None)


def fresh_group(draft: Draft, parent_id: str) -> int:
    """Return a group number that no child of this parent has."""
    return draft.top_group(parent_id) + 1


def insert(draft: Draft, **fields: Any) -> p.Node:
    """Add a message that is created now."""
    at = draft.next_created_at()
    data: Raw = fields["data"]
    node = p.Node(
        version=0,  # the draft gives it the commit's
        created_at=at,
        updated_at=at,
        preview=preview_of(data),
        empty=is_empty(data),
        **fields,
    )
    draft.insert(node)
    if node.role in ("user", "assistant"):
        touch(draft, at)
    return node


def touch(draft: Draft, at: int) -> None:
    """Move the topic's last activity forward, never back."""
    if at > draft.state["lastActivityAt"]:
        draft.set_state("lastActivityAt", at)
