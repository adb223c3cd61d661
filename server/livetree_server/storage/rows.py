"""A message and a topic's state as database rows, and back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from livetree.core.canonical import MAX_INTEGER
from livetree.core.content import EMPTY_DATA
from livetree.core.errors import Validation
from livetree.core.protocol import Node
from livetree.core.trash import Burial, Moved, TrashEntry
from msgspec import UNSET, Meta, Raw, UnsetType

__all__ = [
    "SKELETON",
    "TOPIC_STATE",
    "cursor_of",
    "entry_of",
    "entry_row",
    "folded",
    "message_row",
    "node_of",
    "position_of",
    "root_row",
    "state_of",
    "state_row",
    "text_of",
    "trash_cursor_of",
    "trash_position_of",
]

SKELETON: Final = (
    "id",
    "parent_id",
    "role",
    "status",
    "siblings_group_id",
    "preview",
    "empty",
    "decisions",
    "model_id",
    "author",
    "stats",
    "timing",
    "context",
    "version",
    "created_at",
    "updated_at",
)
"""The columns of a message that `node_of` takes: all but ``data``."""

TOPIC_STATE: Final = (
    "deleted_at",
    "name",
    "name_folded",
    "metadata",
    "other_state",
    "temporary",
)
"""The columns of a topic that `state_row` gives."""

_Place = TypeVar("_Place", bound=tuple[Any, ...])
_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_Position = tuple[
    Annotated[int, Meta(ge=0, le=MAX_INTEGER)], Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
]
_decode_position = msgspec.json.Decoder(_Position).decode
_Time = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
_TrashPosition = tuple[Annotated[int, Meta(ge=0, le=MAX_INTEGER)], _Time, str]
_decode_trash_position = msgspec.json.Decoder(_TrashPosition).decode
_decode_moved = msgspec.json.Decoder(dict[str, Moved]).decode
_COLUMNED: Final = frozenset(
    ("name", "metadata", "lastActivityAt", "live", "deletedAt", "temporary")
)


def _as_it_is(text: str, _: str) -> str:
    return text


_known: Final[dict[str, Any]] = {
    each: each
    for each in ("user", "assistant", "system", "tool", "pending", "success", "error", "paused")
}


def text_of(raw: Raw | UnsetType | None) -> str | None:
    """Return JSON as the text that a column holds."""
    return None if raw is None or raw is UNSET else bytes(raw).decode()


def message_row(topic_key: int, node: Node) -> tuple[Any, ...]:
    """Return all columns of a message, in the table's order."""
    return (
        topic_key,
        node.id,
        node.parent_id,
        node.role,
        node.status,
        node.siblings_group_id,
        node.preview,
        node.empty,
        text_of(node.decisions),
        node.model_id,
        node.author,
        text_of(node.stats),
        text_of(node.timing),
        text_of(node.context),
        node.version,
        node.created_at,
        node.updated_at,
        text_of(node.data),
    )


def root_row(topic_key: int, root_id: str, at: int) -> tuple[Any, ...]:
    """Return the columns of a virtual root."""
    nothing = (None,) * 6
    data = EMPTY_DATA.decode()
    return (topic_key, root_id, None, "root", "success", 0, "", True, *nothing, 1, at, at, data)


def node_of(row: Sequence[Any], share: Callable[[str, str], str] = _as_it_is) -> Node:
    """
    Make a message of its `SKELETON` columns.

    Args:
        row: The columns.
        share: Returns for a text one that is equal, like ``dict.setdefault``.

    """
    decisions, model_id, author, stats, timing, context = row[7:13]
    created_at, updated_at = row[14], row[15]
    return Node(
        id=share(row[0], row[0]),
        parent_id=share(row[1], row[1]),
        role=_known.get(row[2], row[2]),
        status=_known.get(row[3], row[3]),
        siblings_group_id=row[4],
        preview=row[5],
        empty=bool(row[6]),
        decisions=None if decisions is None else Raw(decisions),
        model_id=None if model_id is None else share(model_id, model_id),
        author=None if author is None else share(author, author),
        stats=None if stats is None else Raw(stats),
        timing=None if timing is None else Raw(timing),
        context=None if context is None else Raw(context),
        version=row[13],
        created_at=created_at,
        updated_at=created_at if updated_at == created_at else updated_at,
    )


def state_row(state: dict[str, Any]) -> tuple[Any, ...]:
    """Return the columns of a topic's state that seldom change, in `TOPIC_STATE`'s order."""
    other = {key: value for key, value in state.items() if key not in _COLUMNED}
    name = state["name"]
    return (
        state.get("deletedAt"),
        name,
        folded(name),
        _encode(state["metadata"]).decode(),
        _encode(other).decode(),
        "temporary" in state,
    )


def state_of(row: Any, live: dict[str, int]) -> dict[str, Any]:
    """Put a topic's state together again, of its row and of what is live."""
    state = {
        "name": row.name,
        "metadata": _decode_object(row.metadata),
        "lastActivityAt": row.last_activity_at,
        "live": live,
        **_decode_object(row.other_state),
    }
    if row.deleted_at is not None:
        state["deletedAt"] = row.deleted_at
    if row.temporary:
        state["temporary"] = True
    return state


def entry_row(topic_key: int, burial: Burial) -> tuple[Any, ...]:
    """Return all columns of a trash entry, in the table's order."""
    return (
        topic_key,
        burial.seq,
        burial.op,
        burial.by,
        burial.at,
        burial.active_before,
        burial.active_after,
        burial.last_created_at,
        _encode(burial.moved).decode(),
    )


def entry_of(row: Any, nodes: list[Node]) -> TrashEntry:
    """Make a trash entry of its row, and of those of its messages that were asked for."""
    return TrashEntry(
        seq=row.seq,
        active_before=row.active_before,
        active_after=row.active_after,
        last_created_at=row.last_created_at,
        moved=_decode_moved(row.moved),
        nodes=nodes,
    )


def folded(name: str) -> str:
    """Return a name in the form in which names are compared, ignoring case."""
    return name.casefold()


def cursor_of(last_activity_at: int, topic_key: int) -> str:
    """Name a place in the list of topics."""
    return _cursor((last_activity_at, topic_key))


def position_of(cursor: str) -> tuple[int, int]:
    """
    Return the place that a cursor names: time and key.

    Raises:
        Validation: If it is none that `cursor_of` made.

    """
    return _position(cursor, _decode_position)


def trash_cursor_of(entry_seq: int, node: Node) -> str:
    """Name a place in the list of a topic's deleted messages."""
    return _cursor((entry_seq, node.created_at, node.id))


def trash_position_of(cursor: str) -> tuple[int, int, str]:
    """
    Return the place that a cursor names: the entry, and the message's time and id.

    Raises:
        Validation: If it is none that `trash_cursor_of` made.

    """
    return _position(cursor, _decode_trash_position)


def _cursor(position: tuple[Any, ...]) -> str:
    return base64.urlsafe_b64encode(_encode(position)).decode()


def _position(cursor: str, decode: Callable[[bytes], _Place]) -> _Place:
    try:
        position = decode(base64.urlsafe_b64decode(cursor.encode("ascii")))
    except (UnicodeEncodeError, binascii.Error, msgspec.DecodeError):
        position = None
    # Base64 has many spellings, and only one of each is ours.
    if position is None or _cursor(position) != cursor:
        raise Validation("the cursor is not one that this list gave: start from its first page")
    return position
